"""Objectives against torch's own losses, and their metrics against torchmetrics and formulas."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MetricCollection, R2Score
from torchmetrics.classification import (
    MulticlassF1Score,
    MulticlassJaccardIndex,
    MulticlassRecall,
    MultilabelF1Score,
)
from torchvision.ops import sigmoid_focal_loss

from project.callbacks import BestCheckpoint
from project.commands.cli import main
from project.data import SyntheticDataModule
from project.models import (
    MLP,
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

N, K = 12, 5
QUIET = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
QUIET += ["--trainer.enable_model_summary", "false"]
SMALL = ["--config", "synthetic", "--data.train_size", "48", "--data.val_size", "20"]
SMALL += ["--data.test_size", "20", "--data.image_size", "8", "--data.batch_size", "16"]
SMALL += ["--model", "MLP", "--model.hidden_sizes", "[16]", "--trainer.max_epochs", "2"]


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(N, K, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def labels() -> Tensor:
    return torch.arange(N) % K


WEIGHTS = [0.5, 1.0, 1.5, 2.0, 0.1]


def test_cross_entropy_in_training_is_torchs(logits: Tensor, labels: Tensor) -> None:
    assert torch.equal(CrossEntropy().loss(logits, labels), F.cross_entropy(logits, labels))
    smooth = F.cross_entropy(logits, labels, label_smoothing=0.1)
    assert torch.equal(CrossEntropy(0.1).loss(logits, labels), smooth)
    losses = F.cross_entropy(logits, labels, torch.tensor(WEIGHTS), reduction="none")
    weighted = CrossEntropy(class_weights=WEIGHTS)
    assert torch.equal(weighted.losses(logits, labels), losses)
    assert torch.equal(weighted.loss(logits, labels), losses.mean())
    soft = F.one_hot(labels, K).float() * 0.7 + 0.3 / K
    assert torch.equal(CrossEntropy().loss(logits, soft), F.cross_entropy(logits, soft))


def test_smoothing_and_weights_are_of_training_alone(logits: Tensor, labels: Tensor) -> None:
    plain = F.cross_entropy(logits, labels, reduction="none")
    for objective in (CrossEntropy(0.3), CrossEntropy(class_weights=WEIGHTS)):
        objective.eval()
        assert torch.equal(objective.losses(logits, labels), plain)
        assert objective.loss(logits, labels) == pytest.approx(plain.mean().item())


def test_weighted_training_is_the_same_on_any_number_of_ranks(
    logits: Tensor, labels: Tensor
) -> None:
    """torch's own weighted mean is not the same, since it divides by the sum of the weights."""
    objective = CrossEntropy(class_weights=WEIGHTS)
    whole = objective.loss(logits, labels)
    shares = [objective.loss(logits[r::2], labels[r::2]) for r in range(2)]
    assert torch.stack(shares).mean().item() == pytest.approx(whole.item(), rel=1e-6)
    torchs = partial(F.cross_entropy, weight=torch.tensor(WEIGHTS))
    shares = [torchs(logits[r::2], labels[r::2]) for r in range(2)]
    assert abs(torch.stack(shares).mean() - torchs(logits, labels)) > 1e-3


def test_focal_loss_is_torchvisions_of_two_classes() -> None:
    x, labels = torch.linspace(-8, 8, 33), torch.arange(33) % 2
    logits = torch.stack([torch.zeros(33), x], 1)
    expected = sigmoid_focal_loss(x, labels.float(), alpha=-1, gamma=2)
    torch.testing.assert_close(FocalLoss(2).losses(logits, labels), expected, atol=1e-7, rtol=1e-4)
    plain = F.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(FocalLoss(0).losses(logits, labels), plain)


def test_the_gradient_of_focal_loss_is_finite_where_nothing_is_left_to_learn() -> None:
    logits = torch.tensor([[200.0, 0.0], [0.0, 200.0]], requires_grad=True)
    FocalLoss(2).loss(logits, torch.tensor([0, 0])).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_several_labels(logits: Tensor) -> None:
    targets = (torch.arange(N * K).view(N, K) % 3 == 0).float()
    objective = BinaryCrossEntropy()
    expected = F.binary_cross_entropy_with_logits(logits, targets)
    assert objective.loss(logits, targets).item() == pytest.approx(expected.item())
    assert torch.equal(objective.predictions(logits), logits.sigmoid())
    assert objective.correct(logits, targets).tolist() == [
        bool(((row > 0) == present.bool()).all())
        for row, present in zip(logits, targets, strict=True)
    ]
    texts = objective.captions(logits, targets, list("abcde"))
    right = objective.correct(logits, targets).tolist()
    assert ["true:" not in text for text in texts] == right
    assert objective.captions(logits[:1].abs(), targets[:1], list("abcde")) == [
        "a, b, c, d, e\ntrue: a, d"
    ]
    with pytest.raises(ValueError, match=r"outputs are float32 \(N, 5\), the targets int64 \(N,\)"):
        objective.loss(logits, torch.zeros(N, dtype=torch.int64))


@pytest.mark.parametrize("objective", [SquaredError(), Huber(0.5)])
def test_regression_never_broadcasts(objective: Objective) -> None:
    outputs, targets = torch.randn(2, N, 1)
    expected = {SquaredError: F.mse_loss, Huber: partial(F.huber_loss, delta=0.5)}[type(objective)]
    for one in (outputs, outputs[:, 0]):
        for other in (targets, targets[:, 0]):
            found = objective.loss(one, other)
            assert found.item() == pytest.approx(expected(outputs, targets).item())
    with pytest.raises(ValueError, match="needs a target for each output"):
        objective.loss(torch.randn(N, 2), targets)


def test_pixels_that_are_left_out_do_not_count() -> None:
    outputs, targets = torch.randn(4, K, 6, 6), torch.randint(K, (4, 6, 6))
    targets[0, :3], targets[1] = 255, 255
    losses = PixelCrossEntropy().losses(outputs, targets)
    for i in (0, 2, 3):
        seen = targets[i] != 255
        expected = F.cross_entropy(outputs[i].permute(1, 2, 0)[seen], targets[i][seen])
        assert losses[i].item() == pytest.approx(expected.item(), rel=1e-5)
    assert losses[1] == 0


@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_an_untrained_network_has_the_loss_that_is_expected(num_classes: int) -> None:
    labels = torch.arange(200) % num_classes
    zeros = torch.zeros(200, num_classes)
    for objective, targets in (
        (CrossEntropy(), labels),
        (FocalLoss(2), labels),
        (BinaryCrossEntropy(), F.one_hot(labels, num_classes)),
        (PixelCrossEntropy(), labels[:, None, None]),
    ):
        outputs = zeros[..., None, None] if targets.ndim == 3 else zeros
        found = objective.untrained_loss(targets, num_classes)
        assert found is not None
        assert objective.loss(outputs, targets).item() == pytest.approx(found.expected, rel=1e-5)
        assert found.low < found.expected < found.high
    assert SquaredError().untrained_loss(labels.float(), 1) is None


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_the_lowest_loss_can_be_reached_and_not_undercut(smoothing: float) -> None:
    objective, labels = CrossEntropy(smoothing), torch.arange(K)
    logits = torch.zeros(K, K, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective.loss(logits, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[arg-type, no-untyped-call]
    assert closure().item() == pytest.approx(objective.lowest_loss(K), abs=1e-3)


WRONG: list[tuple[type[Objective], dict[str, Any]]] = [
    (CrossEntropy, {"label_smoothing": 1.0}),
    (CrossEntropy, {"class_weights": [1.0, -1.0]}),
    (CrossEntropy, {"class_weights": [1.0, math.inf]}),
    (FocalLoss, {"gamma": -1.0}),
    (Huber, {"delta": 0.0}),
    (BinaryCrossEntropy, {"pos_weight": []}),
]


@pytest.mark.parametrize(("kind", "options"), WRONG)
def test_impossible_settings_are_refused(kind: type[Objective], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be|not negative"):
        kind(**options)


def test_an_objective_and_metrics_are_options() -> None:
    metrics = ["--model.metrics.f1", "MulticlassF1Score", "--model.metrics.f1.average", "macro"]
    metrics += ["--model.metrics.recall", "MulticlassRecall"]
    metrics += ["--model.metrics.recall.average", "none"]
    objective = ["--model.objective", "FocalLoss", "--model.objective.gamma", "1.5"]
    options = [*objective, *metrics, "--preflight", "false"]  # of 16 units, it learns slowly
    cli = main(["fit", *SMALL, *QUIET, *options, "--monitor", "val/f1"])
    assert isinstance(cli.model.objective, FocalLoss)
    assert cli.model.objective.gamma == 1.5
    model, data = cli.model.eval(), cli.datamodule
    with torch.no_grad():
        batches = [(model(images), labels) for images, labels in data.val_dataloader()]
    outputs, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    (found,) = cli.trainer.validate(model, data, verbose=False)
    f1 = MulticlassF1Score(10, average="macro")(outputs, labels)
    recall = MulticlassRecall(10, average="none")(outputs, labels)
    assert found["val/f1"] == pytest.approx(f1.item())
    names = data.class_names
    assert [found[f"val/recall/{name}"] for name in names] == pytest.approx(recall.tolist())
    assert found["val/loss"] == pytest.approx(FocalLoss(1.5).loss(outputs, labels).item(), rel=1e-5)
    header = (cli.run_folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"val/f1", "train/f1", f"val/recall/{names[0]}"} <= set(header)
    (best,) = [c for c in cli.trainer.callbacks if isinstance(c, BestCheckpoint)]
    assert best.monitor == "val/f1"
    assert best.mode == "max"


def test_a_metric_is_found_by_its_short_name_again_in_the_same_process() -> None:
    """As in a notebook that trains twice."""
    metrics = ["--model.metrics.f1", "MulticlassF1Score", "--model.metrics.f1.average", "macro"]
    for _ in range(2):
        cli = main(["fit", *SMALL, *QUIET, *metrics, "--preflight", "false"])
        assert "val/f1" in cli.trainer.callback_metrics


def test_a_collection_and_metrics_of_ones_own() -> None:
    collection = MetricCollection({"f1": MulticlassF1Score(10), "recall": MulticlassRecall(10)})
    model = MLP([16], in_channels=3, image_size=8, metrics={"several": collection})
    data = SyntheticDataModule(48, 20, 0, image_size=8, batch_size=16)
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", **dict.fromkeys(off, False))
    trainer.fit(model, data)
    found = set(trainer.callback_metrics)
    stages = {f"{s}/{n}" for s in ("train", "val") for n in ("loss", "acc", "f1", "recall")}
    assert stages <= found
    assert not collection["f1"].update_called, "each stage has a copy of its own"


class Segmenter(Task):
    """A convolution with an output for each class of a pixel."""

    default_objective = PixelCrossEntropy

    def __init__(self, num_classes: int = 3, in_channels: int = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.conv = nn.Conv2d(in_channels, num_classes, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(images)  # (N, C, H, W) -> (N, K, H, W)


def evaluate(model: Task, batches: list[tuple[Any, Any]]) -> dict[str, float]:
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = L.Trainer(accelerator="cpu", **dict.fromkeys(off, False))
    loader = torch.utils.data.DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    return dict(trainer.validate(model, loader, verbose=False)[0])


@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
def test_metrics_of_other_tasks_equal_torchmetrics() -> None:
    torch.manual_seed(0)
    images, masks = torch.randn(7, 3, 8, 8), torch.randint(3, (7, 8, 8))
    model = Segmenter()
    found = evaluate(model, [(images[:5], masks[:5]), (images[5:], masks[5:])])
    with torch.no_grad():
        outputs = model(images)
    iou = MulticlassJaccardIndex(3, average="none")(outputs, masks)
    assert [found[f"val/iou/{k}"] for k in range(3)] == pytest.approx(iou.tolist())
    assert found["val/miou"] == pytest.approx(iou.mean().item())

    several = MLP([8], in_channels=3, image_size=8, num_classes=4, objective=BinaryCrossEntropy())
    present = torch.randint(2, (7, 4)).float()
    found = evaluate(several, [(images[:5], present[:5]), (images[5:], present[5:])])
    with torch.no_grad():
        f1 = MultilabelF1Score(4)(several.eval()(images).sigmoid(), present.long())
    assert found["val/f1"] == pytest.approx(f1.item())

    line = LinearRegression(num_features=3, metrics={"r2": R2Score})
    x, y = torch.randn(7, 3), torch.randn(7)
    found = evaluate(line, [(x[:5], y[:5]), (x[5:], y[5:])])
    with torch.no_grad():
        values = line(x)
    assert found["val/mae"] == pytest.approx((values - y).abs().mean().item())
    assert found["val/r2"] == pytest.approx(R2Score()(values, y).item(), rel=1e-4)


def test_objectives_have_no_weights_that_a_checkpoint_would_hold() -> None:
    plain = MLP([8]).state_dict().keys()
    for objective in (CrossEntropy(class_weights=WEIGHTS), BinaryCrossEntropy(WEIGHTS)):
        assert MLP([8], objective=objective).state_dict().keys() == plain


def test_a_new_objective_is_ten_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is selected by its name, and a network is trained, tested and used to predict with it."""
    (tmp_path / "hinge.py").write_text(
        "import torch\n"
        "from project.models import Objective\n\n"
        "class Hinge(Objective):\n"
        "    def losses(self, outputs, targets):\n"
        "        right = outputs.gather(1, targets[:, None])\n"
        "        return (1 + outputs - right).clamp(min=0).sum(1) - 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    cli = main(["fit", *SMALL, *QUIET, "--model.objective", "hinge.Hinge"])
    run = str(cli.run_folder)
    assert type(cli.model.objective).__name__ == "Hinge"
    main(["test", "--run", run, *QUIET])
    main(["predict", "--run", run, *QUIET])
    assert (cli.run_folder / "predictions.csv").is_file()
