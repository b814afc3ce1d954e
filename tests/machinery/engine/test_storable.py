"""What a checkpoint can't hold is stored as a plain value, or refused before the first step."""

import argparse
import json
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

from project.commands.cli import main
from project.engine.checkpoint_io import AtomicCheckpointIO, load_checkpoint
from project.engine.storable import storable
from project.models import MLP

FIT = ["fit", "--config=synthetic", "--data.image_size=8", "--data.train_size=40"]
FIT += ["--data.val_size=20", "--data.batch_size=20", "--preflight=false"]
FIT += ["--trainer.max_epochs=1", "--trainer.enable_progress_bar=false"]
FIT += ["--trainer.enable_model_summary=false", "--trainer.accelerator=cpu"]


class Kind(Enum):
    SMALL = 1


class Word(StrEnum):
    LONG = "long"


class Number(IntEnum):
    TWO = 2


Pair = namedtuple("Pair", "left right")
ODD: list[tuple[Any, Any]] = [
    (Path("a/b"), "a/b"),
    (Kind.SMALL, "SMALL"),
    (Word.LONG, "long"),
    (Number.TWO, 2),
    (np.float64(0.5), 0.5),
    (np.int64(3), 3),
    (np.bool_(True), True),
    (np.str_("text"), "text"),
    (np.arange(3), [0, 1, 2]),
    (np.dtype("int8"), "int8"),
    (torch.float16, torch.float16),
    (torch.device("cpu"), torch.device("cpu")),
    (Pair(1, Path("x")), (1, "x")),
    (argparse.Namespace(a=np.int64(1)), {"a": 1}),
    ({Kind.SMALL: [Path("x"), {"deep": (np.float32(0.5),)}]}, {"SMALL": ["x", {"deep": (0.5,)}]}),
    (frozenset({1}), {1}),
    (nn.ReLU, "torch.nn.modules.activation.ReLU"),
]


@pytest.mark.parametrize(("value", "plain"), ODD, ids=str)
def test_values_are_stored_as_plain_ones(value: Any, plain: Any, tmp_path: Path) -> None:
    found = storable({"x": [value]}, "hyper_parameters")
    assert found == {"x": [plain]}
    assert type(found["x"][0]) is type(plain)
    path = tmp_path / "x.ckpt"
    AtomicCheckpointIO().save_checkpoint({"state_dict": {}, "hyper_parameters": {"x": value}}, path)
    assert load_checkpoint(path)["hyper_parameters"] == {"x": plain}


def test_what_is_plain_is_not_copied() -> None:
    state = nn.Linear(2, 2).state_dict()
    assert isinstance(state, OrderedDict)
    assert storable(state, "state_dict") is state  # with what torch has attached to it
    nested = {"a": [1, (2.0, {"b": None})], "c": torch.Size([1]), "d": {1, 2}}
    assert storable(nested, "x") is nested


class Odd(MLP):
    """A model with arguments of every kind."""

    def __init__(
        self,
        folder: Path = Path("here"),
        kind: Kind = Kind.SMALL,
        parts: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.save_hyperparameters(ignore=["optimizer", "lr_scheduler"], logger=False)
        self.hparams["parts"] = {"deep": [np.float64(2), {"folder": folder}]}
        assert isinstance(self.hparams["folder"], Path)


class Counting(Callback):
    """A callback whose state has a path and a number of numpy."""

    def __init__(self) -> None:
        self.count, self.place, self.loaded = np.int64(0), Path("place"), False

    def on_train_epoch_end(self, *_: Any) -> None:
        self.count += np.int64(1)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "place": self.place}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert state_dict == {"count": 1, "place": "place"}
        self.count, self.loaded = np.int64(state_dict["count"]), True


def test_a_run_with_such_arguments_trains_resumes_and_is_tested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = [f"--model={__name__}.Odd", f"--trainer.callbacks={__name__}.Counting"]
    main([*FIT, *options])
    run = Path("runs/synthetic/version_0")
    assert load_checkpoint(run / "checkpoints/last.ckpt")["hyper_parameters"]["folder"] == "here"
    capsys.readouterr()
    resumed = main(["fit", f"--run={run}", "--trainer.max_epochs=2"])
    assert "may differ" not in "".join(capsys.readouterr())
    assert any(getattr(callback, "loaded", False) for callback in resumed.trainer.callbacks)
    assert json.loads((run / "run.json").read_text())["epochs"] == 2
    main(["test", f"--run={run}"])


class Part:
    """What no checkpoint can hold."""


class Holding(MLP):
    """A model that keeps an object among its arguments."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hparams["part"] = [Part()]


class Adding(MLP):
    """A model that adds an object to each checkpoint."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["own"] = {"part": Part()}


class Stateful(Callback):
    """A callback whose state is an object."""

    def state_dict(self) -> dict[str, Any]:
        return {"part": Part()}


@pytest.mark.parametrize(
    ("options", "name", "steps"),
    [
        ([f"--model={__name__}.Holding"], r"hyper_parameters.part\[0\]", 0),
        (["--model=MLP", f"--trainer.callbacks={__name__}.Stateful"], "state of Stateful.part", 0),
        ([f"--model={__name__}.Adding"], "own.part", 2),
    ],
)
def test_others_are_refused_before_the_first_step_or_at_the_first_save(
    options: list[str],
    name: str,
    steps: int,
    exit_code: Callable[[list[str]], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code([*FIT, *options]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert (
        f"a checkpoint can't hold {name}, of type {__name__}.Part: make it".replace("\\", "")
        in errors[0]
    )
    assert not list(Path("runs").rglob("*.ckpt*"))


def test_the_first_file_is_read_back_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    from project.engine import checkpoint_io as checkpoint

    true = checkpoint._read
    monkeypatch.setattr(checkpoint, "_read", lambda path: (read.append(path), true(path))[1])
    saver = AtomicCheckpointIO()
    for _ in range(3):
        saver.save_checkpoint({"state_dict": {"w": torch.zeros(2)}}, tmp_path / "x.ckpt")
    assert len(read) == 1

    monkeypatch.setattr(checkpoint, "storable", lambda value, _: value)
    for content in ({"x": Part()}, {"x": Path("x")}):
        with pytest.raises(ValueError, match="y.ckpt was not saved: it could not be loaded"):
            AtomicCheckpointIO().save_checkpoint({"state_dict": {}} | content, tmp_path / "y.ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["x.ckpt"]
