"""The values that a run logs, read back from its event files and its metrics.csv."""

import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import OneCycleLR

from project.callbacks import (
    BestCheckpoint,
    FiniteCheck,
    LastCheckpoint,
    RNGState,
    RunRecord,
    StepMonitor,
    WeightHistogramMonitor,
    run_checkpoints,
)
from project.commands.cli import main
from project.data import SyntheticDataModule
from project.engine import step_monitor as monitors
from project.engine.checkpoint_io import AtomicCheckpointIO, load_checkpoint
from project.engine.loggers import run_loggers
from project.engine.restore_best import RestoreBest
from project.engine.settings_record import SettingsRecord
from project.models import MLP
from project.runs.folder import BEST, LAST

RUN = Path("runs/synthetic/version_0")
OFF = {"enable_progress_bar": False, "enable_model_summary": False}
CONFIG = {
    "name": "synthetic",
    "seed_everything": 0,
    "model": {
        "class_path": "MLP",
        "init_args": {"optimizer": {"class_path": "AdamW", "init_args": {"lr": 0.25}}},
    },
    "data": {"class_path": "SyntheticDataModule", "init_args": {"batch_size": 8, "flip": True}},
    "trainer": {"max_time": None},
}


class Stopped(Exception):
    """As by a kill."""


class Kill(L.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise Stopped


def fit(
    callbacks: list[L.Callback],
    model: L.LightningModule | None = None,
    run: Path = RUN,
    resume: bool = False,
    saves: bool = True,
    **options: Any,
) -> L.Trainer:
    """Train with 13 batches an epoch, as the command line does; a run can be resumed."""
    first_step = load_checkpoint(run / LAST)["global_step"] if resume else 0
    L.seed_everything(0, verbose=False)
    data = SyntheticDataModule(104, 24, 0, image_size=8, batch_size=8)
    model = model or MLP([16], in_channels=3, image_size=8, lr_scheduler=OneCycleLR)
    if saves:
        last = LastCheckpoint(every_n_steps=4)
        callbacks = [
            RunRecord(run, CONFIG, []),
            RestoreBest(run),
            *callbacks,
            *run_checkpoints(run, "val/loss", "min", last),
        ]
    defaults: dict[str, Any] = {
        "max_epochs": 3,
        "accelerator": "cpu",
        "log_every_n_steps": 5,
        "logger": run_loggers(run, first_step),
        "plugins": [AtomicCheckpointIO()],
        "callbacks": [RNGState(), *callbacks],
        **OFF,
    }
    trainer = L.Trainer(**defaults | options)
    trainer.fit(model, data, ckpt_path=str(run / LAST) if resume else None, weights_only=True)
    return trainer


def rows(name: str, run: Path = RUN) -> list[tuple[int, float]]:
    """Return the step and the value of each row that has a metric."""
    with (run / "metrics.csv").open(newline="") as file:
        return [(int(row["step"]), float(row[name])) for row in csv.DictReader(file) if row[name]]


def events(run: Path = RUN) -> EventAccumulator:
    sizes = {"scalars": 0, "tensors": 0, "histograms": 0}
    return EventAccumulator(str(run), size_guidance=sizes).Reload()


def points(read: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read.Scalars(tag)]


# The gradient norm


class Reference(MLP):
    """Knows the norm of its gradients from a backward pass of its own, which nothing scales."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__([16], in_channels=3, image_size=8, **kwargs)
        self.norms: dict[int, float] = {}
        self.sums: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        gradients = torch.autograd.grad(loss, list(self.parameters()), retain_graph=True)
        sums = self.sums or [torch.zeros_like(g) for g in gradients]
        pairs = zip(sums, gradients, strict=True)
        self.sums = [s + g / self.trainer.accumulate_grad_batches for s, g in pairs]
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        squares = sum(float((g.double() ** 2).sum()) for g in self.sums)
        self.norms[self.global_step], self.sums = squares**0.5, []


def fp16() -> MixedPrecision:
    """As on a GPU: on a CPU, Lightning takes bfloat16 for 16-mixed."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))


CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], float]] = {
    "plain": (AdamW, {}, 1e-5),
    "clipped": (AdamW, {"gradient_clip_val": 1e-3}, 1e-5),
    "clipped by value": (
        AdamW,
        {"gradient_clip_val": 1e-3, "gradient_clip_algorithm": "value"},
        1e-5,
    ),
    "accumulated": (AdamW, {"accumulate_grad_batches": 2}, 1e-5),
    # Twice fp16: scaled and not, both rounded.
    "fp16, clipped": (AdamW, {"plugins": fp16, "gradient_clip_val": 1e-3}, 0.02),
    "fp16, fused": (partial(AdamW, fused=True), {"plugins": fp16}, 0.02),
}


@pytest.mark.parametrize("case", CASES)
def test_gradient_norm_is_that_before_clipping_and_after_unscaling(case: str) -> None:
    optimizer, options, tolerance = CASES[case]
    options = {k: [v(), AtomicCheckpointIO()] if v is fp16 else v for k, v in options.items()}
    model = Reference(optimizer=optimizer)
    fit([StepMonitor()], model, **options)
    written = dict(rows("grad_norm"))
    expected = [step for step in model.norms if (step + 1) % 5 == 0]
    assert list(written) == expected
    assert len(expected) == (4 if "accumulate_grad_batches" in options else 7)
    for step, norm in written.items():
        assert norm == pytest.approx(model.norms[step], rel=tolerance)
        assert norm > 0.1  # far from what clipping leaves
    assert points(events(), "grad_norm") == [pytest.approx(row) for row in written.items()]


def test_frozen_parameters_have_no_share() -> None:
    model = MLP([16], in_channels=3, image_size=8)
    next(model.parameters()).requires_grad_(False)
    fit([StepMonitor()], model)
    assert len(rows("grad_norm")) == 7


def test_it_is_computed_on_logged_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(gradients: list[torch.Tensor]) -> torch.Tensor:
        calls.append(len(gradients))
        return torch.ones(())

    monkeypatch.setattr(monitors, "get_total_norm", counted)
    fit([StepMonitor()], accumulate_grad_batches=3)
    steps = [step for step, _ in rows("grad_norm")]
    assert steps == [4, 9, 14]
    assert len(calls) == 3
    assert steps == sorted({step for step, _ in rows("train/loss_step")})
    fit([StepMonitor()], run=Path("runs/synthetic/version_1"), log_every_n_steps=0)
    assert len(calls) == 3


def test_a_resumed_run_has_the_same_rows(tmp_path: Path) -> None:
    other = Path("runs/synthetic/version_1")
    fit([StepMonitor()])
    for step in (11, 15, 30):  # before which the last saves are at 8, 13 and 28
        with pytest.raises(Stopped):
            fit([StepMonitor(), Kill(step)], run=other, resume=step > 11)
    fit([StepMonitor()], run=other, resume=True)
    assert rows("grad_norm", other) == rows("grad_norm")
    assert len(rows("grad_norm")) == 7
    assert points(events(other), "grad_norm") == points(events(), "grad_norm")


# Images per second


class Clock:
    def __init__(self) -> None:
        self.now = 0.5

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


class Timed(MLP):
    """A batch takes a second, later two, and all else much longer."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        CLOCK.now += 1 if self.global_step < 10 else 2
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        CLOCK.now += 100
        super().validation_step(batch, batch_idx)


class SlowIO(AtomicCheckpointIO):
    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        CLOCK.now += 1000
        super().save_checkpoint(*args, **kwargs)


class SlowEnd(L.Callback):
    def on_train_epoch_end(self, *_: Any) -> None:
        CLOCK.now += 10000


PACES: list[dict[str, int]] = [{}, {"val_check_interval": 3}, {"check_val_every_n_epoch": 3}]
PACES += [{"accumulate_grad_batches": 2}, {"log_every_n_steps": 1}]


@pytest.mark.parametrize("options", PACES, ids=str)
def test_images_per_second_are_of_training_alone(
    options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitors, "time", SimpleNamespace(perf_counter=CLOCK))
    model = Timed([16], in_channels=3, image_size=8)
    fit([StepMonitor(), SlowEnd()], model, plugins=[SlowIO()], **options)
    written = rows("images_per_s")
    assert [rate for _, rate in written] == [8.0 if step < 10 else 4.0 for step, _ in written]
    steps = sorted({step for step, _ in rows("train/loss_step")})
    assert [step for step, _ in written] == steps
    assert len(steps) >= 4


# TensorBoard


def test_the_curves_of_a_run() -> None:
    """Each has a point on each step that is its own, also by the loggers of the command line."""
    fit([StepMonitor(), LearningRateMonitor()])
    read = events()
    epochs, logged = [12, 25, 38], [4, 9, 14, 19, 24, 29, 34]
    expected = dict.fromkeys(("train/loss", "train/acc", "val/loss", "val/acc"), epochs)
    expected |= dict.fromkeys(("train/loss_step", "lr", "grad_norm", "images_per_s"), logged)
    assert expected.keys() | {"epoch"} == set(read.Tags()["scalars"])
    for tag, steps in expected.items():
        assert [step for step, _ in points(read, tag)] == steps, tag
        assert points(read, tag) == [pytest.approx(row) for row in rows(tag)]  # float32 there


def test_weight_histograms() -> None:
    model = MLP([16], in_channels=3, image_size=8)
    fit([WeightHistogramMonitor(every_n_epochs=2)], model, max_epochs=4, saves=False)
    read = events()
    parameters = dict(model.named_parameters())
    assert set(read.Tags()["histograms"]) == {f"weights/{name}" for name in parameters}
    for name, parameter in parameters.items():
        shown = read.Histograms(f"weights/{name}")
        assert [event.step for event in shown] == [25, 51]
        last = shown[-1].histogram_value  # of the weights as they are at the end
        assert (last.num, last.max) == (parameter.numel(), parameter.max().item())
        assert last.sum == pytest.approx(parameter.sum().item(), abs=1e-4)


def test_weight_histograms_from_the_command_line_and_in_bfloat16() -> None:
    args = ["fit", "--config", "synthetic", "--model", "MLP", "--model.hidden_sizes", "[16]"]
    args += ["--data.train_size", "16", "--data.val_size", "8", "--data.test_size", "0"]
    args += ["--data.image_size", "8", "--data.batch_size", "8", "--trainer.max_epochs", "2"]
    args += ["--trainer.accelerator", "cpu", "--trainer.precision", "bf16-true"]
    args += ["--trainer.callbacks+", "WeightHistogramMonitor"]
    main([*args, "--trainer.callbacks.every_n_epochs", "2"])
    read = events()
    tags = read.Tags()["histograms"]
    assert len(tags) == 6
    assert {event.step for tag in tags for event in read.Histograms(tag)} == {3}


def test_histograms_that_go_nowhere() -> None:
    with pytest.warns(UserWarning, match="no histograms are written: the run has no TensorBoard"):
        fit([WeightHistogramMonitor()], logger=False, max_epochs=1)
    with pytest.raises(ValueError, match="every_n_epochs 0 must be at least 1"):
        WeightHistogramMonitor(0)


def settings(read: EventAccumulator) -> dict[str, Any]:
    """Return the hyperparameters of a run, as TensorBoard reads them."""
    content = read.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    start = HParamsPluginData.FromString(content).session_start_info
    return {name: v.string_value or v.number_value for name, v in start.hparams.items()}


def configs(read: EventAccumulator) -> list[Any]:
    """Return the configurations that TensorBoard shows."""
    texts = [event.tensor_proto.string_val[0] for event in read.Tensors("config/text_summary")]
    fenced = [text.decode().removeprefix("```yaml\n") for text in texts]
    assert all(text.endswith("\n```") for text in fenced)
    return [yaml.safe_load(text.removesuffix("```")) for text in fenced]


def test_settings_and_best_metrics() -> None:
    other = ModelCheckpoint(every_n_epochs=3)  # of the user; it comes first
    fit([SettingsRecord(CONFIG), other], log_every_n_steps=0)
    read = events()
    assert configs(read) == [CONFIG]
    assert settings(read) == {
        **{"name": "synthetic", "seed_everything": 0},
        **{"model": "MLP", "model.optimizer": "AdamW", "model.optimizer.lr": 0.25},
        **{"data": "SyntheticDataModule", "data.batch_size": 8, "data.flip": "True"},
    }
    best = load_checkpoint(RUN / BEST)["metrics"]
    assert best.keys() == {"val/loss", "val/acc"}
    for name, value in best.items():
        assert points(read, f"best/{name}") == [(39, pytest.approx(value))]
        assert [step for step, _ in points(read, name)] == [12, 25, 38]  # no stray point
    assert "hp_metric" not in read.Tags()["scalars"]


def test_a_resumed_run_shows_nothing_twice() -> None:
    def again(*callbacks: L.Callback, **options: Any) -> None:
        fit([SettingsRecord(CONFIG), *callbacks], model(), resume=True, **options)

    def model() -> MLP:
        return MLP([16], in_channels=3, image_size=8)

    with pytest.raises(Stopped):
        fit([SettingsRecord(CONFIG), Kill(15)], model())
    with pytest.raises(Stopped):
        again(Kill(30))
    assert "best/val/loss" not in events().Tags()["scalars"]
    again()
    again(max_epochs=4)  # of a finished run
    read = events()
    assert configs(read) == [CONFIG]
    assert len(list(RUN.glob("events.*"))) == 4
    best = load_checkpoint(RUN / BEST)["metrics"]["val/loss"]
    assert points(read, "best/val/loss") == [(52, pytest.approx(best))]


def test_without_the_run_record_or_checkpoints() -> None:
    record = SettingsRecord(CONFIG)
    best, _ = run_checkpoints(RUN, "val/acc", "max", LastCheckpoint())
    fit([record, best], saves=False, max_epochs=1)
    assert isinstance(best, BestCheckpoint)
    score = float(best.best_model_score or -1)  # of the monitor, which is all that is known
    assert points(events(), "best/val/acc") == [(13, pytest.approx(score))]
    other = Path("runs/synthetic/version_1")
    fit([record], run=other, saves=False, enable_checkpointing=False, max_epochs=1)
    assert configs(events(other)) == [CONFIG]
    assert not any(tag.startswith("best") for tag in events(other).Tags()["scalars"])


def test_training_is_the_same_with_all_of_them() -> None:
    all_of_them: list[L.Callback] = [StepMonitor()]
    all_of_them += [WeightHistogramMonitor(), SettingsRecord(CONFIG), FiniteCheck()]
    ends = []
    for version, callbacks in enumerate(([], all_of_them)):
        torch.manual_seed(0)
        model = MLP([16], in_channels=3, image_size=8, optimizer=partial(SGD, lr=0.1))
        fit(callbacks, model, Path(f"runs/synthetic/version_{version}"))
        ends.append([*model.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
