"""The initial loss: no healthy model is refused, whatever its classes are; each fault still is."""

import re
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.initial_loss import SHARES, batch_of, verdicts
from project.callbacks import InitLossCheck
from project.engine.classification import untrained_cross_entropy
from project.preflight.check import Verdict

WIDTHS = ["ResNet18, width 16", "ResNet18, width 8"]


@pytest.mark.parametrize("network", WIDTHS)
@pytest.mark.parametrize("shares", SHARES)
def test_no_healthy_model_is_refused(network: str, shares: str) -> None:
    found = list(verdicts(network, SHARES[shares], seeds=20))
    assert len(found) == 20
    assert not [verdict for verdict in found if not verdict.passed]


class Net(L.LightningModule):
    """One with an offset between its classes, which is alike for all images."""

    def __init__(self, shares: list[float], outputs: int = 0, offset: float = 0.0) -> None:
        super().__init__()
        self.num_classes = len(shares)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(768, outputs or len(shares)))
        with torch.no_grad():
            self.net[1].weight *= 0.5
            self.net[1].bias[0] += offset

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self(images), labels)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        return self.loss(*batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Summed(Net):
    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self(images), labels, reduction="sum")


class Huge(Net):
    def forward(self, images: Tensor) -> Tensor:
        return self.net(100 * images)


class Leaking(Net):
    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self(images) + 6 * F.one_hot(labels, self.num_classes), labels)


class Negative(Net):
    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.nll_loss(self(images).softmax(1), labels)


def look(model: L.LightningModule, shares: list[float], size: int = 128) -> Verdict:
    off: dict[str, Any] = {"logger": False, "enable_checkpointing": False}
    trainer = L.Trainer(accelerator="cpu", **off)
    return InitLossCheck().look(trainer, model, batch_of(shares, 0, size))


FAULTS = [(Summed, "summed over the batch"), (Huge, "outputs are too large"), (Leaking, "labels")]
FAULTS += [(Negative, "never negative"), (lambda s: Net(s, 100), r"100 outputs for \d+ classes")]


@pytest.mark.parametrize("shares", [*SHARES.values(), [1] * 10, [0.99, 0.01]])
@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_each_fault_is_found_whatever_the_classes_are(
    shares: list[float], fault: Any, words: str
) -> None:
    torch.manual_seed(0)
    found = look(fault(shares), shares)
    assert not found.passed, found
    assert re.search(words, found.diagnosis), found.diagnosis


@pytest.mark.parametrize("size", [8, 16, 61, 128])
def test_summed_is_said_only_of_a_sum(size: int) -> None:
    torch.manual_seed(0)
    shares = [0.7, 0.3]
    assert "summed over the batch" in look(Summed(shares), shares, size).diagnosis
    for offset in (2.0, 4.0, 8.0, 20.0, 60.0):
        assert "summed" not in look(Net(shares, offset=-offset), shares, size).diagnosis
    refused = look(Net(shares, offset=-60), shares, size).diagnosis
    assert "outputs are too large" in refused


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_further_term_is_no_fault_of_few_examples(size: int) -> None:
    class Further(Net):
        def loss(self, images: Tensor, labels: Tensor) -> Tensor:
            return 1.4 * super().loss(images, labels)

    torch.manual_seed(0)
    assert look(Further([1] * 10), [1] * 10, size).passed


def test_the_range_is_wider_for_unequal_and_for_few_classes() -> None:
    def widths(counts: list[int]) -> float:
        labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        _, low, high = untrained_cross_entropy(labels, len(counts))
        return high - low

    assert widths([115, 13]) > widths([90, 38]) > widths([64, 64])
    assert widths([64, 64]) > widths([16] * 8)
