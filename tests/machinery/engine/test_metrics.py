"""Metrics of any kind are the same on any number of ranks, and after a resume."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, multiprocessing
from torchmetrics import (
    MaxMetric,
    MeanMetric,
    Metric,
    MetricCollection,
    MinMaxMetric,
    PearsonCorrCoef,
)
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassRecall,
)

from project.commands.cli import main
from project.engine.classification import Accuracy
from project.engine.metrics import StageMetrics, make_metrics

NUM_CLASSES, SIZE = 3, 24


class Confidence(MeanMetric):
    """A state that is averaged over ranks."""

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        super().update(predictions.amax(1))


class Highest(MaxMetric):
    def update(self, predictions: Tensor, targets: Tensor) -> None:
        super().update(predictions)


class Correlation(PearsonCorrCoef):
    """States that are gathered, and no sums of anything."""

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        super().update(predictions[:, 0], targets.float())


KINDS: dict[str, Callable[[], Metric]] = {
    "sums": Accuracy,
    "values": partial(MulticlassAUROC, NUM_CLASSES),  # all predictions are kept
    "mean": Confidence,
    "max": Highest,
    "gathered": Correlation,
    "per class": partial(MulticlassRecall, NUM_CLASSES, average="none"),
    "within another": lambda: MinMaxMetric(MulticlassAccuracy(NUM_CLASSES)),
}


def batches(epoch: int = 0) -> list[tuple[Tensor, Tensor]]:
    key = torch.Generator().manual_seed(epoch)
    predictions = torch.randn(SIZE, NUM_CLASSES, generator=key).softmax(1)
    return list(zip(predictions.split(8), (torch.arange(SIZE) % NUM_CLASSES).split(8), strict=True))


def add(metrics: StageMetrics, rows: list[tuple[Tensor, Tensor]], share: slice) -> None:
    for predictions, targets in rows:
        metrics.loss.update(predictions[share].sum(1), len(targets[share]))
        metrics.update(predictions[share], targets[share])


def of_one_process(kind: str) -> dict[str, Tensor]:
    metrics = StageMetrics({"m": KINDS[kind]()})
    add(metrics, batches(), slice(None))
    return metrics.compute(None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_within_an_epoch_changes_nothing(kind: str, tmp_path: Path) -> None:
    metrics = StageMetrics({"m": KINDS[kind]()})
    add(metrics, batches()[:2], slice(None))
    torch.save(metrics.states(), tmp_path / "states.pt")
    resumed = StageMetrics({"m": KINDS[kind]()})
    states = torch.load(tmp_path / "states.pt", weights_only=True)
    resumed.load_states(states, 0, torch.device("cpu"))
    add(resumed, batches()[2:], slice(None))
    expected = of_one_process(kind)
    found = resumed.compute(None)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    resumed.reset()
    add(resumed, batches(), slice(None))
    assert all(torch.equal(v, expected[name]) for name, v in resumed.compute(None).items())


def _rank(rank: int, folder: Path) -> None:
    distributed.init_process_group("gloo", f"file://{folder / 'rendezvous'}", None, 2, rank)
    found = {}
    for kind, make in KINDS.items():
        metrics = StageMetrics({"m": make()})
        add(metrics, batches()[:2], slice(rank, None, 2))
        states = metrics.states()
        resumed = StageMetrics({"m": make()})
        resumed.load_states(states, rank, torch.device("cpu"))
        for one in (metrics, resumed):
            add(one, batches()[2:], slice(rank, None, 2))
        found[kind] = (metrics.compute(None), resumed.compute(None))
    torch.save(found, folder / f"rank_{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_have_the_metrics_of_one_and_resume_with_them(tmp_path: Path) -> None:
    multiprocessing.spawn(_rank, (tmp_path,), 2)  # type: ignore[attr-defined, no-untyped-call]
    ranks = [torch.load(tmp_path / f"rank_{rank}.pt", weights_only=True) for rank in range(2)]
    for kind in KINDS:
        alone = of_one_process(kind)
        (found, resumed), other = ranks[0][kind], ranks[1][kind]
        for name, value in alone.items():
            assert torch.equal(found[name], resumed[name]), kind
            assert torch.equal(found[name], other[0][name]), kind
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def test_no_metric_hides_the_loss() -> None:
    with pytest.raises(ValueError, match="named loss would hide"):
        StageMetrics({"loss": Accuracy()})


def test_no_metric_replaces_another_of_its_name() -> None:
    one, other = (MetricCollection({"acc": Accuracy()}) for _ in range(2))
    with pytest.raises(ValueError, match="same name, of acc, acc"):
        StageMetrics({"one": one, "other": other})


def test_a_value_that_is_no_number_is_left_out_and_said() -> None:
    metrics = StageMetrics({"confusion": MulticlassConfusionMatrix(NUM_CLASSES)})
    add(metrics, batches(), slice(None))
    with pytest.warns(UserWarning, match="confusion is not logged"):
        assert metrics.compute(None).keys() == {"loss"}


def test_classes_are_named_where_there_is_a_value_for_each() -> None:
    metrics = StageMetrics({"recall": KINDS["per class"]()})
    add(metrics, batches(), slice(None))
    for names, expected in ((["a", "b", "c"], "abc"), (["a", "b"], "012"), (None, "012")):
        assert list(metrics.compute(names)) == ["loss", *(f"recall/{name}" for name in expected)]


def test_what_the_network_knows_need_not_be_given() -> None:
    made: Any = make_metrics({"recall": partial(MulticlassRecall, average="none")}, 7)
    assert made["recall"].num_classes == 7
    made = make_metrics({"recall": partial(MulticlassRecall, num_classes=4)}, 7)
    assert made["recall"].num_classes == 4


SMALL = ["--config", "synthetic", "--data.train_size", "48", "--data.val_size", "20"]
SMALL += ["--data.test_size", "0", "--data.image_size", "8", "--data.batch_size", "16"]
SMALL += ["--model", "MLP", "--model.hidden_sizes", "[16]", "--trainer.max_epochs", "2"]
SMALL += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
SMALL += ["--trainer.enable_model_summary", "false", "--preflight", "false"]


def test_a_metric_without_the_arguments_that_it_needs_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="beta"):
        main(["fit", *SMALL, "--model.metrics.f", "MulticlassFBetaScore"])
    assert not Path("runs").exists()
