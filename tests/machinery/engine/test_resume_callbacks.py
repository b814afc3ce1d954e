"""When a resume is called exact: with callbacks that were seen to resume exactly, and all data."""

import inspect
import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from test_resume import same
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from project.commands.cli import main
from project.engine.checkpoint_io import load_checkpoint
from project.engine.exact import KNOWN, is_known
from project.engine.resume import CALLBACKS, DEVICES, FREE
from project.engine.signals import Interrupted
from project.models import Task
from project.runs.settings import NEUTRAL

SMALL = ["--data.train_size", "40", "--data.val_size", "24", "--data.test_size", "0"]
SMALL += ["--data.image_size", "8", "--data.batch_size", "8", "--trainer.accelerator", "cpu"]
SMALL += ["--trainer.enable_model_summary", "false", "--preflight", "false"]
SMALL += ["--trainer.max_epochs", "3", "--trainer.log_every_n_steps", "2"]
FIT = ["fit", "--config", "synthetic", "--model", "MLP", *SMALL]  # 5 steps an epoch
QUIET = ["--trainer.enable_progress_bar", "false"]
EXACT, DIFFERS = "Resuming exactly where the run stopped.", "may differ from an uninterrupted one"
RUN = Path("runs/synthetic/version_0")
LAST = RUN / "checkpoints/last.ckpt"


class Halves(Task):
    """A network whose first half can be frozen."""

    def __init__(self, num_classes: int = 10, image_size: int = 8, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.backbone = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.BatchNorm1d(8))
        self.backbone(torch.zeros(2, 3, image_size, image_size))
        self.head = nn.Linear(8, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(inputs).relu())
        return logits


class Plain(L.LightningDataModule):
    """Loaders of torch, which forget where they stood."""

    num_classes, class_names, in_channels, image_size = 10, [str(k) for k in range(10)], 3, 8

    def __init__(self, seed: int = 0) -> None:
        super().__init__()

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.randn(40, 3, 8, 8), torch.arange(40) % 10), 8)

    def val_dataloader(self) -> DataLoader[Any]:
        return self.train_dataloader()


class Counts(L.Callback):
    """Has a state that nobody saves."""

    def __init__(self) -> None:
        self.batches = 0


class Keeps(Counts):
    """Saves it."""

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.batches = state_dict["batches"]


class Stateless(L.Callback):
    """Has none."""


class Swaps(Keeps):
    """Validates other weights than it trains."""

    def _swap(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for parameter in pl_module.parameters():
            parameter.data.neg_()

    on_validation_start = on_validation_end = _swap


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Have SIGTERM sent at the n-th call of a hook of the model."""
    due: dict[str, int] = {}

    def arm(hook: str, number: int) -> None:
        original = getattr(Task, hook)
        due[hook] = number

        def sending(self: Task, *args: Any) -> Any:
            if not self.trainer.sanity_checking:
                due[hook] -= 1
                if due[hook] == -1:
                    os.kill(os.getpid(), signal.SIGTERM)
            return original(self, *args)

        monkeypatch.setattr(Task, hook, sending)

    return arm


def interrupted(args: list[str]) -> None:
    with pytest.raises(Interrupted):
        main(args)


def said(caplog: pytest.LogCaptureFixture) -> str:
    """Return what a resume reports about itself."""
    (line,) = [m for m in caplog.messages if EXACT in m or DIFFERS in m]
    caplog.clear()
    return line


CALLBACK_OPTIONS: dict[str, list[str]] = {
    "BackboneFinetuning": [
        *("--trainer.callbacks.unfreeze_backbone_at_epoch", "1"),
        *("--trainer.callbacks.train_bn", "false"),
    ],
    "DeviceStatsMonitor": [],
    "EMAWeightAveraging": ["--trainer.callbacks.decay", "0.9"],
    "EarlyStopping": ["--trainer.callbacks.monitor", "val/acc"],
    "GradientAccumulationScheduler": ["--trainer.callbacks.scheduling", '{"1": 3}'],
    "LearningRateMonitor": ["--trainer.callbacks.log_momentum", "true"],
    "ModelCheckpoint": ["--trainer.callbacks.every_n_train_steps", "2"],
    "ModelSummary": ["--trainer.callbacks.max_depth", "2"],
    "RichModelSummary": [],
    "RichProgressBar": [],
    "Timer": [],
    "WeightAveraging": [],
}


def test_every_callback_that_is_called_exact_is_tried_here() -> None:
    assert set(KNOWN) == CALLBACK_OPTIONS.keys()


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.parametrize("name", CALLBACK_OPTIONS)
def test_callback_resumes_exactly(
    name: str, send: Callable[[str, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Within an epoch, at its end, and after a signal in validation."""
    path = f"lightning.pytorch.callbacks.{name}"
    args = [*FIT, "--trainer.callbacks", path, *CALLBACK_OPTIONS[name]]
    if name == "Timer":
        args = [*FIT, "--trainer.max_time", "00:01:00:00"]
    args += [] if "ProgressBar" in name else QUIET
    if name == "BackboneFinetuning":
        args += ["--model", "test_resume_callbacks.Halves"]
    main([*args, "--trainer.default_root_dir", "straight"])
    caplog.set_level(logging.INFO)
    send("on_train_batch_start", 6)
    interrupted(args)
    send("on_train_epoch_end", 0)  # of the second epoch
    interrupted(["fit", "--run", str(RUN)])
    assert said(caplog) == EXACT
    send("validation_step", 1)
    interrupted(["fit", "--run", str(RUN)])
    assert said(caplog) == EXACT
    main(["fit", "--run", str(RUN)])
    assert said(caplog) == EXACT
    one, other = (load_checkpoint(path) for path in (Path("straight", *LAST.parts[1:]), LAST))
    for checkpoint in (one, other):
        del checkpoint["config"]
        for key, state in checkpoint["callbacks"].items():  # what has times and paths in it
            if "Checkpoint" in key or key == "Timer":
                checkpoint["callbacks"][key] = [v for v in state.values() if isinstance(v, Tensor)]
    same(one, other)


@pytest.mark.parametrize(
    ("callback", "exact"),
    [("Counts", False), ("Keeps", True), ("Stateless", True), ("StochasticWeightAveraging", False)],
)
def test_other_callbacks_are_exact_if_they_say_so(
    callback: str, exact: bool, send: Callable[[str, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    path = callback if "Weight" in callback else f"test_resume_callbacks.{callback}"
    lrs = ["--trainer.callbacks.swa_lrs", "0.1"] if "Weight" in callback else []
    lrs += ["--trainer.callbacks.device", "null"] if lrs else []
    send("on_train_batch_start", 6)
    interrupted([*FIT, *QUIET, "--trainer.callbacks", path, *lrs])
    caplog.set_level(logging.INFO)
    main(["fit", "--run", str(RUN), "--trainer.max_epochs", "4"])
    line = said(caplog)
    assert (line == EXACT) == exact
    assert exact or f"the callback {callback} is not known to resume exactly" in line


def test_nothing_is_saved_while_weights_are_swapped(send: Callable[[str, int], None]) -> None:
    args = [*FIT, *QUIET, "--trainer.callbacks", "test_resume_callbacks.Swaps"]
    main([*args, "--trainer.default_root_dir", "straight"])
    send("validation_step", 0)
    interrupted(args)
    main(["fit", "--run", str(RUN)])
    one, other = (load_checkpoint(path) for path in (Path("straight", *LAST.parts[1:]), LAST))
    same(one["state_dict"], other["state_dict"])
    same(one["live"], other["live"])


def test_looking_callbacks_may_change_and_others_are_named(
    send: Callable[[str, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    send("on_train_batch_start", 6)
    interrupted([*FIT, *QUIET])
    caplog.set_level(logging.INFO)
    resume = ["fit", "--run", str(RUN), "--trainer.callbacks"]
    send("on_train_batch_start", 0)
    interrupted([*resume, "LearningRateMonitor"])
    assert said(caplog) == EXACT
    main([*resume, "test_resume_callbacks.Stateless"])
    assert "other trainer.callbacks" in said(caplog)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_averaged_weights_are_not_taken_for_others(send: Callable[[str, int], None]) -> None:
    send("on_train_batch_start", 6)
    interrupted([*FIT, *QUIET, "--trainer.callbacks", "EMAWeightAveraging"])
    before = (RUN / "run.json").read_bytes()
    with pytest.raises(ValueError, match="cannot resume without the callback EMAWeightAveraging"):
        main(["fit", "--run", str(RUN), "--trainer.callbacks", "null"])
    assert (RUN / "run.json").read_bytes() == before


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch")
@pytest.mark.parametrize("number", [6, 4])  # within the second epoch, and at the end of the first
def test_plain_loaders_are_not_exact(
    number: int, send: Callable[[str, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    send("on_train_batch_start", number)
    own = ["fit", "--model", "MLP", "--data", "test_resume_callbacks.Plain", "--name", "synthetic"]
    own += ["--trainer.accelerator", "cpu", "--trainer.enable_model_summary", "false"]
    own += ["--preflight", "false", "--trainer.max_epochs", "2", *QUIET]
    interrupted(own)
    caplog.set_level(logging.INFO)
    main(["fit", "--run", str(RUN)])
    assert "Plain does not keep its place in the data" in said(caplog)


Change = Callable[[dict[str, Any]], Any]
REFUSED: dict[str, Change] = {
    "optimiser emptied": lambda c: c["optimizer_states"][0]["state"].clear(),
    "optimiser doubled": lambda c: c["optimizer_states"].extend(c["optimizer_states"][:]),
    "half of the optimiser": lambda c: c["optimizer_states"][0]["state"].pop(0),
    "no optimiser": lambda c: c.pop("optimizer_states"),
    "no schedule": lambda c: c["lr_schedulers"].clear(),
    "schedule emptied": lambda c: c["lr_schedulers"][0].clear(),
    "a generator": lambda c: c["callbacks"]["RNGState"]["ranks"][0].pop("numpy"),
    "progress": lambda c: c["loops"]["fit_loop"].pop("epoch_loop.batch_progress"),
}
DOUBTED: dict[str, tuple[Change, str]] = {
    "random state": (lambda c: c["callbacks"].pop("RNGState"), "lost callbacks.RNGState"),
    "data": (lambda c: c.pop("SyntheticDataModule"), "does not hold the place in the data"),
    "metrics": (lambda c: c.pop("train_metrics"), "does not hold the training metrics"),
    "settings": (lambda c: c.pop("config"), "does not hold the settings of its run"),
    "all that is new": (lambda c: c.pop("live"), "does not say what belongs to it"),
}


def test_a_checkpoint_that_lacks_something_is_refused_or_called_inexact(
    send: Callable[[str, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    send("on_train_batch_start", 6)
    interrupted([*FIT, *QUIET])
    whole, record = LAST.read_bytes(), (RUN / "run.json").read_bytes()
    for name, change in REFUSED.items():
        torch.save(changed(whole, change), LAST)
        with pytest.raises(ValueError, match="cannot resume"):
            main(["fit", "--run", str(RUN)])
        assert (RUN / "run.json").read_bytes() == record, name
    caplog.set_level(logging.INFO)
    for change, sentence in DOUBTED.values():
        torch.save(changed(whole, change), LAST)
        send("on_train_batch_start", 0)
        interrupted(["fit", "--run", str(RUN)])
        line = said(caplog)
        assert sentence in line
        assert EXACT not in line


def changed(checkpoint: bytes, change: Change) -> dict[str, Any]:
    LAST.write_bytes(checkpoint)
    content = load_checkpoint(LAST)
    change(content)
    return content


# Settings of the trainer, each of which is free, called inexact or refused when a run is resumed
BOUND = "precision fast_dev_run limit_train_batches limit_val_batches overfit_batches "
BOUND += "val_check_interval check_val_every_n_epoch accumulate_grad_batches gradient_clip_val "
BOUND += "gradient_clip_algorithm use_distributed_sampler barebones plugins sync_batchnorm "
BOUND += "reload_dataloaders_every_n_epochs"


def test_every_option_of_the_trainer_is_sorted() -> None:
    names = inspect.signature(L.Trainer).parameters.keys()
    free = {name for name in names if f"trainer.{name}".startswith(FREE)}
    inexact = {name for name in names if f"trainer.{name}".startswith((*DEVICES, CALLBACKS))}
    assert not free & inexact
    assert names - free - inexact == set(BOUND.split())
    neutral = {name for name in names if f"trainer.{name}".startswith(NEUTRAL)}
    assert free - neutral == {"max_epochs", "min_epochs", "max_steps", "min_steps", "max_time"}


# Runs that are finished


def test_a_run_that_max_steps_has_ended_is_left_alone() -> None:
    args = [*FIT, *QUIET, "--trainer.max_steps", "7", "--trainer.max_epochs", "9"]
    main(args)
    record = json.loads((RUN / "run.json").read_text())
    assert (record["stopped_by"], record["epochs"]) == ("max_steps", 2)
    files = {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="finished, after 7 steps: raise --trainer.max_steps 7"):
        main(["fit", "--run", str(RUN)])
    assert {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()} == files


def test_a_signal_after_the_last_step_leaves_the_rest_to_the_resume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a step more: the best weights, the pictures and the record."""
    from project.callbacks import PredictionGrid
    from project.engine.signals import Stopped

    drawn: list[str] = []

    def signalled(self: Any, trainer: L.Trainer, *_: Any) -> None:
        raise Stopped(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(PredictionGrid, "_draw", signalled)
        with pytest.raises(Stopped):
            main([*FIT, *QUIET])
    record = json.loads((RUN / "run.json").read_text())
    assert record["stopped_by"] == "SIGTERM"
    weights = load_checkpoint(LAST)["state_dict"]
    monkeypatch.setattr(PredictionGrid, "_draw", lambda *args: drawn.append(args[-1]))
    cli = main([*FIT, *QUIET, "--ckpt_path", "last"])
    assert len(drawn) == 1
    record = json.loads((RUN / "run.json").read_text())
    assert (record["stopped_by"], record["epochs"]) == ("max_epochs", 3)
    best = load_checkpoint(RUN / "checkpoints/best.ckpt")
    same(dict(cli.model.state_dict()), best["state_dict"])
    same(weights, load_checkpoint(LAST)["state_dict"])


def test_known_are_own_callbacks_and_subclasses_that_keep_their_state() -> None:
    assert is_known(Stateless())
    assert is_known(Keeps())
    assert not is_known(Counts())
    assert not is_known(L.pytorch.callbacks.LambdaCallback(on_fit_start=print))
    plateau = ["--model.lr_scheduler", "ReduceLROnPlateau", "--early_stopping.patience", "9"]
    options = ["--preflight", "true", "--trainer.max_epochs", "1"]
    trainer: Any = main([*FIT, *plateau, *options]).trainer
    assert [type(c).__name__ for c in trainer.callbacks if not is_known(c)] == []
