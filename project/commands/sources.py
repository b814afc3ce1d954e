"""Where settings come from: configs, run folders and options, before they are parsed."""

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

import yaml
from lightning.pytorch.utilities import rank_zero_info

from ..runs.errors import UsageError
from ..runs.files import check_folder, check_regular, read_text, readable
from ..runs.folder import BEST, CONFIG, LAST, read_config
from ..runs.names import PROGRAM, nearest
from ..runs.plain import load_yaml, read_yaml, setting_lines
from ..runs.record import read_record
from ..runs.settings import flatten
from .parser import LINKED
from .table import COMMANDS, DEFAULT_CONFIG, take_apart

# Options whose values follow from others, so that their own would be ignored.
FOLLOWS = {"--data.seed": "--seed_everything"}
FOLLOWS |= {f"--{key}": "--monitor" for key in ("model.monitor", "early_stopping.monitor")}
FOLLOWS |= {"--early_stopping.mode": "--monitor and --monitor_mode"}
FOLLOWS |= {"--model.monitor_mode": "--monitor_mode"}
FOLLOWS |= {f"--model.{key}": "--data" for key in LINKED}


def expand(args: list[str]) -> list[str]:
    """Put configs first, as files, a run's before the others: all options win over them."""
    if not args or args[0] not in COMMANDS:
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            raise UsageError(f"the command comes first: {PROGRAM} fit --config cifar")
        return args
    for arg in args:
        if arg != readable(arg):
            raise UsageError(
                f"{readable(arg)} is not UTF-8, and can't be an option: rename it, or give a link "
                "to it that has another name"
            )
    given = take_apart(args[1:])
    names = {name for name, _ in given.settings}
    asks = {"-h", "--help"} & set(args) or any(name.endswith(".help") for name in names)
    if given.run is not None and "ckpt_path" in names and args[0] == "fit":
        raise UsageError("--run goes on from the run's last.ckpt: leave out --ckpt_path")
    if given.run is not None and "init_from" in names:
        raise UsageError("--init_from starts a new run: leave out --run")
    for name, value in given.settings:
        _refuse_derived("", dict.fromkeys(_names(name, value), 0))
    configs = given.configs
    if not given.has_config and not asks:
        rank_zero_info(f"No --config: this is {DEFAULT_CONFIG}, on images made on the spot.")
        configs = [DEFAULT_CONFIG]
    run = [] if given.run is None else _run_arguments(Path(given.run), args[0])
    files = [part for name in configs for part in ("--config", str(find_config(name)))]
    return [args[0], *run, *files, *given.options]


def _names(name: str, value: str) -> list[str]:
    """The settings of an option whose value may be a mapping of them."""
    if value.startswith("{"):
        with suppress(yaml.YAMLError):
            return [f"{name}.{key}" for key, _ in flatten(load_yaml(value))]
    return [name]


def _refuse_derived(file: str, lines: dict[str, int]) -> None:
    """Refuse options that follow from others, by which their own values would be replaced."""
    for name in lines:
        if source := FOLLOWS.get(f"--{name}"):
            place = f"{file}, line {lines[name]}: " if file else ""
            raise UsageError(f"{place}--{name} follows from {source}, and can't be set by itself")


def locate(message: str, args: list[str]) -> str:
    """The sentence for a refused option, with file and line if its value is of a config.

    Args:
        message: Sentence that names the option.
        args: Arguments, with the files of the configs.
    """
    given, found = take_apart(args), re.search(r"--([\w.]+)", message)
    if not found:
        return message
    name = found[1].rstrip(".")
    if any(option == name for option, _ in given.settings):  # which comes after the configs
        return message
    for file in reversed(given.configs):
        line = setting_lines(read_text(file)).get(name)
        if line is not None:
            return f"{file}, line {line}: {message}"
    return message


def check_sections(files: list[str], known: set[str]) -> None:
    """Refuse a misspelt section with nothing in it, which jsonargparse passes over."""
    for file in files:
        for name in read_yaml(Path(file)):
            if name not in known:
                line = setting_lines(read_text(file))[name]
                hint = nearest(name, known)
                raise UsageError(f"{file}, line {line}: unknown option --{name}{hint}")


@contextmanager
def only_config(args: list[str]) -> Iterator[None]:
    """Keep what a user's modules print out of the output of `--print_config`, which is YAML."""
    if not any(arg.partition("=")[0] == "--print_config" for arg in args):
        yield
        return
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            yield
    finally:
        before, header, config = said.getvalue().rpartition("# lightning.pytorch==")
        sys.stdout.write(header + config if header else "")
        sys.stderr.write(before if header else config)


def config_folder() -> Path:
    """The folder of the shipped configs: in the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def find_config(name: str) -> Path:
    """The file of a config: a path, or a name such as `cifar` or `presets/bf16` from anywhere.

    Raises:
        UsageError: If there is none.
    """
    folder = config_folder()
    short = name.removeprefix("configs/").removesuffix(".yaml")
    for path in (Path(name), folder / f"{short}.yaml"):
        if path.exists() and not path.is_dir():
            try:
                read_yaml(path)
                _refuse_derived(str(path), setting_lines(read_text(path)))
            except UsageError:
                raise
            except (ValueError, OSError) as error:
                raise UsageError(f"--config: {error}") from error
            return path
    shipped = [str(p.relative_to(folder).with_suffix("")) for p in sorted(folder.rglob("*.yaml"))]
    raise UsageError(
        f"no config {name!r}{nearest(short, shipped)}; shipped are {', '.join(shipped)}"
    )


def _run_arguments(run: Path, command: str) -> list[str]:
    read_record(run)
    check_folder(run)  # before another library opens one of its files
    read_config(run)
    arguments = ["--config", str(run / CONFIG), "--run", str(run)]
    if command in ("check", "lr_find"):  # which look at the untrained network
        return arguments
    checkpoint = run / (LAST if command == "fit" else BEST)
    check_regular(checkpoint)
    if not checkpoint.is_file():
        raise UsageError(f"run {run} has no {checkpoint.relative_to(run)}")
    return [*arguments, "--ckpt_path", str(checkpoint)]
