"""Functions of whole batches: augmentation, normalisation, and any of your own.

A transform gets uniform random numbers instead of drawing some, so that the batches of a run depend
on its seed alone. It may return other inputs and targets, or change the given ones in place.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from .values import Batch


class BatchTransform(ABC):
    """A function of the inputs and targets of a batch and of random numbers.

    Attributes:
        num_uniforms: Number of random numbers per example.
        alternating: Columns of `u` that are drawn once per example and then move by a half from
            epoch to epoch, modulo 1, so that what half of the examples get in one epoch, the
            others get in the next.
        mixes: Whether an example depends on others of its batch. Each process then reads the whole
            batch of all processes, and keeps its share of the result.
    """

    num_uniforms: int = 0
    alternating: tuple[int, ...] = ()
    mixes: bool = False

    @abstractmethod
    def __call__(self, inputs: Any, targets: Any, u: Tensor) -> Batch:
        """Return the changed inputs and targets.

        Args:
            inputs: Tensor with a row for each of B examples, or a dict of such tensors.
            targets: Tensor with a row for each of B examples, or a dict of such tensors.
            u: Random numbers, uniform in [0, 1), float32 (B, num_uniforms).
        """


class Compose(BatchTransform):
    """Transforms one after the other, each with random numbers of its own.

    Args:
        transforms: Transforms in their order.
    """

    def __init__(self, transforms: Sequence[BatchTransform]) -> None:
        self.transforms = list(transforms)
        self.columns = [transform.num_uniforms for transform in self.transforms]
        self.num_uniforms = sum(self.columns)
        starts = accumulate(self.columns, initial=0)
        self.alternating = tuple(
            start + column
            for start, transform in zip(starts, self.transforms, strict=False)
            for column in transform.alternating
        )
        self.mixes = any(transform.mixes for transform in self.transforms)

    def __call__(self, inputs: Any, targets: Any, u: Tensor) -> Batch:
        for transform, own in zip(self.transforms, u.split(self.columns, 1), strict=True):
            inputs, targets = transform(inputs, targets, own)
        return inputs, targets


class PixelScale(nn.Module):
    """A layer that turns pixels from 0 to 255 into normalised float32.

    Args:
        mean: Mean of each channel, in units of [0, 1].
        std: Standard deviation of each channel, in units of [0, 1].
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.scale = nn.Buffer(1 / (255 * torch.tensor(std)).view(-1, 1, 1))
        self.shift = nn.Buffer((-torch.tensor(mean) / torch.tensor(std)).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return images.float().mul_(self.scale).add_(self.shift)


class Normalize(BatchTransform):
    """Normalises images (N, C, H, W) of pixels from 0 to 255.

    Args:
        mean: Mean of each channel, in units of [0, 1].
        std: Standard deviation of each channel, in units of [0, 1].
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.layer = PixelScale(mean, std)

    def __call__(self, inputs: Any, targets: Any, u: Tensor) -> Batch:
        return self.layer(inputs), targets
