"""A run folder, data or a config of a stranger: nothing that they name is called by any command."""

import os
import pickle
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from project.cli import main
from project.run import BEST, CONFIG, LAST, RECORD

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
COMMANDS = ["fit", "validate", "test", "predict", "export", "check", "lr_find", "compare", "runs"]


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    signal.alarm(120)  # whose default ends the process
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

    import project.parser  # noqa: F401

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
