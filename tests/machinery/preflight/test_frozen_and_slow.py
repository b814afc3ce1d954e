"""Networks that are mostly frozen, and those too slow for the budget: none is refused for that."""

import math
import re
import time
from functools import partial
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from project.commands.trainer import Trainer
from project.data import SyntheticDataModule
from project.engine.progress import StepBar
from project.models import MLP, ResNet18
from project.preflight.check import Verdict
from project.preflight.overfit import OverfitOneBatch
from project.preflight.zero_input import ZeroInputCheck


def verdicts(model: L.LightningModule, **kwargs: Any) -> dict[str, Verdict]:
    off: dict[str, Any] = {"logger": False, "enable_checkpointing": False}
    off |= {"enable_model_summary": False, "enable_progress_bar": False}
    trainer = Trainer(accelerator="cpu", max_epochs=3, num_sanity_val_steps=0, **off | kwargs)
    data = SyntheticDataModule(200, 50, 0, image_size=16)
    return {v.name: v for v in trainer.check(model, data)}


def frozen_but(model: L.LightningModule, *names: str) -> L.LightningModule:
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith(names)
    return model


class Trunk(MLP):
    """Its hidden layers are frozen and in evaluation mode, with their dropout."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__([64, 64], dropout=0.5, in_channels=3, image_size=16, **kwargs)
        self.trunk, self.head = self.layers[:-1], self.layers[-1]
        del self.layers
        self.trunk.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.trunk(images))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.trunk.eval()
        return super().training_step(batch, batch_idx)


def head_on_resnet(**kwargs: Any) -> L.LightningModule:
    return frozen_but(ResNet18(8, **kwargs), "fc.")


@pytest.mark.parametrize("make", [Trunk, head_on_resnet])
@pytest.mark.parametrize("optimizer", [partial(AdamW, lr=1e-4), partial(SGD, lr=1e-3)])
def test_a_head_on_a_frozen_trunk_is_healthy(
    make: Any, optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(OverfitOneBatch, "budget_s", math.inf)
    found = verdicts(make(optimizer=optimizer))
    assert not [verdict for verdict in found.values() if not verdict.passed]
    overfit = found["OverfitOneBatch"]
    assert overfit.measured["steps"] == OverfitOneBatch.num_steps
    assert "was not found out" in overfit.diagnosis
    assert "parameters are frozen" in overfit.diagnosis


@pytest.mark.parametrize("bias", ["layers.9.bias", "layers.1.bias"])
def test_the_frozen_share_is_named_where_only_a_bias_is_trained(bias: str) -> None:
    torch.manual_seed(0)
    found = verdicts(frozen_but(MLP([20, 20], in_channels=3, image_size=16), bias))
    verdict = found["OverfitOneBatch"]
    assert not verdict.passed
    assert re.match(r"99\.\d\d% of the 16,090 parameters are frozen, and", verdict.diagnosis)
    assert f"trained ({bias}): too few" in verdict.diagnosis


@pytest.mark.parametrize("lr", [0.0, 1e-9])
def test_a_wrong_rate_is_still_found_in_a_frozen_network(lr: float) -> None:
    torch.manual_seed(0)
    model = frozen_but(ResNet18(8, optimizer=partial(SGD, lr=lr, momentum=0.9)), "fc.")
    found = verdicts(model)["OverfitOneBatch"]
    assert not found.passed
    assert "lr" in found.diagnosis or "learning rate" in found.diagnosis


class Slow(MLP):
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        time.sleep(0.02)
        return super().training_step(batch, batch_idx)


class Gated(L.LightningModule):
    """Its layers have no gradient in the first step, by a factor of zero."""

    num_classes = 10

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(768, 32), nn.Linear(32, 10)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.gate * self.body(images.flatten(1)).relu())

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        time.sleep(0.02)
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val/loss", F.cross_entropy(self(batch[0]), batch[1]), batch_size=len(batch[1]))

    def configure_optimizers(self) -> Any:
        return AdamW(self.parameters(), lr=2e-3)


def slow() -> Slow:
    return Slow([16], in_channels=3, image_size=16, optimizer=partial(AdamW, lr=1e-4))


@pytest.mark.parametrize("budget_s", [0.0, 0.2])
@pytest.mark.parametrize("make", [slow, Gated])
def test_the_budget_refuses_no_healthy_network(
    make: Any, budget_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    for check in (OverfitOneBatch, ZeroInputCheck):
        monkeypatch.setattr(check, "budget_s", budget_s)
    found = verdicts(make())
    assert not [verdict for verdict in found.values() if not verdict.passed]
    overfit = found["OverfitOneBatch"]
    assert 1 <= overfit.measured["steps"] <= 1 + budget_s / 0.02
    assert "was not found out: the loss went from" in overfit.diagnosis
    assert f"all that fit into {budget_s:g} s" in overfit.diagnosis


def test_a_fault_is_found_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    class Evaluating(Slow):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            self.eval()
            return super().training_step(batch, batch_idx)

    torch.manual_seed(0)
    found = verdicts(Evaluating([16], in_channels=3, image_size=16))["OverfitOneBatch"]
    assert not found.passed
    assert found.measured["steps"] == 2, "it stops when it knows"


def test_progress_is_shown_on_a_terminal_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(StepBar, "DELAY_S", 0.0)
    monkeypatch.setattr(OverfitOneBatch, "budget_s", 0.3)
    verdicts(slow(), enable_progress_bar=True)
    assert "steps, loss" not in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")  # a "dumb" terminal shows no bar
    verdicts(slow(), enable_progress_bar=True)
    assert "steps, loss" in capsys.readouterr().out
