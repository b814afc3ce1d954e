"""A run folder, data or a config of a stranger: nothing that they name is called by any command."""

import json
import os
import pickle
import re
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from project.commands.cli import main
from project.runs.folder import BEST, CONFIG, LAST, RECORD

FIT = ["fit", "--config=synthetic", "--model=MLP", "--data.image_size=8", "--data.train_size=40"]
FIT += ["--data.val_size=20", "--data.test_size=20", "--data.batch_size=20", "--preflight=false"]
FIT += ["--trainer.max_epochs=1", "--trainer.enable_progress_bar=false"]
FIT += ["--trainer.enable_model_summary=false", "--trainer.accelerator=cpu"]
GADGETS = """
from pathlib import Path
from typing import Any
from lightning.pytorch.callbacks import Callback
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ConstantLR, LRScheduler

class Gadget:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Path({marker!r}).touch()
    __call__ = __setstate__ = __init__

def optimizer(params: Any, lr: float = 0.1) -> Optimizer:
    Gadget()
    return SGD(params, lr)

def schedule(optimizer: Optimizer) -> LRScheduler:
    Gadget()
    return ConstantLR(optimizer)

def callback(number: int = 1) -> Callback:
    Gadget()
    return Callback()
"""
POPEN = {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", "PWNED"]}}
GADGET = {"class_path": "gadgets.Gadget"}
OPTIONS = ["model", "model.optimizer", "model.lr_scheduler", "data", "data.augment"]
OPTIONS += ["trainer.callbacks", "trainer.logger", "trainer.profiler", "trainer.plugins"]
OPTIONS += ["trainer.strategy", "trainer.accelerator", "early_stopping"]
FUNCTIONS = {
    "model.optimizer": "optimizer",
    "model.lr_scheduler": "schedule",
    "trainer.callbacks": "callback",
}
DEEP = 100_000  # levels
COMMANDS = ["fit", "validate", "test", "predict", "export", "check", "lr_find", "compare", "runs"]


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    signal.alarm(300)  # whose default ends the process
    yield
    signal.alarm(0)


@pytest.fixture(autouse=True)
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that each payload would make."""
    path = tmp_path / "PWNED"
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "gadgets.py").write_text(GADGETS.format(marker=str(path)))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    sys.modules.pop("gadgets", None)
    yield path
    assert not path.exists()
    sys.modules.pop("gadgets", None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    main([*FIT, f"--trainer.default_root_dir={root}", "--name=good"])
    run = root / "good" / "version_0"
    main(["predict", f"--run={run}"])
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, beside the one that it is compared with."""
    shutil.copytree(trained.parent, tmp_path / "good")
    return Path(shutil.copytree(trained, tmp_path / "bad" / "version_0"))


@pytest.fixture
def says(
    exit_code: Callable[[list[str]], int], capfd: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """The error of a command, in one sentence."""

    def say(*args: str) -> str:
        capfd.readouterr()
        code = exit_code(list(args))
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        assert bool(code) == bool(errors), (args, code, err)
        return errors[-1] if errors else ""

    return say


def command(name: str, run: Path) -> list[str]:
    """A command that reads a run folder."""
    folders = {"compare": [str(run.parent), "good"], "runs": [str(run.parent)]}
    more = {"fit": ["--trainer.max_epochs=2"], "export": ["--format=torch"]}
    return [name, *folders.get(name, [f"--run={run}"]), *more.get(name, [])]


def put(config: dict[str, Any], option: str, value: Any) -> None:
    """Set an option in a config, by its name on the command line."""
    *folders, last = option.split(".")
    for folder in folders:
        config = config[folder]
        config = config.get("init_args", config)
    config[last] = [value] if last in ("callbacks", "plugins") else value


@pytest.mark.parametrize("option", OPTIONS)
def test_a_config_names_classes_that_its_option_wants(
    option: str, run: Path, says: Callable[..., str]
) -> None:
    config = yaml.safe_load((run / CONFIG).read_text())
    for value in (POPEN, GADGET, "subprocess.Popen"):
        put(config, option, value)
        (run / CONFIG).write_text(yaml.safe_dump(config))
        assert option.split(".")[-1] in says(*command("test", run))
    if option in ("model", "model.optimizer"):
        for which in ("fit", "check", "lr_find", "export"):
            assert option in says(*command(which, run))


@pytest.mark.parametrize("option", FUNCTIONS)
@pytest.mark.parametrize("as_class", [True, False])
def test_a_function_that_returns_the_class_is_not_called(
    option: str, as_class: bool, run: Path, says: Callable[..., str]
) -> None:
    config = yaml.safe_load((run / CONFIG).read_text())
    name = f"gadgets.{FUNCTIONS[option]}"
    put(config, option, {"class_path": name} if as_class else name)
    (run / CONFIG).write_text(yaml.safe_dump(config))
    assert f"--{option}: " in (said := says(*command("test", run)))
    assert f"'{name}' can't be named here: it is a function, and a class is wanted" in said


def test_a_callable_is_no_object_of_any_class(says: Callable[..., str]) -> None:
    spec = "{class_path: LambdaLR, init_args: {lr_lambda: {class_path: gadgets.Gadget}}}"
    said = says(*FIT, f"--model.lr_scheduler={spec}")
    assert "'gadgets.Gadget' can't be named here: a function is wanted" in said
    assert says(*FIT, "--model.lr_scheduler=LambdaLR", "--model.lr_scheduler.lr_lambda=os.system")


class Untyped(torch.nn.Module):
    """Takes an argument that has no type."""

    def __init__(self, part: Any = None) -> None:
        super().__init__()


def test_an_argument_without_a_type_takes_no_class() -> None:
    from jsonargparse import ArgumentParser

    import project.commands.parser  # noqa: F401

    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(torch.nn.Module, "module")
    given = {"class_path": f"{__name__}.Untyped", "init_args": {"part": [GADGET]}}
    with pytest.raises(Exception, match=r"'gadgets.Gadget' can't be named here: the argument has"):
        parser.parse_object({"module": given})


def test_modules_that_run_when_they_are_imported_are_not(says: Callable[..., str]) -> None:
    for name in ("numpy.f2py.__main__.main", "json.tool.__main__.main", "antigravity.webbrowser"):
        module = name.rpartition(".")[0]
        was = module in sys.modules
        assert f"--model: '{name}' can't be named here" in says(*FIT, f"--model={name}")
        assert (module in sys.modules) == was


def test_export_takes_arguments_from_the_config(run: Path, says: Callable[..., str]) -> None:
    checkpoint = torch.load(run / BEST, weights_only=True)
    checkpoint["hyper_parameters"] = {"args": ["touch", "PWNED"], "num_classes": 3}
    torch.save(checkpoint, run / BEST)
    assert not says(*command("export", run))
    assert (run / "model.pt2").is_file()


class Payload:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch PWNED",)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "pickled checkpoints": lambda run: [
        torch.save({"state_dict": {}, "x": Payload()}, run / name) for name in (BEST, LAST)
    ],
    "bare pickles": lambda run: [
        (run / name).write_bytes(pickle.dumps(Payload())) for name in (BEST, LAST)
    ],
    "tags in the config": lambda run: (run / CONFIG).write_text(
        "model: !!python/object/apply:os.system ['touch PWNED']\n"
    ),
    "a model that is a program": lambda run: (run / CONFIG).write_text(
        yaml.safe_dump({"model": POPEN, "data": POPEN, "monitor": "val/loss"})
    ),
    "a pickled record": lambda run: (run / RECORD).write_bytes(pickle.dumps(Payload())),
    "pickled predictions": lambda run: (run / "predictions.csv").write_bytes(
        pickle.dumps(Payload())
    ),
    "pickled metrics": lambda run: (run / "metrics.csv").write_bytes(pickle.dumps(Payload())),
    "formulas in the record": lambda run: (run / RECORD).write_text(
        (run / RECORD).read_text().replace("good", "$(touch PWNED)`touch PWNED`")
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_every_command_survives_a_hostile_run(
    what: str, run: Path, says: Callable[..., str]
) -> None:
    HOSTILE[what](run)
    said = {name: says(*command(name, run)) for name in COMMANDS}
    assert any(said.values()) or what in ("formulas in the record", "pickled metrics")
    assert all(re.match(r"error: \S", line) for line in said.values() if line)


def bomb(levels: int = 12) -> str:
    """A config of some lines that stands for 9**levels values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for k in range(1, levels):
        lines.append(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]")
    return "\n".join(lines)


def test_seed_noise_survives_hostile_runs_of_its_name(run: Path, says: Callable[..., str]) -> None:
    (run / RECORD).write_text("{}")
    (run / CONFIG).write_text(yaml.safe_dump({"model": POPEN}))
    (run.parent / "seed_noise.json").write_bytes(pickle.dumps(Payload()))
    torch.save({"state_dict": {}, "x": Payload()}, run / LAST)
    where = [f"--trainer.default_root_dir={run.parent.parent}", f"--name={run.parent.name}"]
    said = says("seed_noise", "--seeds=1", *FIT[1:], *where)
    assert "seed noise takes two finished runs or more" in said
    assert f"--model: '{POPEN['class_path']}' can't be named here" in says(
        "seed_noise", "--seeds=1", f"--config={run / CONFIG}"
    )


def test_a_hostile_cache_and_hostile_images_are_data(
    tmp_path: Path, says: Callable[..., str]
) -> None:
    root = tmp_path / "images"
    for k in range(20):
        path = root / ("cat", "dog")[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(k).integers(256, size=(8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    fit = [*FIT[:2], "--data=ImageFolderDataModule", f"--data.root={root}", "--data.image_size=8"]
    fit += ["--model=MLP", "--data.batch_size=4", *FIT[7:], "--data.num_workers=0"]
    assert not says(*fit)
    for path in (root / ".cache").iterdir():
        path.write_bytes(pickle.dumps(Payload()))
    assert not says(*fit)
    for path in (root / ".cache").iterdir():
        with path.open("wb") as file:
            np.save(file, np.array([Payload()], dtype=object), allow_pickle=True)
    assert not says(*fit)
    (root / "cat" / "0.png").write_bytes(pickle.dumps(Payload()))
    assert "0.png" in says(*fit)


def mknod(path: Path) -> None:
    """A device of the kind of /dev/null."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except (AttributeError, PermissionError):
        pytest.skip("a device can be made by root only")


def test_no_output_replaces_a_device(run: Path, says: Callable[..., str]) -> None:
    for name in ("model.pt2", "predictions.csv", "null"):
        (run / name).unlink(missing_ok=True)
        mknod(run.parent / name)
    output = f"--output={run.parent / 'null'}"
    assert "null is not a regular file but a device" in says(*command("export", run), output)
    for name, which in (("model.pt2", "export"), ("predictions.csv", "predict")):
        (run.parent / name).rename(run / name)
        assert f"{name} is not a regular file but a device" in says(*command(which, run))
        assert stat.S_ISCHR((run / name).stat().st_mode)
        (run / name).unlink()
    for which, name in (("check", "check.json"), ("lr_find", "lr_find.json")):
        where = [f"--trainer.default_root_dir={run.parent.parent}", f"--name={run.parent.name}"]
        mknod(run.parent / name)
        assert f"{name} is not a regular file" in says(*command(which, run), *where)


YAMLS = {
    "recursive": "trainer: &a\n  callbacks: [*a]\nmodel: MLP\n",
    "exploding": bomb(),
    "deep": "trainer: " + "[" * DEEP,
    "deep and closed": "trainer: " + "[" * DEEP + "]" * DEEP,
    "deep by indentation": "- " * DEEP,
    "a list": "- 1\n- 2\n",
    "empty": "",
    "latin": "name: caf\xe9",
}
JSONS = {
    "empty": "{}",
    "null": "null",
    "deep": "[" * DEEP,
    "deep and closed": "[" * DEEP + "]" * DEEP,
    "deep objects": '{"metrics":' * DEEP,
    "text": "not JSON",
    "latin": '"caf\xe9"',
    "wrong seed": {"seed": "0"},
    "wrong metrics": {"metrics": [1, 2]},
    "wrong metric": {"metrics": {"val/loss": "low"}},
    "wrong end": {"stopped_by": 3},
    "wrong epochs": {"epochs": "many", "best_epoch": [1]},
    "wrong examples": {"examples": [1]},
    "wrong version": {"version": {}},
}


@pytest.mark.parametrize("what", YAMLS)
def test_any_yaml_is_one_sentence_within_a_second(
    what: str, run: Path, says: Callable[..., str]
) -> None:
    (run / CONFIG).write_text(YAMLS[what], encoding="latin1")
    for which in ("fit", "test", "export", "check", "runs"):
        start = time.process_time()
        said = says(*command(which, run))
        assert time.process_time() - start < 2
        assert "config.yaml" in said or which == "runs"
    said = says("fit", f"--config={run / CONFIG}")
    assert "config.yaml" in said or what in ("a list", "empty")


def test_yaml_within_an_option_is_bounded_too(says: Callable[..., str]) -> None:
    for text in ("&a [*a]", "{" + bomb().replace("\n", ", ") + "}"):
        for option in ("--trainer.callbacks", "--model.width", "--trainer.max_epochs", "--model"):
            start = time.process_time()
            assert says(*FIT, f"{option}={text}")
            assert time.process_time() - start < 2


@pytest.mark.parametrize("what", JSONS)
def test_any_record_is_one_sentence(what: str, run: Path, says: Callable[..., str]) -> None:
    change = JSONS[what]
    if isinstance(change, dict):
        change = json.dumps(json.loads((run / RECORD).read_text()) | change)
    (run / RECORD).write_text(change, encoding="latin1")
    for which in ("fit", "test", "export"):
        assert f"{run} is not a run folder: " in says(*command(which, run))
    assert not says("runs", str(run.parent))
    assert says(*command("compare", run))
    (run.parent / "seed_noise.json").write_text(change, encoding="latin1")
    assert says(*command("compare", run))


def test_an_unreadable_record_does_not_hide_the_other_runs(
    run: Path, says: Callable[..., str]
) -> None:
    folder = run.parent
    shutil.copytree(run, folder / "version_1")
    (folder / "version_1" / RECORD).write_text("{}")
    record = json.loads((run / RECORD).read_text()) | {"stopped_by": "SIGTERM"}
    (run / RECORD).write_text(json.dumps(record))
    options = [f"--trainer.default_root_dir={folder.parent}", f"--name={folder.name}"]
    options += ["--ckpt_path=last", "--trainer.max_epochs=2"]
    with pytest.warns(match="passed over: .*version_1 is not a run folder"):
        assert not says(*FIT, *options)
    assert json.loads((run / RECORD).read_text())["epochs"] == 2


def edited(checkpoint: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A checkpoint with another value somewhere; `...` removes what is there."""
    place: Any = checkpoint
    *parts, last = path.split("/")
    for part in parts:
        place = place[int(part) if isinstance(place, list) else part]
    key = next((k for k in place if str(k).startswith(last)), last) if last else last
    if value is ...:
        del place[key]
    else:
        place[key] = value
    return checkpoint


EDITS: list[tuple[str, Any]] = [
    ("state_dict", [1]),
    ("state_dict/network", "text"),
    ("epoch", "one"),
    ("global_step", None),
    ("loops", []),
    ("loops/fit_loop", ...),
    ("loops/fit_loop/epoch_progress", {}),
    ("loops/fit_loop/epoch_progress/current/processed", "x"),
    ("loops/fit_loop/epoch_loop.batch_progress", {"total": 1}),
    ("optimizer_states", {}),
    ("optimizer_states", [3]),
    ("optimizer_states", [{"state": {}, "param_groups": [{}]}]),
    ("lr_schedulers", [1]),
    ("callbacks", 5),
    ("callbacks/RNGState", 5),
    ("callbacks/RNGState", {}),
    ("callbacks/RNGState", {"ranks": [{"python": 1, "numpy": 2, "torch": 3}]}),
    ("callbacks/BestCheckpoint", {"best_model_path": 3}),
    ("SyntheticDataModule", []),
    ("SyntheticDataModule", {"position": {}}),
    ("SyntheticDataModule/position", {"epoch": "x"}),
    ("config", "text"),
    ("config", {"model": 3}),
    ("metrics", {"val/loss": "low"}),
    ("train_metrics", 3),
    ("pytorch-lightning_version", 3),
    ("hyper_parameters", "x"),
    ("SyntheticDataModule/preprocessing", {"class_names": 3}),
    ("SyntheticDataModule/preprocessing/mean", ["a"]),
    ("SyntheticDataModule/preprocessing/image_size", "8"),
]


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_a_checkpoint_changed_by_hand_is_one_sentence(
    edit: tuple[str, Any], run: Path, says: Callable[..., str]
) -> None:
    for path in (run / BEST, run / LAST):
        torch.save(edited(torch.load(path, weights_only=True), *edit), path)
    for which in ("fit", "test", "export"):
        said = says(*command(which, run))
        assert not said or ".ckpt" in said or "checkpoint" in said, said


def test_weights_of_another_kind_are_refused(run: Path, says: Callable[..., str]) -> None:
    checkpoint = torch.load(run / BEST, weights_only=True)
    name = next(iter(checkpoint["state_dict"]))
    checkpoint["state_dict"][name] = checkpoint["state_dict"][name].to(torch.complex64)
    torch.save(checkpoint, run / BEST)
    for which in ("test", "predict", "export"):
        assert f"such as {name}, complex (" in says(*command(which, run))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize(
    "name",
    [RECORD, CONFIG, BEST, LAST, "metrics.csv", "predictions.csv", "hparams.yaml", ".lock"],
    ids=str,
)
def test_no_command_waits_for_a_pipe(name: str | Path, run: Path, says: Callable[..., str]) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert "is not a regular file but a pipe" in says(*command("fit", run))
    for which in ("test", "compare", "runs"):
        says(*command(which, run))  # which may not need the file
    says("fit", f"--config={run / CONFIG}", f"--ckpt_path={run / LAST}")
    assert stat.S_ISFIFO((run / name).stat().st_mode)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_config_within_a_config_is_no_pipe(tmp_path: Path, says: Callable[..., str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for option in ("model", "data", "trainer.callbacks", "early_stopping", "model.optimizer"):
        assert says(*FIT, f"--{option}={tmp_path / 'pipe'}")
    assert "pipe is not a regular file but a pipe" in says("fit", f"--config={tmp_path / 'pipe'}")
