"""Data and tasks whose targets are not one class for each image, as a user would write them."""

from typing import Any, cast

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from project.data import ImageDataModule
from project.engine.datamodule import Split
from project.models import Objective, Task

SIZE = 48
KINDS = ("labels", "value", "mask", "boxes")


class OtherImages(ImageDataModule):
    """Images of 8×8 pixels with several labels, a value, a mask or boxes each."""

    in_channels, image_size = 3, 8

    def __init__(self, targets: str = "labels", **kwargs: Any) -> None:
        super().__init__(batch_size=8, val_size=16, **kwargs)
        self.targets, self.class_names = targets, ["red", "green", "blue"]

    def load(self, split: Split) -> tuple[Tensor, Tensor] | None:
        if split == "val":
            return None
        torch.manual_seed(len(split))
        images = torch.randint(256, (SIZE, 3, 8, 8), dtype=torch.uint8)
        means = images.float().mean((2, 3)) / 255  # (N, 3)
        targets: Any = {
            "labels": (means > 0.5).float(),
            "value": means[:, 0],
            "mask": (images[:, 0] > 127).long(),
            "boxes": [torch.ones(k % 3, 4) for k in range(SIZE)],
        }
        return images, targets[self.targets]


class Distance(Objective):
    """Mean squared distance of outputs and targets of any shape."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets.float(), reduction="none").view(len(outputs), -1).mean(1)


class Other(Task):
    """A linear model with as many outputs as the targets have."""

    default_objective = Distance

    def __init__(self, targets: str = "labels", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.targets = targets
        self.linear = nn.Linear(192, {"labels": 3, "value": 1, "mask": 64}[targets])

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.linear(images.flatten(1))
        shapes = {"labels": (-1, 3), "value": (-1,), "mask": (-1, 8, 8)}
        return outputs.view(shapes[self.targets])


class DictBatches(L.LightningDataModule):
    """A module of Lightning alone, whose batches are dicts."""

    def _loader(self) -> DataLoader[Any]:
        torch.manual_seed(0)
        examples = [{"x": torch.randn(4), "y": torch.randn(2)} for _ in range(24)]
        return DataLoader(cast(Any, examples), batch_size=8)

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = _loader


class DictModel(L.LightningModule):
    """A module of Lightning alone, for batches that are dicts.

    Args:
        gives: What `predict_step` returns: a tensor, a dict, a list, images, or nothing.
    """

    def __init__(self, gives: str = "tensor") -> None:
        super().__init__()
        self.gives, self.linear = gives, nn.Linear(4, 2)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = F.mse_loss(self.linear(batch["x"]), batch["y"])
        self.log("val/loss", loss, batch_size=8)
        return loss

    validation_step = test_step = training_step

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> Any:
        outputs = self.linear(batch["x"])
        return {
            "tensor": outputs,
            "value": outputs[:, 0],
            "dict": {"outputs": outputs},
            "list": [outputs, outputs + 1],
            "image": outputs.view(-1, 1, 2),
            "nothing": None,
        }[self.gives]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)
