"""The insides of Lightning, torch, torchmetrics and TensorBoard are as the project uses them.

Each test has the name of what it checks: the one that fails says which inside has changed.
"""

import csv
import re
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader
from torchmetrics import SumMetric

from project.engine import internals, output_internals
from project.engine.profiler import PARTS, StepProfiler

QUIET: dict[str, Any] = {
    **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False),
    **{"enable_model_summary": False, "accelerator": "cpu", "num_sanity_val_steps": 0},
}


class Model(BoringModel):
    """Lightning's own model for tests, with what its loaders give cut to four batches."""

    def train_dataloader(self) -> Any:
        return DataLoader(torch.ones(4, 32))

    def val_dataloader(self) -> Any:
        return DataLoader(torch.ones(2, 32))


class Notes(Callback):
    """Records what a function of the trainer returns at the end of each batch."""

    def __init__(self, ask: Callable[[L.Trainer], Any]) -> None:
        self.ask, self.seen = ask, list[Any]()

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.seen.append(self.ask(trainer))


def fit(*callbacks: Callback, model: L.LightningModule | None = None, **kwargs: Any) -> L.Trainer:
    """Fit a tiny model for an epoch."""
    kind = kwargs.pop("kind", L.Trainer)
    trainer = kind(**QUIET | {"max_epochs": 1} | kwargs, callbacks=[*callbacks])
    trainer.fit(model or Model(), ckpt_path=None)
    return trainer


# The position within a fit.


def test_is_accumulating() -> None:
    notes = Notes(internals.is_accumulating)
    fit(notes, accumulate_grad_batches=2, limit_train_batches=3)
    assert notes.seen == [True, False, False]  # the last batch of an epoch leaves none


def test_validates_next() -> None:
    notes = Notes(internals.validates_next)
    fit(notes, val_check_interval=2, limit_train_batches=3)
    assert notes.seen == [False, True, False]


def test_may_stop() -> None:
    notes = Notes(internals.may_stop)
    fit(notes, min_steps=3, min_epochs=0)
    assert notes.seen == [False, False, True, True]


def test_repeat_validation() -> None:
    """The state of the loops says that validation stands in its first batch."""

    class Repeats(Callback):
        def on_validation_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
            if not hasattr(self, "state"):
                internals.repeat_validation(trainer)
                self.state = trainer.fit_loop.state_dict()

    repeats = Repeats()
    fit(repeats)
    current = repeats.state["epoch_loop.val_loop.batch_progress"]["current"]
    assert current == {"ready": 1, "started": 1, "processed": 0, "completed": 0}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a checkpoint written by Lightning at the end of an epoch."""
    path = tmp_path / "saved.ckpt"
    fit(Saves(path), model=Plateau())
    return path


class Saves(Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.save_checkpoint(self.path)


class Plateau(Model):
    """A model whose learning rate is a tenth after each epoch in which a metric does not rise."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("same", 1.0)
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=1.0)
        schedule = ReduceLROnPlateau(optimizer, patience=0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "monitor": "same", "interval": "epoch"},
        }


class Calls(Callback):
    """Calls functions at or before the end of an epoch, and records the learning rate."""

    def __init__(self, *, end: Any = None, start: Any = None) -> None:
        self.end, self.start, self.rates, self.starts = end, start, list[float](), 0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.start and not self.starts:
            self.start(trainer)
        self.starts += 1
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.end:
            self.end(trainer)


def resume(path: Path, *callbacks: Callback, kind: Any = L.Trainer, **kwargs: Any) -> L.Trainer:
    trainer = kind(**QUIET | {"max_epochs": 4} | kwargs, callbacks=[*callbacks])
    trainer.fit(Plateau(), ckpt_path=path, weights_only=False)
    return trainer


def test_step_plateau_schedules_and_step_all_schedules(saved: Path) -> None:
    """Both are needed for the learning rates of a run that was not interrupted."""
    whole, plain, mended = Calls(), Calls(), Calls()
    fit(whole, model=Plateau(), max_epochs=4)

    def step(trainer: L.Trainer) -> None:
        trainer.callback_metrics["same"] = torch.tensor(1.0)
        internals.step_plateau_schedules(trainer)

    mended.start, mended.end = step, internals.step_all_schedules
    resume(saved, plain)
    resume(saved, mended)
    assert mended.rates == whole.rates[1:] != plain.rates


def test_end_epoch_once(saved: Path) -> None:
    """With max_steps, a fit that resumes after an epoch would end that epoch once more."""

    class Begins(internals.StageTrainer):
        def run_stage(self, run: Callable[[], Any]) -> Any:
            internals.end_epoch_once(self)
            return run()

    plain, once = Ends(), Ends()
    resume(saved, plain, max_steps=12)
    resume(saved, once, kind=Begins, max_steps=12)
    assert (once.epochs, plain.epochs) == ([1, 2], [0, 1, 2])


class Ends(Callback):
    def __init__(self) -> None:
        self.epochs = list[int]()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.epochs.append(trainer.current_epoch)


def test_end_after() -> None:
    class Ends3(Callback):
        def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            internals.end_after(trainer, 3)

    trainer = fit(Ends3())
    assert trainer.global_step == trainer.max_steps == 3


def test_without_schedules() -> None:
    rates = Calls(start=internals.without_schedules)
    fit(rates, model=Plateau(), max_epochs=3)
    assert rates.rates == [1, 1, 1]


def test_training_modes() -> None:
    """What they say in validation is how the modules are trained afterwards."""

    class Freezes(Callback):
        def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            assert not pl_module.training
            assert internals.training_modes(trainer) == {"": True, "layer": True}
            internals.training_modes(trainer)["layer"] = False

    model = Model()
    fit(Freezes(), model=model)
    assert (model.training, model.layer.training) == (True, False)


def test_make_loader() -> None:
    class Looks(Callback):
        def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            self.sizes = [len(internals.make_loader(trainer, split)) for split in ("train", "val")]

    looks = Looks()
    fit(looks)
    assert looks.sizes == [4, 2]
    fit(looks, model=TrainOnly())
    assert looks.sizes == [4, 0]


class TrainOnly(Model):
    val_dataloader = L.LightningModule.val_dataloader
    validation_step = L.LightningModule.validation_step


def test_trainer_of() -> None:
    model = Model()
    assert internals.trainer_of(model) is None
    model.trainer = trainer = L.Trainer(**QUIET)
    assert internals.trainer_of(model) is trainer


def test_dump_checkpoint(saved: Path) -> None:
    """It has what a saved one has, by the names under which a resumed run looks for it."""

    class Dumps(Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            self.checkpoint = internals.dump_checkpoint(trainer)

    dumps = Dumps()
    fit(dumps)
    checkpoint = torch.load(saved, weights_only=True)
    assert dumps.checkpoint.keys() == checkpoint.keys()
    assert {"loops", "optimizer_states", "lr_schedulers", "state_dict"} <= checkpoint.keys()
    loop = checkpoint["loops"]["fit_loop"]
    counters = {"ready": 1, "started": 1, "processed": 1, "completed": 0}
    assert loop["epoch_progress"]["current"] == counters
    assert loop["epoch_loop.batch_progress"]["is_last_batch"] is True


def test_has_averaged() -> None:
    averaging = StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1)
    assert not internals.has_averaged(averaging)
    fit(averaging, max_epochs=3)
    assert internals.has_averaged(averaging)


def test_check_after_training() -> None:
    """It looks when it was told to, which Lightning would find out itself in `setup`."""

    class Late(EarlyStopping):
        def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
            internals.check_after_training(self, True)

    late = Late("same", patience=1)
    trainer = fit(late, model=Plateau(), max_epochs=9, limit_val_batches=0, val_check_interval=0.5)
    assert trainer.current_epoch == 2


def test_StageTrainer() -> None:  # noqa: N802
    """All is set up when the loops are run, and Lightning's handlers of signals are gone."""

    class Looks(internals.StageTrainer):
        def run_stage(self, run: Callable[[], Any]) -> Any:
            self.known = self.optimizers, signal.getsignal(signal.SIGTERM)
            return run()

    before = signal.getsignal(signal.SIGTERM)
    trainer: Any = fit(kind=Looks)
    assert trainer.known[0]
    assert trainer.known[1] == before
    assert trainer.global_step == 4


def test_a_checkpoint_names_the_state_of_each_callback() -> None:
    """Which `exact.py`, `resume.py` and `saving.py` read by these names."""
    best = ModelCheckpoint("folder", monitor="val/loss")
    assert best.state_key.startswith("ModelCheckpoint{")
    known = {"best_model_score", "best_model_path", "current_score", "dirpath", "best_k_models"}
    assert best.state_dict().keys() >= {*known, "kth_best_model_path"}
    stopping = EarlyStopping("val/loss")
    assert stopping.state_dict().keys() >= {"wait_count", "patience", "best_score"}
    assert {"stopping_reason", "stopping_reason_message", "stopped_epoch"} <= vars(stopping).keys()


# Several processes.


def test_process_rank() -> None:
    assert internals.process_rank() == 0


def test_bound_waiting() -> None:
    strategy = DDPStrategy(timeout=timedelta(seconds=9))
    attribute = next(k for k, v in vars(strategy).items() if v == timedelta(seconds=9))
    internals.bound_waiting(strategy, timedelta(seconds=3))
    assert vars(strategy)[attribute] == timedelta(seconds=3)


def test_backend() -> None:
    trainer = L.Trainer(**QUIET, strategy="ddp", devices=2)
    assert isinstance(trainer.strategy, DDPStrategy)
    assert internals.backend(trainer.strategy) == "gloo"


def test_started_processes() -> None:
    """It is the launcher's own list, since taking from it ends Lightning's watch over them."""
    trainer = L.Trainer(**QUIET, strategy="ddp", devices=2)
    trainer.strategy._configure_launcher()
    found = internals.started_processes(trainer)
    assert found == []
    assert found is trainer.strategy.launcher.procs  # type: ignore[union-attr]
    assert internals.started_processes(L.Trainer(**QUIET)) == []


# Loggers and the progress bar.


class Rows(output_internals.RowWriter):
    """A writer that keeps what is there."""

    def __init__(self, log_dir: str) -> None:
        self.calls = list[str]()
        super().__init__(log_dir)

    def begin(self) -> None:
        self.calls.append("begin")

    def rewrite(self, names: list[str]) -> None:
        self.calls.append("rewrite")
        super(output_internals.RowWriter, self)._rewrite_with_new_header(names)


def test_RowWriter(tmp_path: Path) -> None:  # noqa: N802
    """It takes over a file that Lightning's deletes, and is asked when the columns change."""
    (tmp_path / "metrics.csv").write_text("a,step\n1,0\n")
    writer = Rows(str(tmp_path))
    writer.metrics_keys = ["a", "step"]
    writer.log_metrics({"b": 2.0}, 1)
    writer.save()
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows == [{"a": "1", "b": "", "step": "0"}, {"a": "", "b": "2.0", "step": "1"}]
    assert writer.calls == ["begin", "rewrite"]
    with pytest.warns(UserWarning, match="will be deleted"):
        CSVLogger(str(tmp_path), "", "").log_metrics({"a": 1.0}, 0)
    assert not (tmp_path / "metrics.csv").exists()


def test_RowLogger(tmp_path: Path) -> None:  # noqa: N802
    class Logger(output_internals.RowLogger):
        def make_writer(self) -> Any:
            return Rows(self.log_dir)

    logger = Logger(str(tmp_path))
    logger.log_metrics({"a": 1.0}, 0)
    logger.finalize("success")
    assert isinstance(logger.experiment, Rows)
    assert Path(logger.log_dir, "metrics.csv").is_file()


def test_event_path_and_replace_event_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.summary.writer import event_file_writer
    from torch.utils.tensorboard import SummaryWriter

    class Writer:
        def __init__(self, records: Any, max_queue_size: int = 0, flush_secs: float = 0) -> None:
            self.records, paths[:] = records, [output_internals.event_path(records)]

        def write(self, record: bytes) -> None:
            records.append(record)

        def flush(self) -> None: ...

        def close(self) -> None:
            self.records.close()

    paths, records = list[Path](), list[bytes]()
    monkeypatch.setattr(event_file_writer, "_AsyncWriter", event_file_writer._AsyncWriter)
    output_internals.replace_event_writer(Writer)
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", 1.0)
    assert [path.parent for path in paths] == [tmp_path]
    assert paths[0].name.startswith("events.")
    assert any(b"loss" in record for record in records)


def test_ArrangedBar() -> None:  # noqa: N802
    """Each bar is arranged once, has the title that is given, and knows its metrics."""

    class Bar(output_internals.ArrangedBar):
        bars, titles, texts = 0, set[str](), list[str]()

        def arrange(self, trainer: L.Trainer, bar: Any) -> None:
            assert bar.columns
            self.bars += 1

        def describe(self, epoch: int) -> str:
            return f"{super().describe(epoch)}!"

        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            super().on_train_epoch_end(trainer, pl_module)
            self.titles |= {task.description for task in self.progress.tasks}  # type: ignore[union-attr]
            self.texts = [str(text) for text in self.metric_texts()]

    class Logs(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("shown", 2.0, prog_bar=True)
            return super().training_step(batch, batch_idx)

    bar = Bar()
    fit(bar, model=Logs(), max_epochs=2, enable_progress_bar=True)
    assert bar.bars == 1
    assert any(re.fullmatch(r"Epoch 1/1 *!", title.strip()) for title in bar.titles)
    assert any("shown" in text and "2.0" in text for text in bar.texts)


def test_profiled_actions() -> None:
    """Every part of a step that `profiler.py` tells apart has an action of Lightning's."""
    profiler = StepProfiler()
    fit(Notes(lambda _: None), profiler=profiler)
    assert profiler.recorded_durations["run_training_batch"]
    for name, pattern in PARTS.items():
        assert any(re.search(pattern, action) for action in profiler.recorded_durations), name


# Metrics, layers and optimisers.


@pytest.mark.filterwarnings("error")
def test_count_as_updated() -> None:
    metric = SumMetric()
    metric.sum_value = torch.tensor(3.0)
    internals.count_as_updated(metric)
    assert metric.compute() == 3


def test_merge_state() -> None:
    metric, other = SumMetric(), SumMetric()
    metric.update(1.0)
    other.update(2.0)
    internals.merge_state(metric, other.metric_state)
    assert metric.compute() == 3


class Same(internals.ConvertedMetric, SumMetric):
    def conversion(self, fn: internals.Convert) -> internals.Convert:
        return lambda tensor: tensor


def test_ConvertedMetric() -> None:  # noqa: N802
    """A cast passes through `conversion`, and `set_dtype` does not."""
    metric = Same()
    metric.update(1.0)
    metric.to(torch.float16)
    assert metric.metric_state["sum_value"].dtype == torch.float32  # type: ignore[union-attr]
    metric.set_dtype(torch.float64)
    assert metric.metric_state["sum_value"].dtype == torch.float64  # type: ignore[union-attr]


def test_convert_states() -> None:
    metric = SumMetric()
    metric.update(1.0)
    internals.convert_states(metric, Tensor.double)
    assert metric.metric_state["sum_value"].dtype == torch.float64  # type: ignore[union-attr]
    metric.reset()
    assert metric.metric_state["sum_value"].dtype == torch.float64  # type: ignore[union-attr]


def test_BatchNorm() -> None:  # noqa: N802
    kinds = [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.LazyBatchNorm2d]
    assert all(issubclass(kind, internals.BatchNorm) for kind in kinds)


def test_Dropout() -> None:  # noqa: N802
    kinds = [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout]
    assert all(issubclass(kind, internals.Dropout) for kind in kinds)


def test_unscales_itself() -> None:
    weights = [nn.Parameter(torch.zeros(1))]
    assert internals.unscales_itself(AdamW(weights, fused=True))
    assert not internals.unscales_itself(AdamW(weights))
