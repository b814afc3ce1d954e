"""Where settings come from before they are parsed: configs, run folders and options."""

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
from .links import refuse_derived
from .table import COMMANDS, DEFAULT_CONFIG, Given, take_apart


def expand(args: list[str]) -> list[str]:
    """Return the arguments with all configs first, as files, and a run's before the others.

    Thus every option wins over every config, wherever the two stand.
    """
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
    command, given = args[0], take_apart(args[1:])
    _check_options(command, given)
    configs = given.configs
    if not given.has_config and not given.asks_for_help:
        rank_zero_info(f"No --config: this is {DEFAULT_CONFIG}, whose images are made on the spot.")
        configs = [DEFAULT_CONFIG]
    run = [] if given.run is None else _run_arguments(Path(given.run), command)
    files = [part for name in configs for part in ("--config", str(find_config(name)))]
    return [command, *run, *files, *given.options]


def _check_options(command: str, given: Given) -> None:
    """Refuse options that contradict each other, and those that follow from others."""
    names = {name for name, _ in given.settings}
    if given.run is not None and "ckpt_path" in names and command == "fit":
        raise UsageError("--run resumes from the run's last.ckpt: leave out --ckpt_path")
    if given.run is not None and "init_from" in names:
        raise UsageError("--init_from starts a new run: leave out --run")
    for name, value in given.settings:
        refuse_derived(_set_by(name, value))


def _set_by(name: str, value: str) -> list[str]:
    """Return the options that an option sets: itself, or the keys of a mapping."""
    if value.startswith("{"):
        with suppress(yaml.YAMLError):
            return [f"{name}.{key}" for key, _ in flatten(load_yaml(value))]
    return [name]


def locate(message: str, args: list[str]) -> str:
    """Return the sentence for a refused option, with file and line if a config has set it.

    Args:
        message: Sentence that names the option.
        args: Arguments with the files of the configs, as `expand` returns them.
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
    """Refuse a misspelt section without any content, which jsonargparse ignores."""
    for file in files:
        for name in read_yaml(Path(file)):
            if name not in known:
                line = setting_lines(read_text(file))[name]
                hint = nearest(name, known)
                raise UsageError(f"{file}, line {line}: unknown option --{name}{hint}")


@contextmanager
def only_config(args: list[str]) -> Iterator[None]:
    """Keep the prints of a user's modules out of the YAML that `--print_config` writes."""
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
    """Return the folder of the shipped configs: in the installed package, or beside it."""
    package = Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def find_config(name: str) -> Path:
    """Return the file of a config: a path, or a name such as `cifar` or `presets/bf16`.

    Raises:
        UsageError: If there is no such config, or it can't be read.
    """
    folder = config_folder()
    short = name.removeprefix("configs/").removesuffix(".yaml")
    for path in (Path(name), folder / f"{short}.yaml"):
        if path.exists() and not path.is_dir():
            try:
                read_yaml(path)
                for option, line in setting_lines(read_text(path)).items():
                    refuse_derived([option], f"{path}, line {line}: ")
            except UsageError:
                raise
            except (ValueError, OSError) as error:
                raise UsageError(f"--config: {error}") from error
            return path
    shipped = [str(p.relative_to(folder).with_suffix("")) for p in sorted(folder.rglob("*.yaml"))]
    raise UsageError(
        f"no config {name!r}{nearest(short, shipped)}; the shipped ones are {', '.join(shipped)}"
    )


def _run_arguments(run: Path, command: str) -> list[str]:
    """Return the options that take config and checkpoint from a run folder."""
    read_record(run)
    check_folder(run)  # before another library opens one of its files
    read_config(run)
    arguments = ["--config", str(run / CONFIG), "--run", str(run)]
    if command in ("check", "lr_find"):  # which start from the untrained network
        return arguments
    checkpoint = run / (LAST if command == "fit" else BEST)
    check_regular(checkpoint)
    if not checkpoint.is_file():
        raise UsageError(f"run {run} has no {checkpoint.relative_to(run)}")
    return [*arguments, "--ckpt_path", str(checkpoint)]
