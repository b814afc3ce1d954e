"""A small network that learns CIFAR-10 in a few epochs, after Keller Jordan's arXiv:2404.00498."""

import re
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from project.engine.internals import trainer_of
from project.engine.task import Task
from project.models.resnet import conv3x3, fastest_format

EXAMPLES = 5000  # number of training images from whose patches the whitening is computed
DIVISOR = 9  # divides the logits, so that the untrained loss is near ln C
VARIANCE = 5e-4  # added to the variance of each direction, so that none is amplified too much


class Stage(nn.Module):
    """Two 3×3 convolutions, with a pooling after the first that halves height and width."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(in_channels, out_channels), nn.BatchNorm2d(out_channels)
        self.conv2, self.bn2 = conv3x3(out_channels, out_channels), nn.BatchNorm2d(out_channels)
        for conv in (self.conv1, self.conv2):
            nn.init.dirac_(conv.weight[: conv.in_channels])  # the identity on the input channels

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.bn1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.bn2(self.conv2(x)))


class FastNet(Task):
    """Whitened 2×2 patches, three stages of two convolutions: 1,972,504 parameters.

    The first layer is not trained. It is computed from training images at the start of `fit` and
    saved with the weights.

    Args:
        width: Number of channels of the first stage; the others have four times as many.
        whiten: Whether the patches are whitened; otherwise they are used as they are.
        bias_lr: Learning rate of the normalisation's biases, as a multiple of the learning rate of
            the other parameters.
        mirror: Whether validation and test average the logits of an image and of its mirror image.
        in_channels: Number of channels of an image; the command line takes it from the data.
        num_classes: Number of outputs; the command line takes it from the data.
        kwargs: Options that every network has.
    """

    def __init__(
        self,
        width: int = 64,
        whiten: bool = True,
        bias_lr: float = 1.0,
        mirror: bool = False,
        in_channels: int = 3,
        num_classes: int = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if width < 1:
            raise ValueError(f"width {width} must be positive")
        if bias_lr <= 0:
            raise ValueError(f"bias_lr {bias_lr} must be positive")
        self.num_classes = num_classes
        self.mirror, self.bias_lr = mirror, bias_lr
        patch = 4 * in_channels
        self.patches: Tensor  # (2 * patch, C, 2, 2)
        start = torch.zeros(patch, patch) if whiten else torch.eye(patch)
        self.register_buffer("patches", self._both_signs(start, in_channels))
        self.bias = nn.Parameter(torch.zeros(2 * patch))
        widths = (2 * patch, width, 4 * width, 4 * width)
        self.stages = nn.Sequential(*(Stage(*pair) for pair in pairwise(widths)))
        self.fc = nn.Linear(4 * width, num_classes, bias=False)
        self.memory_format = fastest_format(width)
        self.to(memory_format=self.memory_format)

    @staticmethod
    def _both_signs(directions: Tensor, in_channels: int) -> Tensor:
        return torch.cat([directions, -directions]).view(-1, in_channels, 2, 2)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage != "fit" or self.patches.any():
            return
        trainer = trainer_of(self)
        data = trainer.datamodule if trainer else None  # type: ignore[attr-defined]
        if data is None:
            raise ValueError("FastNet takes its first layer from a data module's training images")
        images, _ = data.examples("train", EXAMPLES)
        size = self.patches[0].numel()
        patches = images.unfold(2, 2, 1).unfold(3, 2, 1)  # (N, C, H - 1, W - 1, 2, 2)
        patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, size).double()
        variances, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
        whitened = directions.T / (variances + VARIANCE).sqrt()[:, None]
        self.patches.copy_(self._both_signs(whitened, images.shape[1]))

    def trained(self) -> list[Any]:
        named = [(n, p) for n, p in self.named_parameters() if p.requires_grad]
        biases = [p for name, p in named if re.search(r"\.bn\d\.bias$", name)]
        others = [p for name, p in named if not re.search(r"\.bn\d\.bias$", name)]
        return [{"params": others}, {"params": biases, "lr_factor": self.bias_lr}]

    def forward(self, images: Tensor) -> Tensor:
        if self.mirror and not self.training:
            return (self._logits(images) + self._logits(images.flip(3))) / 2
        return self._logits(images)

    def _logits(self, images: Tensor) -> Tensor:
        if min(images.shape[2:]) < 9:
            raise ValueError(
                f"FastNet halves an image three times: {images.shape[-1]} pixels are too few"
            )
        x = images.contiguous(memory_format=self.memory_format)
        x = F.gelu(F.conv2d(x, self.patches, self.bias))  # (N, 24, H - 1, W - 1)
        x = self.stages(x)  # (N, 4 * width, H / 8, W / 8)
        return self.fc(x.amax((2, 3))) / DIVISOR  # (N, num_classes)
