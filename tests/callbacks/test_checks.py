"""A misspelt monitor is refused before the first step."""

import lightning as L
import pytest

from project.callbacks import MonitorCheck
from project.data import SyntheticDataModule
from project.models import MLP

OFF = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")


def fit(monitor: str, val_size: int = 16) -> L.Trainer:
    data = SyntheticDataModule(16, val_size, 0, image_size=8, batch_size=8)
    check = MonitorCheck(monitor)
    off = dict.fromkeys(OFF, False)
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, callbacks=[check], **off)  # type: ignore[arg-type]
    trainer.fit(MLP([8], in_channels=3, image_size=8), data)
    return trainer


@pytest.mark.parametrize("monitor", ["val/loss", "val/acc", "train/loss"])
def test_a_metric_that_there_is(monitor: str) -> None:
    assert fit(monitor).global_step == 2


def test_a_misspelt_one_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*_: object) -> None:
        pytest.fail("trained a step")

    monkeypatch.setattr(MLP, "training_step", step)
    with pytest.raises(ValueError, match=r"no metric val/los \(did you mean val/loss\?\); there"):
        fit("val/los")
    with pytest.raises(ValueError, match="no metric f1; there are val/loss, val/acc"):
        fit("f1")
