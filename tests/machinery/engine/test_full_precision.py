"""Metrics depend on the network's outputs, and not on the precision of its arithmetic.

Each test has 300 examples, more than the 256 up to which bfloat16 can count, so that errors in the
sums would show.
"""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.optim import SGD
from torchmetrics import MeanMetric, MeanSquaredError, Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.wrappers import ClasswiseWrapper

from project.data import LinearDataModule, SyntheticDataModule
from project.engine.checkpoint_io import load_checkpoint
from project.engine.classification import CrossEntropy
from project.engine.full_precision import full_precision
from project.engine.objective import Metrics
from project.models import MLP, LinearRegression, Task
from project.preflight.evaluation import EvaluationCheck

LOW = ("bf16-true", "16-true")
PRECISIONS = (*LOW, "64-true", "bf16-mixed", "16-mixed", "32-true")
VAL = 300


def trainer(precision: str, *callbacks: L.Callback, **kwargs: Any) -> L.Trainer:
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options: dict[str, Any] = dict.fromkeys(off, False) | {"precision": precision}
    if precision == "16-mixed":  # which Lightning turns to bfloat16 on a CPU
        scaler = torch.amp.GradScaler("cpu")
        options = {
            **options,
            "precision": None,
            "plugins": [MixedPrecision("16-mixed", "cpu", scaler)],
        }
    options |= {"accelerator": "cpu", "max_epochs": 1, **kwargs}
    return L.Trainer(callbacks=list(callbacks), **options)


def make_data(batch_size: int, kind: type = SyntheticDataModule) -> Any:
    sizes = {"train_size": VAL, "val_size": VAL, "test_size": VAL}
    if kind is LinearDataModule:
        return LinearDataModule(batch_size=batch_size, **sizes)
    return SyntheticDataModule(**sizes, image_size=8, batch_size=batch_size)


class Outputs(L.Callback):
    """The network's own outputs, as they come out of its last layer, and the labels."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []
        self.labels: list[Tensor] = []

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        def keep(*args: Any) -> None:
            self.logits.append(args[2].detach().clone())

        self.hook = pl_module.layers[-1].register_forward_hook(keep)

    def on_validation_batch_start(self, trainer: Any, model: Any, batch: Any, *_: Any) -> None:
        self.labels.append(batch[1])

    on_test_batch_start = on_validation_batch_start


@pytest.mark.parametrize("stage", ["validate", "test"])
@pytest.mark.parametrize("batch_size", [4, 64])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_metrics_are_sums_in_float32_of_the_networks_outputs(
    precision: str, batch_size: int, stage: str
) -> None:
    torch.manual_seed(0)
    outputs = Outputs()
    model = MLP([16], in_channels=3, image_size=8)
    run = getattr(trainer(precision, outputs), stage)
    (found,) = run(model, make_data(batch_size // 2), verbose=False)
    logits, labels = torch.cat(outputs.logits), torch.cat(outputs.labels)
    assert len(labels) == VAL
    loss = F.cross_entropy(logits.double(), labels).item()
    correct = int((logits.argmax(1) == labels).sum())
    name = {"validate": "val"}.get(stage, stage)
    assert found[f"{name}/acc"] == correct / VAL
    assert found[f"{name}/loss"] == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("precision", LOW)
def test_the_training_loss_of_an_epoch_and_its_resume(precision: str, tmp_path: Path) -> None:
    """Saved in the middle of an epoch, and merged again, its counts are exact."""
    losses: list[Tensor] = []

    def keep(trainer: L.Trainer, model: Any, outputs: Any, batch: Any, *_: Any) -> None:
        losses.append(outputs["loss"].double() * len(batch[1]))
        if trainer.global_step == 40:
            trainer.save_checkpoint(tmp_path / "middle.ckpt")

    def make() -> MLP:  # which draws nothing
        torch.manual_seed(0)
        return MLP([16], 0, "none", 3, 8, optimizer=partial(SGD, lr=0.01))

    data, model = make_data(6), make()
    run = trainer(precision, LambdaCallback(on_train_batch_end=keep), max_epochs=1)
    run.fit(model, data)
    found = run.callback_metrics["train/loss"].item()
    assert found == pytest.approx((torch.stack(losses).sum() / VAL).item(), rel=1e-6)
    state = load_checkpoint(tmp_path / "middle.ckpt")["train_metrics"]["ranks"][0][0]
    assert state["total"].dtype == torch.float64
    assert state["examples"] == 240
    resumed = make()
    again = trainer(precision, max_epochs=1)
    again.fit(resumed, make_data(6), ckpt_path=tmp_path / "middle.ckpt", weights_only=True)
    for loss in (resumed.train_metrics.loss, model.train_metrics.loss):
        assert loss.examples == VAL
        assert torch.equal(loss.total, model.train_metrics.loss.total)


class MeanLoss(MeanMetric):
    """A metric as a user may write it: it keeps its sums in torch's default precision."""


class OwnObjective(CrossEntropy):
    """One with a metric, the mean of the probability of the label."""

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.log_softmax(1).max(1).values

    def labels(self, targets: Tensor) -> Tensor:
        return torch.ones(())

    def metrics(self, num_classes: int | None) -> Metrics:
        return {"confidence": MeanLoss()}


class OwnTask(Task):
    """A user's network, which neither knows nor casts anything."""

    default_objective = OwnObjective

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.linear = nn.Linear(3 * 8 * 8, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(images.flatten(1))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_users_own_metric_is_covered(precision: str) -> None:
    torch.manual_seed(0)
    model = OwnTask()
    logits: list[Tensor] = []
    model.linear.register_forward_hook(lambda *args: logits.append(args[2]))
    (found,) = trainer(precision).validate(model, make_data(2), verbose=False)
    expected = torch.cat(logits).double().log_softmax(1).max(1).values.mean().item()
    assert found["val/confidence"] == pytest.approx(expected, rel=2e-6)
    assert model.val_metrics.others[0].weight == VAL


@pytest.mark.parametrize("precision", [*LOW, "bf16-mixed"])
def test_errors_are_squared_and_summed_in_float32(precision: str) -> None:
    torch.manual_seed(0)
    model, data = LinearRegression(), make_data(2, LinearDataModule)
    outputs: list[Tensor] = []
    model.linear.register_forward_hook(lambda *args: outputs.append(args[2]))
    (found,) = trainer(precision).validate(model, data, verbose=False)
    targets = data.sets["val"][1]
    if precision in LOW:  # Lightning casts the whole batch
        targets = targets.to(outputs[0].dtype)
    squares = (torch.cat(outputs).flatten().double() - targets.double()) ** 2
    assert found["val/loss"] == pytest.approx(squares.mean().item(), rel=1e-6)


CASTS: list[Callable[[nn.Module], Any]] = [
    lambda m: m.to(torch.bfloat16),
    lambda m: m.half(),
    lambda m: m.bfloat16(),
    lambda m: m.to(dtype=torch.float16),
    lambda m: m.type(torch.bfloat16),
]


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("kind", [MeanMetric, MeanSquaredError])
def test_no_cast_narrows_what_has_been_summed(
    kind: type[Metric], cast: Callable[[nn.Module], Any]
) -> None:
    metric = full_precision(kind())
    for _ in range(300):
        metric.update(*([torch.ones(1)] if kind is MeanMetric else [torch.ones(1), torch.zeros(1)]))
    before = {name: value.clone() for name, value in metric.metric_state.items()}
    cast(nn.ModuleList([metric]))
    for name, value in metric.metric_state.items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])
    metric.reset()
    assert all(value.element_size() >= 4 for value in metric.metric_state.values())
    assert metric.dtype == torch.float32


def test_metrics_within_others_and_the_half_precision_of_a_step() -> None:
    """In Lightning's forward_context, torch creates tensors in half precision by default."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        whole = ClasswiseWrapper(MulticlassAccuracy(3, average=None))
        mean = full_precision(MeanMetric())
        assert mean.mean_value.dtype == torch.float32
        full_precision(whole)
        for _ in range(300):
            mean.update(torch.ones((), dtype=torch.bfloat16))
            whole.update(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1]))
    finally:
        torch.set_default_dtype(torch.float32)
    assert mean.compute() == 1
    assert mean.weight == 300
    assert {k: round(v.item(), 3) for k, v in whole.compute().items()} == {
        "multiclassaccuracy_0": 1.0,
        "multiclassaccuracy_1": 0.5,
        "multiclassaccuracy_2": 0.0,
    }


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_outputs_of_half_precision_are_widened_before_they_are_added_up(
    half: torch.dtype, autocast: bool
) -> None:
    outputs, targets = (200 * torch.rand(2, 300)).to(half)
    metric = full_precision(MeanSquaredError())
    torch.set_default_dtype(half)
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            metric.update(preds=outputs[:100], target=targets[:100])
            metric.update(outputs[100:], targets[100:])
            assert torch.get_default_dtype() == half
    finally:
        torch.set_default_dtype(torch.float32)
    expected = ((outputs.double() - targets.double()) ** 2).mean().item()
    assert metric.compute().item() == pytest.approx(expected, rel=1e-6)


def test_a_metric_multiplies_matrices_and_makes_tensors_in_float32() -> None:
    """A step in half precision, mixed or not, would otherwise do both in half precision."""

    class Product(MeanMetric):
        def update(self, rows: Tensor) -> None:
            super().update((rows @ rows.T).sum() * torch.tensor([0.1]))

    metric, rows = full_precision(Product()), torch.rand(8, 64)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            metric.update(rows)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(metric.compute(), ((rows @ rows.T).sum() * torch.tensor([0.1]))[0])


def test_it_stays_a_metric_like_any_other() -> None:
    """It is copied, sent to other processes, merged, and part of a collection."""
    metric = full_precision(MeanSquaredError())
    metric.update(torch.tensor([1.0, 3.0]), torch.zeros(2))
    for twin in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert isinstance(twin, MeanSquaredError)
        assert twin.compute() == metric.compute() == 5
        twin.update(torch.tensor([0.1], dtype=torch.bfloat16), torch.zeros(1))
        twin.bfloat16()
        assert twin.sum_squared_error.dtype == torch.float32
        twin.merge_state(metric)
        assert twin.total == 5
    collection = full_precision(MetricCollection([MeanSquaredError(), MeanMetric()]))
    collection.to(torch.bfloat16)
    collection.update(preds=torch.ones(2), target=torch.zeros(2), value=torch.ones(2))
    assert all(m.dtype == torch.float32 for m in collection.values())
    metric.set_dtype(torch.float64)  # which says that it is meant
    assert metric.sum_squared_error.dtype == torch.float64


@pytest.mark.parametrize("precision", LOW)
def test_the_check_of_evaluation_passes(precision: str) -> None:
    class Look(L.Callback):
        def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            verdicts.append(EvaluationCheck().measure(trainer, pl_module))
            trainer.fit_loop.epoch_loop.max_steps = 0

    verdicts: list[Any] = []
    torch.manual_seed(0)
    trainer(precision, Look(), num_sanity_val_steps=0).fit(
        MLP([16], in_channels=3, image_size=8), make_data(32)
    )
    assert verdicts[0].passed, verdicts[0].diagnosis
