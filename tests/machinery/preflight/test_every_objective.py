"""Each kind of objective: healthy runs pass every check, and planted faults are named."""

import math
import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from project.commands.trainer import Trainer
from project.engine.datamodule import StreamDataModule
from project.models import (
    BinaryCrossEntropy,
    CrossEntropy,
    FocalLoss,
    Huber,
    LinearRegression,
    Objective,
    PixelCrossEntropy,
    SquaredError,
    Task,
)
from project.preflight.check import Verdict
from project.preflight.overfit import OverfitOneBatch
from project.preflight.split_overlap import SplitOverlapCheck
from project.preflight.zero_input import ZeroInputCheck

OFF = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")


@pytest.fixture(autouse=True)
def _without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    for check in (OverfitOneBatch, ZeroInputCheck):
        monkeypatch.setattr(check, "budget_s", math.inf)


class Given(StreamDataModule):
    """Inputs and targets in memory, without any transform."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        super().__init__(batch_size=16, seed=0)
        self.sets = {
            "train": (inputs, targets, torch.arange(96)),
            "val": (inputs, targets, torch.arange(96, 128)),
        }

    def setup(self, stage: str) -> None:
        pass


def features() -> Tensor:
    return torch.randn(128, 12, generator=torch.Generator().manual_seed(0))


def values() -> Given:
    x = features()
    return Given(x, (x[:, 0] * x[:, 1] + x[:, 2]).float())


def columns() -> Given:
    x = features()
    return Given(x, torch.stack([x[:, 0], x[:, 1].abs()], 1))


def far_values() -> Given:
    data = values()
    x, y, _ = data.sets["train"]
    return Given(x, 300 + 50 * y)


def classes() -> Given:
    x = features()
    return Given(x, x[:, :4].argmax(1))


def several() -> Given:
    x = features()
    return Given(x, (x[:, :4] > 0.5).float())


def masks() -> Given:
    x = torch.randn(128, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Given(x, (x[:, 0] > 0).long() + (x[:, 0] > 1).long())


def tokens() -> Given:
    x = torch.randint(20, (128, 6), generator=torch.Generator().manual_seed(0))
    return Given(x, x[:, 0] % 4)


def dicts() -> Given:
    x = features()
    inputs = {"features": x, "tokens": torch.arange(128)[:, None] % 20}
    return Given(inputs, x[:, :4].argmax(1))


class Net(Task):
    """A network of two layers on features."""

    def __init__(self, outputs: int = 4, classes: int | None = None, **kwargs: Any) -> None:
        super().__init__(**({"optimizer": partial(AdamW, lr=1e-2)} | kwargs))
        self.num_classes = classes
        self.net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, outputs))

    def forward(self, inputs: Any) -> Any:
        return self.net(inputs)


class Pixels(Net):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(3, 3, objective=PixelCrossEntropy(), **kwargs)
        self.net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 1))


class Embedded(Net):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(4, 4, **kwargs)
        self.net = nn.Sequential(nn.Embedding(20, 16), nn.Flatten(), nn.Linear(96, 4))


class OfDicts(Net):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(4, 4, **kwargs)
        self.embedding = nn.Embedding(20, 4)

    def forward(self, inputs: Any) -> Any:
        return self.net(inputs["features"]) + self.embedding(inputs["tokens"][:, 0])


def verdicts(model: L.LightningModule, data: L.LightningDataModule) -> dict[str, Verdict]:
    off: dict[str, Any] = dict.fromkeys(OFF, False)
    trainer = Trainer(accelerator="cpu", max_epochs=3, num_sanity_val_steps=0, **off)
    return {v.name: v for v in trainer.check(model, data)}


Make = Callable[[], L.LightningModule]
HEALTHY: dict[str, tuple[Make, Callable[[], Given]]] = {
    "cross-entropy": (lambda: Net(classes=4), classes),
    "class weights": (
        lambda: Net(classes=4, objective=CrossEntropy(0.1, [1.0, 2.0, 0.5, 1.0])),
        classes,
    ),
    "focal": (lambda: Net(classes=4, objective=FocalLoss()), classes),
    "multi-label": (lambda: Net(classes=4, objective=BinaryCrossEntropy()), several),
    "multi-label weights": (lambda: Net(objective=BinaryCrossEntropy([3.0] * 4)), several),
    "squared error": (lambda: Net(1, objective=SquaredError()), values),
    "two columns": (lambda: Net(2, objective=SquaredError()), columns),
    "far targets": (lambda: Net(1, objective=SquaredError()), far_values),
    "Huber": (lambda: Net(1, objective=Huber()), values),
    "Huber, far": (lambda: Net(1, objective=Huber(5.0)), far_values),
    "pixels": (lambda: Pixels(), masks),
    "tokens": (lambda: Embedded(), tokens),
    "dicts": (lambda: OfDicts(), dicts),
    "too slow to tell": (
        lambda: Net(1, objective=SquaredError(), optimizer=partial(AdamW, lr=1e-4)),
        values,
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_of_each_objective_passes(name: str) -> None:
    model, data = HEALTHY[name]
    torch.manual_seed(0)
    found = verdicts(model(), data())
    assert not [verdict for verdict in found.values() if not verdict.passed]
    assert not found["ZeroInputCheck"].diagnosis.startswith("skipped")
    assert not found["EvaluationCheck"].diagnosis


class SigmoidFirst(Net):
    def forward(self, inputs: Any) -> Any:
        return self.net(inputs).sigmoid()


class SoftmaxOfPixels(Pixels):
    def forward(self, inputs: Any) -> Any:
        return self.net(inputs).softmax(1)


class Naive(Objective):
    """Broadcasts (N, 1) against (N,)."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets) ** 2


class WithoutTargets(Objective):
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.square().mean(1)


class Summed(SquaredError):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.losses(outputs, targets).sum()


class OtherTargets(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step((batch[0], 5 * batch[1].roll(1)), batch_idx)


class ByRow(Net):
    """Learns which target stands where in the batch."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(1, objective=SquaredError(), **kwargs)
        self.places = nn.Parameter(torch.zeros(128, 1))

    def forward(self, inputs: Any) -> Any:
        return 0.1 * self.net(inputs) + 10 * self.places[: len(inputs)]


class DetachedDict(OfDicts):
    def forward(self, inputs: Any) -> Any:
        return self.net(inputs["features"]) + 0 * self.embedding(inputs["tokens"][:, 0]).detach()


def sgd(lr: float) -> Any:
    return partial(SGD, lr=lr)


FAULTS: list[tuple[str, Make, Callable[[], Given], str]] = [
    (
        "OverfitOneBatch",
        lambda: SigmoidFirst(classes=4, objective=BinaryCrossEntropy()),
        several,
        r"softmax or sigmoid comes before BinaryCrossEntropy.* can't fall below 0\.",
    ),
    (
        "OverfitOneBatch",
        lambda: SigmoidFirst(classes=4, objective=FocalLoss()),
        classes,
        r"softmax or sigmoid comes before FocalLoss.* for 4 classes",
    ),
    ("OverfitOneBatch", SoftmaxOfPixels, masks, "comes before PixelCrossEntropy"),
    ("OverfitOneBatch", lambda: Net(1, objective=Naive()), values, r"losses of shape \(32, 32\)"),
    ("OverfitOneBatch", lambda: Net(objective=WithoutTargets()), values, "targets do not reach"),
    ("OverfitOneBatch", lambda: Net(1, objective=Summed()), values, "summed over the batch"),
    ("OverfitOneBatch", lambda: OtherTargets(1, objective=SquaredError()), values, "targets that"),
    (
        "OverfitOneBatch",
        lambda: Net(1, objective=SquaredError(), optimizer=sgd(100.0)),
        values,
        "too high",
    ),
    ("OverfitOneBatch", lambda: Net(1, objective=Huber(), optimizer=sgd(0)), values, "rate is 0"),
    (
        "OverfitOneBatch",
        lambda: Net(1, objective=SquaredError(), optimizer=sgd(1e-9)),
        values,
        "too low",
    ),
    ("OverfitOneBatch", DetachedDict, dicts, r"no gradient reaches embedding\.weight"),
    ("ZeroInputCheck", ByRow, values, "inputs of zeros train to a loss"),
    (
        "InitLossCheck",
        lambda: Net(classes=4, objective=BinaryCrossEntropy()),
        lambda: Given(1000 * features(), several().sets["train"][1]),
        "outputs are too large",
    ),
]


@pytest.mark.parametrize(("check", "model", "data", "words"), FAULTS)
def test_a_planted_fault_is_named(
    check: str, model: Make, data: Callable[[], Given], words: str
) -> None:
    torch.manual_seed(0)
    found = verdicts(model(), data())[check]
    assert not found.passed
    assert re.search(words, found.diagnosis), found.diagnosis


class Plain(L.LightningModule):
    """A regression without an objective."""

    def __init__(self, outputs: int = 1, flat: bool = True) -> None:
        super().__init__()
        self.net, self.flat = nn.Linear(12, outputs), flat

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs).flatten() if self.flat else self.net(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        loss = F.mse_loss(self(batch[0]).flatten(), batch[1])
        self.log("val/loss", loss, batch_size=len(batch[1]))

    def configure_optimizers(self) -> Any:
        return AdamW(self.parameters(), lr=1e-2)


def test_without_an_objective_only_what_needs_one_is_skipped() -> None:
    torch.manual_seed(0)
    found = verdicts(Plain(), values())
    assert all(verdict.passed for verdict in found.values())
    skipped = {name for name, v in found.items() if v.diagnosis.startswith("skipped")}
    assert skipped == {"InitLossCheck", "ZeroInputCheck"}
    assert found["OverfitOneBatch"].measured["steps"] > 1


def test_without_an_objective_broadcast_shapes_are_found() -> None:
    torch.manual_seed(0)
    found = verdicts(Plain(flat=False), values())["OverfitOneBatch"]
    assert not found.passed
    assert "are broadcast to (N, N)" in found.diagnosis


def test_equal_inputs_that_are_not_images_are_counted_and_not_refused() -> None:
    """A short text may well be there twice."""

    class Words(StreamDataModule):
        def setup(self, stage: str) -> None:
            words = torch.arange(30)[:, None] % 7
            for split, part in (("train", torch.arange(20)), ("val", torch.arange(20, 30))):
                self.sets[split] = (words, torch.arange(30) % 2, part)

    data = Words(batch_size=4, seed=0)
    data.setup("fit")
    trainer: Any = SimpleNamespace(datamodule=data)
    verdict = SplitOverlapCheck().look(trainer, LinearRegression(), data.examples("val", 4))
    assert verdict.passed
    assert verdict.measured == {"validation": 10, "shared": 10}
    assert "10 of the 10 validation examples are training examples too" in verdict.diagnosis
