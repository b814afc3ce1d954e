"""What a constant output reaches and what outputs from 0 to 1 do, for any objective."""

import math

import lightning as L
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from project.engine.classification import label_entropy
from project.engine.objective import Objective
from project.engine.protocols import objective_of, own_objective
from project.models import (
    MLP,
    BinaryCrossEntropy,
    CrossEntropy,
    FocalLoss,
    Huber,
    PixelCrossEntropy,
    SquaredError,
)
from project.preflight.answers import squashed_floor
from project.preflight.constant import constant_loss
from project.preflight.goal import Goal


def labels(classes: int, size: int = 32) -> Tensor:
    return torch.randint(classes, (size,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_a_constant_reaches_the_entropy_of_the_labels(classes: int) -> None:
    found = constant_loss(CrossEntropy(), torch.zeros(32, classes), labels(classes))
    assert found == pytest.approx(label_entropy(labels(classes)), abs=1e-3)


@pytest.mark.parametrize(("offset", "scale"), [(0, 1), (5, 0.01), (-300, 50), (1e4, 3)])
def test_a_constant_reaches_the_variance(offset: float, scale: float) -> None:
    targets = offset + scale * torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    found = constant_loss(SquaredError(), torch.zeros(32, 3), targets)
    assert found == pytest.approx(targets.var(0, correction=0).mean().item(), rel=1e-3)


def test_a_constant_reaches_the_binary_entropies() -> None:
    targets = (torch.rand(32, 4, generator=torch.Generator().manual_seed(0)) < 0.3).float()
    p = targets.mean(0)
    entropy = -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)).mean().item()
    found = constant_loss(BinaryCrossEntropy(), torch.zeros(32, 4), targets)
    assert found == pytest.approx(entropy, abs=1e-3)


@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_a_constant_is_near_the_median_for_huber(offset: float) -> None:
    targets = offset + torch.tensor([0.0, 0.0, 0.0, 100.0, 0.1])  # the outlier pulls by 1 alone
    candidates = torch.linspace(-1, 2, 3001) + offset
    objective = Huber()
    best = min(objective.losses(c.expand(5), targets).mean().item() for c in candidates)
    found = constant_loss(objective, torch.zeros(5), targets)
    assert found == pytest.approx(best, rel=1e-3)


def test_a_constant_has_an_output_for_each_pixel() -> None:
    targets = labels(3, 32 * 4).view(32, 2, 2)
    entropy = sum(label_entropy(targets[:, i, j]) for i in range(2) for j in range(2)) / 4
    found = constant_loss(PixelCrossEntropy(), torch.zeros(32, 3, 2, 2), targets)
    assert found == pytest.approx(entropy, abs=1e-3)


def test_the_search_begins_at_the_mean_if_zero_has_no_loss() -> None:
    class Logarithmic(Objective):
        def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (outputs.log() - targets) ** 2

    targets = torch.tensor([0.0, 1.0])
    assert constant_loss(Logarithmic(), torch.ones(2), targets) == pytest.approx(0.25, abs=1e-3)
    assert constant_loss(Logarithmic(), torch.full((2,), math.nan), targets) is None
    assert constant_loss(Logarithmic(), {"a": torch.ones(2)}, targets) is None


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_outputs_from_0_to_1_reach_no_less(classes: int) -> None:
    goal = Goal(CrossEntropy(), classes, torch.device("cpu"))
    targets = labels(classes)
    certain = cross_entropy(one_hot(targets, classes).float(), targets).item()
    found = squashed_floor(goal, torch.zeros(32, classes), targets)
    assert found == pytest.approx(certain)
    assert found == pytest.approx(math.log(math.e + classes - 1) - 1)


def test_what_is_learnt_lies_just_above_the_lowest_loss() -> None:
    outputs, same = torch.zeros(32, 10), torch.zeros(32, dtype=torch.int64)
    smoothed = Goal(CrossEntropy(0.1).train(), 10, torch.device("cpu"))
    assert smoothed.floor < (smoothed.learnt(outputs, labels(10)) or 0) < smoothed.floor + 0.12
    focal = Goal(FocalLoss(), 10, torch.device("cpu"))
    assert 0 < (focal.learnt(outputs, same) or 0) < 0.12, "although a constant reaches 0"
    squared = Goal(SquaredError(), None, torch.device("cpu"))
    assert squared.learnt(torch.zeros(32), same.float()) is None


def test_an_attribute_that_only_has_the_name_of_an_objective_is_not_one() -> None:
    """In a module that is not the project's own."""
    model = L.LightningModule()
    model.objective, model.num_classes = "maximise", 3
    assert own_objective(model) is None
    labels = torch.tensor([0, 1, 2])
    assert isinstance(objective_of(model, labels), CrossEntropy)
    assert objective_of(model, labels.float()) is None
    assert isinstance(objective_of(MLP([8], objective=Huber()), labels), Huber)
