"""Augmentations as functions of a whole batch and of one row of uniform random numbers per image.

torchvision's `v2` draws one crop, flip or angle for a whole batch, so changes that differ from
image to image are written here with batched operations of torch. Each docstring names the numbers
that leave an image unchanged, which makes the functions testable.

Legend: N images, C channels, H height, W width; images are uint8, `u` is float32 in [0, 1). Those
that move pixels also take masks, as images of one channel and any integer type.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor

from project.engine.transforms import BatchTransform
from project.engine.values import Batch

PaddingMode = Literal["reflect", "zeros"]
Interpolation = Literal["bilinear", "nearest"]


def random_crop(images: Tensor, u: Tensor, padding: int, mode: PaddingMode = "reflect") -> Tensor:
    """Shift by up to `padding` pixels each way, by u (N, 2); 0.5 does not shift."""
    height, width = images.shape[-2:]
    if padding >= min(height, width):
        raise ValueError(f"a crop of {padding} shifts an image of {height}×{width} out of sight")
    if mode == "zeros":
        padded = F.pad(images, [padding] * 4)
    else:  # F.pad can't reflect uint8
        rows, cols = (_reflected(size, padding) for size in (height, width))
        padded = images.index_select(2, rows).index_select(3, cols)
    # All shifts as a view, (N, C, 2 * padding + 1, 2 * padding + 1, H, W), of which one is copied.
    shifts = padded.unfold(2, height, 1).unfold(3, width, 1)
    top, left = (u * (2 * padding + 1)).long().unbind(1)
    return shifts[torch.arange(len(images)), :, top, left]


def _reflected(size: int, padding: int) -> Tensor:
    index = torch.arange(-padding, size + padding).abs()
    return torch.where(index < size, index, 2 * size - 2 - index)


def random_flip(images: Tensor, u: Tensor) -> Tensor:
    """Mirror left and right where u (N,) is below 0.5."""
    return torch.where((u < 0.5).view(-1, 1, 1, 1), images.flip(-1), images)


def random_resized_crop(
    images: Tensor, u: Tensor, scale: float, mode: Interpolation = "bilinear"
) -> Tensor:
    """Zoom into a part of area `scale` to 1 and aspect 3:4 to 4:3, by u (N, 4); (1, 0.5) is all.

    This is Inception's crop, arXiv:1409.4842.
    """
    area, aspect = scale + (1 - scale) * u[:, 0], (2 * u[:, 1] - 1) * math.log(4 / 3)
    height = (area * torch.exp(-aspect)).sqrt().clamp(max=1)
    width = (area * torch.exp(aspect)).sqrt().clamp(max=1)
    y, x = (2 * u[:, 2] - 1) * (1 - height), (2 * u[:, 3] - 1) * (1 - width)
    zero = torch.zeros_like(x)
    return _affine(images, torch.stack([width, zero, x, zero, height, y], dim=1), mode)


def random_rotation(
    images: Tensor, u: Tensor, degrees: float, mode: Interpolation = "bilinear"
) -> Tensor:
    """Rotate by up to `degrees` either way, by u (N,); 0.5 does not rotate."""
    height, width = images.shape[-2:]
    angle = (2 * u - 1) * math.radians(degrees)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    matrix = [cos, -sin * height / width, zero, sin * width / height, cos, zero]
    return _affine(images, torch.stack(matrix, dim=1), mode)


def _affine(images: Tensor, matrix: Tensor, mode: Interpolation) -> Tensor:
    """Sample each image at the points that its row-major (2, 3) matrix, a row of (N, 6), gives."""
    grid = F.affine_grid(matrix.view(-1, 2, 3), list(images.shape), align_corners=False)
    # Class numbers of a mask are exact in float64.
    pixels = images.float() if mode == "bilinear" else images.double()
    sampled = F.grid_sample(pixels, grid.to(pixels), mode, "reflection", align_corners=False)
    return sampled.round_().to(images.dtype)


def color_jitter(images: Tensor, u: Tensor, strength: float) -> Tensor:
    """Scale brightness, contrast, saturation by 1 ± strength, by u (N, 3); 0.5 changes nothing."""
    from torchvision.transforms.v2.functional import rgb_to_grayscale  # 1 s to import

    brightness, contrast, saturation = (1 + strength * (2 * u - 1)).T.reshape(3, -1, 1, 1, 1)
    pixels = images.float() * brightness
    grey = rgb_to_grayscale(pixels) if images.shape[1] == 3 else pixels
    pixels = torch.lerp(grey.mean((1, 2, 3), keepdim=True), pixels, contrast)
    if images.shape[1] == 3:
        pixels = torch.lerp(rgb_to_grayscale(pixels, 3), pixels, saturation)
    return pixels.round_().clamp_(0, 255).to(torch.uint8)


def cutout(images: Tensor, u: Tensor, size: int, fill: Sequence[float] = (0.0,)) -> Tensor:
    """Cover a square of `size` pixels, centred by u (N, 2) anywhere in the image, arXiv:1708.04552.

    The part of the square outside the image is lost. `fill` is in units of [0, 1], per channel.
    """
    height, width = images.shape[-2:]
    top = (u[:, :1] * height).long() - size // 2
    left = (u[:, 1:] * width).long() - size // 2
    y, x = torch.arange(height) - top, torch.arange(width) - left
    hidden = ((y >= 0) & (y < size))[:, None, :, None] & ((x >= 0) & (x < size))[:, None, None, :]
    color = (torch.tensor(fill) * 255).round().to(torch.uint8).view(-1, 1, 1)
    return torch.where(hidden, color, images)


@final
@dataclass
class Augment(BatchTransform):
    """Random changes of training images, in the order of the arguments; all are off by default.

    Targets that are masks, integers (N, H, W) of the images' size, are moved with the images, by
    themselves or in a dict; colour changes and cutout leave them unchanged.

    Args:
        resized_crop: Smallest share of the image's area that a random crop keeps before it is
            scaled back to full size; 1 is off.
        rotation: Largest angle, in degrees either way; 0 is off.
        crop: Largest shift, in pixels each way; 0 is off.
        padding: Content that a shift brings in: the reflected image, or zeros.
        flip: Whether to mirror left and right, half of the time; `alternating` mirrors half of the
            images in even epochs and the others in odd ones, arXiv:2404.00498.
        color_jitter: Largest relative change of brightness, contrast and saturation; 0 is off.
        cutout: Side of a square filled with the mean colour, in pixels; 0 is off.
    """

    resized_crop: float = 1.0
    rotation: float = 0.0
    crop: int = 0
    padding: PaddingMode = "reflect"
    flip: bool | Literal["alternating"] = False
    color_jitter: float = 0.0
    cutout: int = 0
    num_uniforms = 13  # whatever is off, so that no option changes the numbers of another

    # Colour of the cutout, in units of [0, 1] per channel; the data module sets it to its mean.
    fill: Sequence[float] = field(default=(0.0,), init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.resized_crop <= 1 or not 0 <= self.color_jitter <= 1:
            raise ValueError("resized_crop must be above 0 and up to 1, color_jitter from 0 to 1")
        if min(self.rotation, self.crop, self.cutout) < 0:
            raise ValueError("rotation, crop and cutout can't be negative")
        self.alternating = (7,) if self.flip == "alternating" else ()

    def __call__(self, inputs: Any, targets: Any, u: Tensor) -> Batch:
        """Change images, uint8 (N, C, H, W), and masks by u (N, 13)."""
        if isinstance(targets, dict):
            targets = {name: self._target(value, inputs, u) for name, value in targets.items()}
        else:
            targets = self._target(targets, inputs, u)
        return self._recolor(self._move(inputs, u), u), targets

    def _target(self, target: Any, images: Tensor, u: Tensor) -> Any:
        if target.is_floating_point() or target.ndim != 3:
            return target
        is_mask = target.shape[1:] == images.shape[2:]
        return self._move(target[:, None], u, "nearest")[:, 0] if is_mask else target

    def _move(self, images: Tensor, u: Tensor, mode: Interpolation = "bilinear") -> Tensor:
        if self.resized_crop < 1:
            images = random_resized_crop(images, u[:, 0:4], self.resized_crop, mode)
        if self.rotation:
            images = random_rotation(images, u[:, 4], self.rotation, mode)
        if self.crop:
            images = random_crop(images, u[:, 5:7], self.crop, self.padding)
        if self.flip:
            images = random_flip(images, u[:, 7])
        return images

    def _recolor(self, images: Tensor, u: Tensor) -> Tensor:
        if self.color_jitter:
            images = color_jitter(images, u[:, 8:11], self.color_jitter)
        if self.cutout:
            images = cutout(images, u[:, 11:13], self.cutout, self.fill)
        return images
