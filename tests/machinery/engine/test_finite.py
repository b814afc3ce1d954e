"""A run whose numbers are no longer finite stops, says why, and keeps its good checkpoints."""

import math
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from project.callbacks import FiniteCheck, LastCheckpoint, run_checkpoints
from project.data import SyntheticDataModule
from project.engine.checkpoint_io import AtomicCheckpointIO, load_checkpoint
from project.engine.finite import all_finite
from project.models import MLP
from project.runs.folder import BEST, LAST

ROOT = Path(__file__).parents[3]
RUN = Path("runs/synthetic/version_0")
OFF = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


class Ring(FiniteCheck):
    """As on a device whose values are slow to read."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._each_step = False


class Faulty(MLP):
    """A network whose loss is not finite at one batch of the run."""

    def __init__(self, at: int = -1, value: float = math.nan) -> None:
        super().__init__([16], in_channels=3, image_size=8, optimizer=partial(SGD, lr=0.125))
        self.at, self.value, self.batches = at, value, 0
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.item())
        self.batches += 1
        return loss * self.value if self.batches == self.at + 1 else loss


def fit(
    model: L.LightningModule, check: L.Callback, every_n_steps: int = 0, **options: Any
) -> L.Trainer:
    """Train with 13 batches an epoch and both checkpoints."""
    saves = run_checkpoints(RUN, "val/loss", "min", LastCheckpoint(every_n_steps=every_n_steps))
    data = SyntheticDataModule(104, 24, 0, image_size=8, batch_size=8)
    defaults: dict[str, Any] = {"max_epochs": 4, "logger": False, "log_every_n_steps": 5, **OFF}
    defaults |= {"plugins": [AtomicCheckpointIO()], "callbacks": [check, *saves]}
    trainer = L.Trainer(**defaults | options)
    trainer.fit(model, data)
    return trainer


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("check", "stops_at"), [(FiniteCheck, 17), (Ring, 19)])
def test_the_first_bad_loss_is_named(check: type[FiniteCheck], stops_at: int, value: float) -> None:
    model = Faulty(17, value)
    with pytest.raises(ValueError, match="the training loss is") as error:
        fit(model, check())
    where, before, tensors, causes, saved = str(error.value).splitlines()
    assert where == f"the training loss is {value} at step 17 (epoch 2, batch 4)."
    last = ", ".join(f"{loss:.4g}" for loss in model.losses[14:17])
    assert before == f"Last finite losses: {last}"
    assert model.global_step == stops_at
    if check is FiniteCheck:  # before the optimiser's step
        assert "the values of 0 of 9 tensors, the gradients of 6 of 6 tensors (" in tensors
        assert all_finite(model.parameters())
    else:
        assert "the values of 8 of 9 tensors (layers.1.weight, layers.1.bias, layers.2" in tensors
        assert ", …)" in tensors
    assert "the learning rate is too high (0.125 at present)" in causes
    assert "log(0)" in causes
    assert "fp16" not in causes
    assert saved.startswith(f"Last good checkpoint: {RUN / LAST}, from which --init_from {RUN}/")


def test_a_single_bad_parameter_is_named() -> None:
    model = Faulty()

    class Poison(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
            if trainer.global_step == 3:
                with torch.no_grad():
                    model.layers[-1].bias[2] = math.inf

    with pytest.raises(ValueError, match="step 3 .*epoch 1, batch 3") as error:
        fit(model, FiniteCheck(), callbacks=[FiniteCheck(), Poison()])
    assert "values of 1 of 9 tensors (layers.5.bias), the gradients of " in str(error.value)
    assert "Last good checkpoint: none" in str(error.value)


@pytest.mark.parametrize("check", [FiniteCheck, Ring])
def test_accumulation(check: type[FiniteCheck]) -> None:
    """The batch is named, within the window of the step, and losses are as the model had them."""
    model = Faulty(16)
    with pytest.raises(ValueError, match=r"nan at step 6 \(epoch 2, batch 3\)") as error:
        fit(model, check(), accumulate_grad_batches=3)
    last = ", ".join(f"{loss:.4g}" for loss in model.losses[13:16])
    assert f"Last finite losses: {last}\n" in str(error.value)


# Checkpoints


class Snapshots(L.Callback):
    """The files as they were before the batch."""

    def __init__(self) -> None:
        self.files: dict[Path, bytes] = {}

    def on_train_batch_start(self, *_: Any) -> None:
        self.files = {
            path: (RUN / path).read_bytes() for path in (BEST, LAST) if (RUN / path).exists()
        }


def check_kept(before: dict[Path, bytes]) -> None:
    for path in (BEST, LAST):
        assert (RUN / path).read_bytes() == before[path]
        assert all_finite(load_checkpoint(RUN / path)["state_dict"].values())
    assert {path.name for path in (RUN / LAST).parent.iterdir()} == {"last.ckpt", "best.ckpt"}


@pytest.mark.parametrize("at", [20, 25])  # within the second epoch, and its last batch
@pytest.mark.parametrize("every_n_steps", [0, 1])
def test_bad_losses_leave_the_checkpoints(at: int, every_n_steps: int) -> None:
    """The save that comes first finds them, where no step is logged before."""
    model, snapshots = Faulty(at), Snapshots()
    callbacks = [Ring(), snapshots, *run_checkpoints(RUN, "val/loss", "min", LastCheckpoint())]
    callbacks[-1].every_n_steps = every_n_steps  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=f"nan at step {at} "):
        fit(model, Ring(), callbacks=callbacks, log_every_n_steps=0)
    assert model.global_step == (21 if every_n_steps and at == 20 else 26)
    check_kept(snapshots.files)


@pytest.mark.parametrize("name", ["layers.1.weight", "layers.2.running_var"])
@pytest.mark.parametrize("stage", ["train", "validation"])
def test_bad_weights_are_not_saved(name: str, stage: str) -> None:
    """Also where every loss was finite: by `best.ckpt` after validation, and by `last.ckpt`."""

    class Poison(Snapshots):
        def poison(self, trainer: L.Trainer, model: L.LightningModule) -> None:
            if trainer.global_step == 26:
                with torch.no_grad():
                    model.state_dict()[name].view(-1)[-1] = math.nan

        def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if stage == "validation":
                self.poison(trainer, pl_module)

        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if stage == "train":
                self.poison(trainer, pl_module)

    poison = Poison()
    model = Faulty()
    saves = run_checkpoints(RUN, "val/loss", "min", LastCheckpoint())
    with pytest.raises(ValueError, match="the weights are not finite after 26 steps") as error:
        fit(model, FiniteCheck(), callbacks=[FiniteCheck(), poison, *saves])
    assert f"the values of 1 of 9 tensors ({name})" in str(error.value)
    check_kept(poison.files)


def test_the_end_of_an_epoch_finds_it_where_nothing_is_logged_or_saved() -> None:
    model, options = Faulty(20), {"enable_checkpointing": False, "log_every_n_steps": 0}
    with pytest.raises(ValueError, match="nan at step 20 ") as error:
        fit(model, Ring(), callbacks=[Ring()], **options)
    assert model.global_step == 26
    assert "Last good checkpoint: none" in str(error.value)


def test_a_run_that_stays_finite() -> None:
    trainer = fit(Faulty(), Ring(), every_n_steps=3)
    assert trainer.global_step == 52
    assert load_checkpoint(RUN / LAST)["global_step"] == 52


# Reading as seldom as possible


def test_a_device_is_read_on_logged_steps_and_epoch_ends_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[tuple[int, int]] = []
    look = FiniteCheck._look

    def counted(self: FiniteCheck, trainer: L.Trainer) -> None:
        if self._pending:
            reads.append((trainer.global_step, len(self._pending)))
        look(self, trainer)

    monkeypatch.setattr(FiniteCheck, "_look", counted)
    fit(Faulty(), Ring(), max_epochs=1)
    assert reads == [(4, 5), (9, 5), (13, 3)]
    reads.clear()
    monkeypatch.setattr("project.engine.finite.MAX_PENDING", 6)
    fit(Faulty(), Ring(), max_epochs=1, log_every_n_steps=0)
    assert reads == [(5, 6), (11, 6), (13, 1)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_finite(bad: float, dtype: torch.dtype) -> None:
    tensors = [torch.ones(3, dtype=torch.int64), torch.zeros(0), torch.full((2, 2), 3e38)]
    assert all_finite(tensors)
    assert all_finite([])
    for size in (1, 7, 1001):
        for i in {0, size // 2, size - 1}:
            values = torch.zeros(size, dtype=dtype)
            assert all_finite([*tensors, values])
            values[i] = bad
            assert not all_finite([*tensors, values])
            assert not all_finite([values, *tensors])


# Other models and precisions


class Regression(L.LightningModule):
    """None of the project's: a dict as output, batches of one tensor, a manual step if asked."""

    def __init__(self, manual: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.automatic_optimization = not manual

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        loss = (self.layer(batch) ** 2).mean()
        loss = loss.log() * 0 if batch_idx == 3 else loss
        loss = (loss * 0).log() if batch_idx == 3 else loss
        if not self.automatic_optimization:
            self.manual_backward(loss)
        return {"loss": loss, "other": 1}

    def configure_optimizers(self) -> SGD:
        return SGD(self.parameters(), lr=0.0625)


@pytest.mark.parametrize("manual", [False, True])
def test_any_module(manual: bool) -> None:
    off = {"logger": False, "enable_checkpointing": False, "log_every_n_steps": 1, **OFF}
    trainer = L.Trainer(max_epochs=1, callbacks=[FiniteCheck()], **off)  # type: ignore[arg-type]
    batches = DataLoader(torch.ones(8, 4), batch_size=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"is -inf at step . \(epoch 1, batch 3\)") as error:
        trainer.fit(Regression(manual), batches)
    assert "the gradients of 2 of 2 tensors (layer.weight, layer.bias)" in str(error.value)


def test_fp16() -> None:
    """A step that the scaler skips is no fault; losses are shown without their factor."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)  # the first gradients overflow
    model = Faulty(30)
    plugins = [MixedPrecision("16-mixed", "cpu", scaler), AtomicCheckpointIO()]
    with pytest.raises(ValueError, match=r"nan at step 30 ") as error:
        fit(model, FiniteCheck(), plugins=plugins)
    assert scaler.get_scale() < 2.0**24
    assert "a value above 65504, the largest of fp16 (use bf16-mixed" in str(error.value)
    (line,) = re.findall("Last finite losses: (.*)", str(error.value))
    shown = [float(loss) for loss in line.split(", ")]
    assert shown == pytest.approx(model.losses[27:30], rel=1e-3)


# Two processes

SCRIPT = """
import sys
from pathlib import Path
from types import SimpleNamespace
import lightning as L
import torch
from project.callbacks import *
from project.engine import step_monitor as monitors
from project.engine.checkpoint_io import AtomicCheckpointIO
from project.data import SyntheticDataModule
from project.engine.loggers import run_loggers
from project.models import MLP

fault, each_step = sys.argv[1], sys.argv[2] == "each-step"
run, clock = Path("runs/synthetic/version_0"), SimpleNamespace(now=1.0)
monitors.time = SimpleNamespace(perf_counter=lambda: clock.now)

class Model(MLP):
    def training_step(self, batch, batch_idx):
        clock.now += 1
        loss = super().training_step(batch, batch_idx)
        at_fault = self.global_rank == 1 and self.global_step == 17
        return loss * float("nan") if fault == "loss" and at_fault else loss

    def on_before_optimizer_step(self, optimizer):
        if (self.global_step + 1) % 5 == 0:
            squares = sum(float((p.grad.double() ** 2).sum()) for p in self.parameters())
            with open(f"norms.{self.global_rank}", "a") as file:
                print(self.global_step, squares**0.5, file=file)

    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        if fault == "weights" and self.global_rank == 1 and self.current_epoch == 1:
            self.layers[2].running_var[0] = float("nan")

class Logger(L.pytorch.loggers.CSVLogger):  # what each rank would write
    def log_metrics(self, metrics, step=None):
        with open(f"rows.{torch.distributed.get_rank()}", "a") as file:
            for name in sorted(metrics.keys() & {"grad_norm", "images_per_s"}):
                print(name, step, metrics[name], file=file)

class Check(FiniteCheck):
    def on_train_start(self, trainer, pl_module):
        super().on_train_start(trainer, pl_module)
        self._each_step = each_step

saves = run_checkpoints(run, "val/loss", "min", LastCheckpoint())
callbacks = [Check(), StepMonitor(), *saves]
off = dict.fromkeys(("enable_progress_bar", "enable_model_summary"), False)
trainer = L.Trainer(
    max_epochs=3, accelerator="cpu", devices=2, strategy="ddp", log_every_n_steps=5,
    logger=Logger("."), plugins=[AtomicCheckpointIO()], callbacks=callbacks, **off,
)
data = SyntheticDataModule(104, 24, 0, image_size=8, batch_size=8)
L.seed_everything(0)
try:
    trainer.fit(Model([16], in_channels=3, image_size=8), data)
except ValueError as error:
    Path(f"error.{trainer.global_rank}").write_text(str(error))
    raise
"""


def two_processes(folder: Path, *args: str) -> tuple[int, str]:
    """Return the exit code and the output; what each rank raised is in `error.<rank>`."""
    (folder / "script.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "script.py", *args]
    pipe = subprocess.PIPE
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=pipe, stderr=subprocess.STDOUT, timeout=120
    )
    return done.returncode, done.stdout.decode()


@pytest.mark.parametrize("check", ["each-step", "ring"])
def test_all_ranks_stop_when_one_has_a_bad_loss(check: str, tmp_path: Path) -> None:
    code, output = two_processes(tmp_path, "loss", check)
    assert code != 0, output
    for rank in (0, 1):
        error = (tmp_path / f"error.{rank}").read_text()
        assert error.startswith("the training loss is nan at step 17 (epoch 2, batch 4).\n")
        assert f"Last good checkpoint: {RUN / LAST}" in error
    saved = load_checkpoint(tmp_path / RUN / LAST)
    assert saved["global_step"] == 13
    assert all_finite(saved["state_dict"].values())
    check_rows(tmp_path)


def check_rows(folder: Path) -> None:
    """Both ranks measured the same until then: the norm of the mean gradient, images of both."""
    texts = [(folder / f"rows.{rank}").read_text() for rank in (0, 1)]
    assert texts[0] == texts[1]
    rows = [line.split() for line in texts[0].splitlines()]
    assert [step for _, step, _ in rows] == ["4", "4", "9", "9", "14", "14"]
    norms = [float(line.split()[1]) for line in (folder / "norms.0").read_text().splitlines()]
    found = [float(value) for name, _, value in rows if name == "grad_norm"]
    assert found == pytest.approx(norms, rel=1e-5)
    rates = {float(value) for name, _, value in rows if name == "images_per_s"}
    assert rates == {8.0}  # a step, of 8 images, takes a second


def test_all_ranks_stop_when_one_has_bad_weights(tmp_path: Path) -> None:
    code, output = two_processes(tmp_path, "weights", "ring")
    assert code != 0, output
    for rank, bad in ((0, "0 of 9 tensors,"), (1, "1 of 9 tensors (layers.2.running_var)")):
        error = (tmp_path / f"error.{rank}").read_text()
        assert error.startswith("the weights are not finite after 26 steps")
        assert f"the values of {bad}" in error
    assert load_checkpoint(tmp_path / RUN / LAST)["global_step"] == 13
