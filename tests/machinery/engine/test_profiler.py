"""Where the time of a step goes: in the right part, and in words."""

import time
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from project.commands.cli import main
from project.data import SyntheticDataModule
from project.engine.profiler import StepProfiler
from project.engine.transforms import BatchTransform
from project.engine.values import Batch
from project.models import MLP

PAUSE_S = 0.05


class SlowCallback(Callback):
    def on_train_batch_end(self, *_: Any) -> None:
        time.sleep(PAUSE_S)


class SlowWithinTheStep(Callback):
    def on_after_backward(self, *_: Any) -> None:
        time.sleep(PAUSE_S)


class SlowLoss(MLP):
    def training_step(self, *args: Any) -> Any:
        time.sleep(PAUSE_S)
        return super().training_step(*args)


class SlowOptimizer(MLP):
    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        time.sleep(PAUSE_S)


class Slowly(BatchTransform):
    def __call__(self, inputs: Any, targets: Any, u: Tensor) -> Batch:
        time.sleep(PAUSE_S)
        return inputs, targets


class SlowData(SyntheticDataModule):
    def pixel_transform(self) -> BatchTransform:
        return Slowly()


def profile(
    model: type[MLP] = MLP,
    data: type[SyntheticDataModule] = SyntheticDataModule,
    callback: type[Callback] = Callback,
    **kwargs: Any,
) -> StepProfiler:
    profiler = StepProfiler()
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    kwargs |= dict.fromkeys(off, False)
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", profiler=profiler, callbacks=[callback()], **kwargs
    )
    trainer.fit(model(in_channels=3, image_size=8), data(8, 40, 16, image_size=8))
    return profiler


@pytest.mark.parametrize(
    ("part", "slow", "advice"),
    [
        ("callbacks", {"callback": SlowCallback}, "a larger --data.batch_size"),
        ("callbacks", {"callback": SlowWithinTheStep}, "a larger --data.batch_size"),
        ("forward and loss", {"model": SlowLoss}, "It is arithmetic"),
        ("optimiser", {"model": SlowOptimizer}, "It is arithmetic"),
        ("reading the batch", {"data": SlowData}, "It waits for data"),
        ("forward and loss", {"model": SlowLoss, "accumulate_grad_batches": 2}, "arithmetic"),
    ],
)
def test_what_is_slow_is_named(part: str, slow: dict[str, Any], advice: str) -> None:
    profiler = profile(**slow)
    parts = profiler.parts()
    assert max(parts, key=lambda name: parts[name]) == part
    assert parts[part] > PAUSE_S
    assert all(value > -1e-4 for value in parts.values()), parts
    assert advice in profiler.summary()
    first = profiler.summary().splitlines()[1]
    assert first.endswith(part)


def test_from_the_command_line(caplog: pytest.LogCaptureFixture) -> None:
    args = ["fit", "--config", "synthetic", "--config", "presets/profile"]
    args += ["--model", "MLP", "--data.train_size", "200", "--data.val_size", "20"]
    args += ["--trainer.accelerator", "cpu", "--trainer.max_epochs", "1", "--preflight", "false"]
    main([*args, "--trainer.enable_progress_bar", "false"])
    assert "A training step of " in caplog.text
    assert "backward\n" in caplog.text


def test_a_run_of_one_step_says_so() -> None:
    assert "two training steps" in StepProfiler().summary()
