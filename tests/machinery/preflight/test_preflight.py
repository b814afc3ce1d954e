"""Planted faults and healthy variants of classification: each check fires on its fault alone."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from project.commands.trainer import Trainer
from project.data import Augment, SyntheticDataModule
from project.models import MLP, CrossEntropy, ResNet18
from project.preflight.check import Verdict
from project.preflight.overfit import OverfitOneBatch
from project.preflight.zero_input import ZeroInputCheck


@pytest.fixture(autouse=True)
def _without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine as well, a fault has all the steps in which it shows."""
    for check in (OverfitOneBatch, ZeroInputCheck):
        monkeypatch.setattr(check, "budget_s", math.inf)


OFF = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")


def verdicts(
    model: L.LightningModule, data: L.LightningDataModule | None = None, **kwargs: Any
) -> dict[str, Verdict]:
    off: dict[str, Any] = dict.fromkeys(OFF, False)
    trainer = Trainer(accelerator="cpu", max_epochs=3, num_sanity_val_steps=0, **off, **kwargs)
    return {v.name: v for v in trainer.check(model, data or stripes())}


def stripes(**kwargs: Any) -> SyntheticDataModule:
    return SyntheticDataModule(train_size=400, val_size=100, test_size=0, image_size=16, **kwargs)


def mlp(**kwargs: Any) -> MLP:
    given: dict[str, Any] = {
        "in_channels": 3,
        "image_size": 16,
        "optimizer": partial(AdamW, lr=2e-3),
    }
    return MLP(**(given | kwargs))


def layers(norm: str = "none") -> nn.Sequential:
    norms = {"none": nn.Identity, "batch": partial(nn.BatchNorm1d, 64)}
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(768, 64),
        norms[norm](),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
    )


class Plain(L.LightningModule):
    """A network and a training step as a user writes them, apart from `Classifier`."""

    def __init__(self, norm: str = "none") -> None:
        super().__init__()
        self.net = layers(norm)

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        return self.loss(self(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        loss = self.loss(self(batch[0]), batch[1])
        self.log("val/loss", loss, batch_size=len(batch[1]))

    def configure_optimizers(self) -> Any:
        return AdamW(self.parameters(), lr=2e-3)


# --- planted faults ---------------------------------------------------------------------------


class SoftmaxInForward(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return self.net(images).softmax(1)


class SoftmaxInStep(Plain):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.softmax(1), labels)


class Sigmoid(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return self.net(images).sigmoid()


class OtherParameters(Plain):
    def configure_optimizers(self) -> Any:
        return AdamW(layers().parameters(), lr=2e-3)


class HeadAddedLater(Plain):
    def configure_optimizers(self) -> Any:
        return AdamW(self.net[:-1].parameters(), lr=2e-3)


class LearningRate(Plain):
    def __init__(self, lr: float, kind: Any = AdamW) -> None:
        super().__init__()
        self.lr, self.kind = lr, kind

    def configure_optimizers(self) -> Any:
        return self.kind(self.parameters(), lr=self.lr)


class Frozen(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Detached(Plain):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels).detach()


class DetachedBody(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return self.net[-1](self.net[:-1](images).detach())


class UnusedLayer(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(10, 10)


class NoLoss(Plain):
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        self(batch[0])


class Summed(Plain):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="sum")


class NegativeLikelihoodOfProbabilities(Plain):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.nll_loss(logits.softmax(1), labels)


class BoundedOutputs(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return 2 * self.net(images).tanh()


class ExtraTerm(Plain):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels) + 0.5


class NeverZeroed(Plain):
    def optimizer_zero_grad(self, *_: Any) -> None:
        pass


class Evaluating(Plain):
    def __init__(self) -> None:
        super().__init__("batch")

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        self.eval()
        return super().training_step(batch, batch_idx)


class TrainingInValidation(Plain):
    def __init__(self) -> None:
        super().__init__("batch")

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.train()
        super().validation_step(batch, batch_idx)


class NoiseInValidation(Plain):
    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images = batch[0] + 0.1 * torch.randn_like(batch[0])
        super().validation_step((images, batch[1]), batch_idx)


class MeanOfBatchMeans(Plain):
    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        loss = self.loss(self(batch[0]), batch[1])
        self.log("val/loss", loss, batch_size=1)


class ShuffledLabels(Plain):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels[torch.randperm(len(labels))])


class ShiftedLabels(Plain):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels.roll(1))


class LogOfZero(Plain):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        right = logits.softmax(1).gather(1, labels[:, None])
        return -(right - 0.09).relu().log().mean()


class DividesByZero(Plain):
    def forward(self, images: Tensor) -> Tensor:
        hidden = self.net[:4](images)
        return self.net[5](hidden / hidden.abs().amin())


class SqrtOfZero(Plain):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels) + (0 * logits).square().sum().sqrt()


class Exploding(LearningRate):
    def __init__(self) -> None:
        super().__init__(30.0, partial(SGD, momentum=0.9))


class DeadUnits(Plain):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.net[1].bias.fill_(-100.0)


class IgnoresItsInput(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return self.net(0 * images)


class TooSmall(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(768, 1), nn.ReLU(), nn.Linear(1, 10))


class HeavyDropout(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.net[4].p = 0.97


class WeightDecay(Plain):
    def configure_optimizers(self) -> Any:
        return AdamW(self.parameters(), lr=1e-2, weight_decay=30.0)


class LeakedLabels(Plain):
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        images, labels = batch
        return self.loss(self(images) + 6 * F.one_hot(labels, 10), labels)


class LabelsByPlace(Plain):
    """Learns which label stands where in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(128, 10))

    def forward(self, images: Tensor) -> Tensor:
        return 0.1 * self.net(images) + 30 * self.places[: len(images)]


class HugeOutputs(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return self.net(255 * images)


class WrongClasses(Plain):
    num_classes = 10

    def __init__(self) -> None:
        super().__init__()
        self.net[-1] = nn.Linear(64, 1000)


class ReLUOnOutputs(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return self.net(images).relu()


class LayersInAList(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [nn.Linear(64, 64)]

    def forward(self, images: Tensor) -> Tensor:
        return self.net[4:](self.blocks[0](self.net[:4](images)))


class LabelBeyond(Plain):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels + 1)


class UnseededStream(SyntheticDataModule):
    def train_dataloader(self) -> Any:
        images, labels, indices = self.sets["train"]
        return DataLoader(TensorDataset(images[indices] / 255, labels[indices]), 32, shuffle=True)


class OverlappingSplit(SyntheticDataModule):
    def setup(self, stage: str) -> None:
        super().setup(stage)
        images, labels, indices = self.sets["val"]
        self.sets["val"] = (images, labels, torch.cat([indices[1:], self.sets["train"][2][:1]]))


class CopiedValidation(SyntheticDataModule):
    def load(self, split: Any) -> Any:
        images, labels = super().load("train")  # type: ignore[misc]
        return (images[:50].clone(), labels[:50].clone()) if split == "val" else (images, labels)


class EqualImages(SyntheticDataModule):
    def load(self, split: Any) -> Any:
        loaded = super().load(split)
        if loaded is None:
            return None
        return loaded[0][:1].expand_as(loaded[0]).clone(), loaded[1]


FAULTS: list[tuple[str, Callable[[], L.LightningModule], str]] = [
    ("OverfitOneBatch", SoftmaxInForward, r"comes before cross-entropy.* 1\.46 for 10 classes"),
    ("OverfitOneBatch", SoftmaxInStep, r"comes before cross-entropy.* 1\.46 for 10 classes"),
    ("OverfitOneBatch", Sigmoid, r"softmax or sigmoid comes before cross-entropy"),
    ("OverfitOneBatch", OtherParameters, r"is missing net\.1\.weight.*not of a copy"),
    ("OverfitOneBatch", HeadAddedLater, r"is missing net\.5\.weight, net\.5\.bias"),
    ("OverfitOneBatch", lambda: LearningRate(0.0), r"the learning rate is 0"),
    ("OverfitOneBatch", lambda: LearningRate(1e-7), r"weights moved by .* 1\.0e-07, is too low"),
    ("OverfitOneBatch", lambda: LearningRate(1e-4, SGD), r"learning rate, 1\.0e-04, is too low"),
    ("OverfitOneBatch", lambda: LearningRate(3.0, SGD), r"3\.0e\+00,? is too high"),
    ("OverfitOneBatch", Frozen, r"every parameter is frozen"),
    ("OverfitOneBatch", Detached, r"the loss has no graph"),
    ("OverfitOneBatch", DetachedBody, r"no gradient reaches net\.1\.weight.*detached"),
    ("OverfitOneBatch", UnusedLayer, r"no gradient reaches spare\.weight, spare\.bias.*not used"),
    ("OverfitOneBatch", NoLoss, r"training_step returned None"),
    ("InitLossCheck", Summed, r"summed over the batch and not averaged"),
    ("InitLossCheck", NegativeLikelihoodOfProbabilities, r"never negative .*log_softmax"),
    ("OverfitOneBatch", BoundedOutputs, r"all predictions are right while .* bounded"),
    ("OverfitOneBatch", ExtraTerm, r"all predictions are right while .* a further term"),
    ("OverfitOneBatch", NeverZeroed, r"zero_grad is not called"),
    ("OverfitOneBatch", Evaluating, r"net\.2, net\.4 is in evaluation mode .* eval\(\)"),
    ("EvaluationCheck", TrainingInValidation, r"net\.2, net\.4 is in training mode .* train\(\)"),
    ("EvaluationCheck", NoiseInValidation, r"it draws random numbers"),
    ("EvaluationCheck", MeanOfBatchMeans, r"averaged over batches and not over examples"),
    ("OverfitOneBatch", ShuffledLabels, r"labels that do not belong to its images"),
    ("OverfitOneBatch", ShiftedLabels, r"labels that do not belong to its images"),
    ("OverfitOneBatch", LogOfZero, r"loss of step \d+ is (inf|nan).*log or division of 0"),
    ("OverfitOneBatch", DividesByZero, r"loss of step 0 is nan: net\.5 is the first layer"),
    ("OverfitOneBatch", SqrtOfZero, r"gradient of net\..* is not finite at step 0.*sqrt"),
    ("OverfitOneBatch", Exploding, r"learning rate, 3\.0e\+01, is too high"),
    ("OverfitOneBatch", DeadUnits, r"100% of the units of net\.3 \(ReLU\) are 0"),
    ("OverfitOneBatch", IgnoresItsInput, r"same for every image"),
    ("OverfitOneBatch", TooSmall, r"of 789 parameters, can't tell these images apart"),
    ("OverfitOneBatch", HeavyDropout, r"dropout of 0\.97 is too much"),
    ("OverfitOneBatch", WeightDecay, r"weight_decay 30 takes 30% of the weights"),
    ("InitLossCheck", LeakedLabels, r"labels leak into the loss"),
    ("ZeroInputCheck", LabelsByPlace, r"images of zeros train to a loss"),
    ("InitLossCheck", HugeOutputs, r"the outputs are too large.* normalise the inputs"),
    ("InitLossCheck", WrongClasses, r"1000 outputs for 10 classes"),
    ("OverfitOneBatch", ReLUOnOutputs, r"never negative: a ReLU"),
    ("OverfitOneBatch", LayersInAList, r"the model keeps layers in a list.*nn\.ModuleList"),
    ("OverfitOneBatch", LabelBeyond, r"a label is beyond the outputs of the model"),
    ("OverfitOneBatch", lambda: mlp(optimizer=partial(AdamW, lr=100)), r"lr 1\.0e\+02 is too high"),
]


DATA_FAULTS: list[tuple[str, type[SyntheticDataModule], str]] = [
    ("DataStreamCheck", UnseededStream, "draws from the global random state"),
    (
        "SplitOverlapCheck",
        OverlappingSplit,
        "1 of the 100 validation examples are training examples too",
    ),
    (
        "SplitOverlapCheck",
        CopiedValidation,
        "of the 50 validation examples are training examples too",
    ),
    ("OverfitOneBatch", EqualImages, "equal images with different labels"),
]


def name_of(value: Any) -> str:
    return getattr(value, "__name__", "")


@pytest.mark.parametrize(("check", "model", "diagnosis"), FAULTS, ids=name_of)
def test_fault_of_model_or_step(
    check: str, model: Callable[[], L.LightningModule], diagnosis: str
) -> None:
    torch.manual_seed(0)
    found = verdicts(model())
    assert not found[check].passed
    assert re.search(diagnosis, found[check].diagnosis), found[check].diagnosis


@pytest.mark.parametrize(("check", "data", "diagnosis"), DATA_FAULTS, ids=name_of)
def test_fault_of_data(check: str, data: type[SyntheticDataModule], diagnosis: str) -> None:
    torch.manual_seed(0)
    found = verdicts(mlp(), data(train_size=400, val_size=100, test_size=0, image_size=16))
    assert not found[check].passed
    assert diagnosis in found[check].diagnosis


class Grey(SyntheticDataModule):
    in_channels = 1

    def load(self, split: Any) -> Any:
        loaded = super().load(split)
        return loaded and (loaded[0][:, :1].clone(), loaded[1])


class Classes(SyntheticDataModule):
    """Images of random pixels about a colour for each class."""

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(train_size=400, val_size=100, test_size=0, image_size=16, **kwargs)
        self.class_names = [str(i) for i in range(num_classes)]

    def load(self, split: Any) -> Any:
        if split != "train":
            return None
        g = torch.Generator().manual_seed(0)
        labels = torch.randint(self.num_classes, (500,), generator=g)
        colors = torch.randint(60, 196, (self.num_classes, 3, 1, 1), generator=g)
        noise = torch.randint(-60, 60, (500, 3, 16, 16), generator=g)
        return (colors[labels] + noise).to(torch.uint8), labels


class Unequal(Classes):
    """Nine in ten examples are of one class."""

    def load(self, split: Any) -> Any:
        loaded = super().load(split)
        return loaded and (loaded[0], torch.where(loaded[1] > 0, 0, 1 - loaded[1]))


class Auxiliary(Plain):
    """Learns its classes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(768, 10)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        images, labels = batch
        own = super().training_step(batch, batch_idx)
        return own + 0.4 * F.cross_entropy(self.second(images.flatten(1)), labels)


class Focal(Plain):
    """arXiv:1708.02002"""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        logs = logits.log_softmax(1).gather(1, labels[:, None])
        return -((1 - logs.exp()) ** 2 * logs).mean()


class Hinge(Plain):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.multi_margin_loss(logits, labels)


class FrozenBody(Plain):
    def __init__(self) -> None:
        super().__init__("batch")
        self.net[:3].requires_grad_(False).eval()


class ByHand(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        loss: Any = super().training_step(batch, batch_idx)
        self.manual_backward(loss)


class Listed(Plain):
    """Keeps layers in a list that it has registered too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = [self.net[1], self.net[5]]


class TrainOnly(L.LightningDataModule):
    """A loader of torch, and none for validation."""

    def train_dataloader(self) -> Any:
        data = Classes(10)
        data.setup("fit")
        images, labels, indices = data.sets["train"]
        return DataLoader(TensorDataset(images[indices] / 255, labels[indices]), 32)


def resnet(**kwargs: Any) -> ResNet18:
    sgd = partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    return ResNet18(**({"width": 16, "optimizer": sgd} | kwargs))


HEALTHY: dict[str, tuple[Callable[[], L.LightningModule], Callable[[], Any], dict[str, Any]]] = {
    "MLP": (mlp, stripes, {}),
    "ResNet18": (resnet, stripes, {}),
    "augmented": (resnet, partial(stripes, augment=Augment(crop=2, flip=True, cutout=4)), {}),
    "narrow": (partial(mlp, hidden_sizes=[16]), stripes, {}),
    "wide": (partial(mlp, hidden_sizes=[2000]), stripes, {}),
    "deep": (partial(mlp, hidden_sizes=[64] * 6, dropout=0.0), stripes, {}),
    "softmax regression": (partial(mlp, hidden_sizes=[]), stripes, {}),
    "no BatchNorm": (partial(mlp, norm="none"), stripes, {}),
    "LayerNorm": (partial(mlp, norm="layer"), stripes, {}),
    "dropout 0.6": (partial(mlp, dropout=0.6), stripes, {}),
    "SGD": (partial(mlp, optimizer=partial(SGD, lr=0.05)), stripes, {}),
    "slow SGD": (partial(mlp, norm="none", optimizer=partial(SGD, lr=0.02)), stripes, {}),
    "Adam": (partial(mlp, optimizer=Adam), stripes, {}),
    "RMSprop": (partial(mlp, optimizer=partial(RMSprop, lr=1e-3)), stripes, {}),
    "weight decay": (
        partial(mlp, optimizer=partial(AdamW, lr=2e-3, weight_decay=0.5)),
        stripes,
        {},
    ),
    "OneCycleLR": (partial(mlp, lr_scheduler=OneCycleLR), stripes, {}),
    "cosine": (partial(mlp, lr_scheduler=CosineAnnealingLR), stripes, {}),
    "long warm-up": (partial(mlp, warmup_steps=100_000), stripes, {}),
    "label smoothing": (partial(mlp, objective=CrossEntropy(0.1)), stripes, {}),
    "much label smoothing": (partial(resnet, objective=CrossEntropy(0.4)), stripes, {}),
    "clipping": (mlp, stripes, {"gradient_clip_val": 1.0}),
    "accumulation": (mlp, stripes, {"accumulate_grad_batches": 4}),
    "bf16": (resnet, stripes, {"precision": "bf16-mixed"}),
    "grey": (partial(mlp, in_channels=1), lambda: Grey(400, 100, 0, image_size=16), {}),
    "2 classes": (partial(mlp, num_classes=2), lambda: Classes(2), {}),
    "37 classes": (partial(mlp, num_classes=37), lambda: Classes(37), {}),
    "100 classes": (partial(mlp, num_classes=100), lambda: Classes(100), {}),
    "unequal classes": (partial(mlp, num_classes=2), lambda: Unequal(10), {}),
    "20 examples": (mlp, lambda: SyntheticDataModule(20, 10, 0, 16), {}),
    "no validation": (mlp, lambda: SyntheticDataModule(400, 0, 0, 16), {}),
    "plain module": (Plain, stripes, {}),
    "auxiliary loss": (Auxiliary, stripes, {}),
    "focal loss": (Focal, stripes, {}),
    "hinge loss": (Hinge, stripes, {}),
    "frozen body": (FrozenBody, stripes, {}),
    "listed layers": (Listed, stripes, {}),
    "manual optimisation": (ByHand, stripes, {}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_variant_passes(name: str) -> None:
    model, data, trainer = HEALTHY[name]
    torch.manual_seed(0)
    found = verdicts(model(), data(), **trainer)
    assert not [verdict for verdict in found.values() if not verdict.passed]


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:You defined a")
def test_a_loader_of_torch_without_validation_passes() -> None:
    torch.manual_seed(0)
    assert all(verdict.passed for verdict in verdicts(Plain(), TrainOnly()).values())
