"""Augmentations as functions of a whole batch and of one row of uniform numbers per image.

`v2` of torchvision draws one crop, flip or angle for a whole batch, so what differs from image to
image is written here with batched operations of torch. Numbers that leave an image as it is are
given for each function; they make it testable.

Legend: N images, C channels, H height, W width; images are uint8, `u` is float32 in [0, 1).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

PaddingMode = Literal["reflect", "zeros"]


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


def random_resized_crop(images: Tensor, u: Tensor, scale: float) -> Tensor:
    """Zoom into a part of area `scale` to 1 and aspect 3:4 to 4:3, by u (N, 4); (1, 0.5) is all.

    Inception's crop, arXiv:1409.4842.
    """
    area, aspect = scale + (1 - scale) * u[:, 0], (2 * u[:, 1] - 1) * math.log(4 / 3)
    height = (area * torch.exp(-aspect)).sqrt().clamp(max=1)
    width = (area * torch.exp(aspect)).sqrt().clamp(max=1)
    y, x = (2 * u[:, 2] - 1) * (1 - height), (2 * u[:, 3] - 1) * (1 - width)
    zero = torch.zeros_like(x)
    return _affine(images, torch.stack([width, zero, x, zero, height, y], dim=1))


def random_rotation(images: Tensor, u: Tensor, degrees: float) -> Tensor:
    """Rotate by up to `degrees` either way, by u (N,); 0.5 does not rotate."""
    height, width = images.shape[-2:]
    angle = (2 * u - 1) * math.radians(degrees)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    matrix = [cos, -sin * height / width, zero, sin * width / height, cos, zero]
    return _affine(images, torch.stack(matrix, dim=1))


def _affine(images: Tensor, matrix: Tensor) -> Tensor:
    """Sample each image at the points that its row-major (2, 3) matrix, a row of (N, 6), gives."""
    grid = F.affine_grid(matrix.view(-1, 2, 3), list(images.shape), align_corners=False)
    sampled = F.grid_sample(images.float(), grid, padding_mode="reflection", align_corners=False)
    return sampled.round_().to(torch.uint8)


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

    The part of the square that falls outside is lost. `fill` is in units of [0, 1], per channel.
    """
    height, width = images.shape[-2:]
    top = (u[:, :1] * height).long() - size // 2
    left = (u[:, 1:] * width).long() - size // 2
    y, x = torch.arange(height) - top, torch.arange(width) - left
    hidden = ((y >= 0) & (y < size))[:, None, :, None] & ((x >= 0) & (x < size))[:, None, None, :]
    color = (torch.tensor(fill) * 255).round().to(torch.uint8).view(-1, 1, 1)
    return torch.where(hidden, color, images)


@dataclass
class Augment:
    """Random changes of training images, in the order of the arguments; all are off by default.

    Args:
        resized_crop: Smallest share of the image's area that a random crop keeps before it is
            scaled back to full size; 1 is off.
        rotation: Largest angle, in degrees either way; 0 is off.
        crop: Largest shift, in pixels each way; 0 is off.
        padding: What a shift brings in: the reflected image, or zeros.
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

    num_uniforms: ClassVar[int] = 13
    flip_uniform: ClassVar[int] = 7

    def __post_init__(self) -> None:
        if not 0 < self.resized_crop <= 1 or not 0 <= self.color_jitter <= 1:
            raise ValueError("resized_crop must be above 0 and up to 1, color_jitter from 0 to 1")
        if min(self.rotation, self.crop, self.cutout) < 0:
            raise ValueError("rotation, crop and cutout can't be negative")

    def __call__(self, images: Tensor, u: Tensor, mean: Sequence[float] = (0.0,)) -> Tensor:
        """Change images, uint8 (N, C, H, W), by u (N, num_uniforms); `mean` fills the cutout."""
        if self.resized_crop < 1:
            images = random_resized_crop(images, u[:, 0:4], self.resized_crop)
        if self.rotation:
            images = random_rotation(images, u[:, 4], self.rotation)
        if self.crop:
            images = random_crop(images, u[:, 5:7], self.crop, self.padding)
        if self.flip:
            images = random_flip(images, u[:, self.flip_uniform])
        if self.color_jitter:
            images = color_jitter(images, u[:, 8:11], self.color_jitter)
        if self.cutout:
            images = cutout(images, u[:, 11:13], self.cutout, mean)
        return images
