"""Mean and standard deviation of the pixels of images, by which they are normalised."""

import torch
from torch import Tensor

from .values import Images

ON_DISK = 20_000  # images on disk that are read; the mean of more does not move by 0.001
CHUNK = 1000  # images that are decoded at once


def mean_and_std(images: Images, indices: Tensor, channels: int) -> tuple[list[float], list[float]]:
    """Return mean and std of each channel over some images, in units of [0, 1].

    Args:
        images: uint8 (N, C, H, W), or a dataset of uint8 (C, H, W), of which the first are read.
        indices: The images to use, int64.
        channels: Number of channels.
    """
    if not isinstance(images, Tensor):
        indices = indices[:ON_DISK]
    counts = torch.zeros(channels, 256, dtype=torch.int64)
    for chunk in indices.split(CHUNK):
        if isinstance(images, Tensor):
            pixels = images.index_select(0, chunk)  # several times faster than [chunk]
        else:
            pixels = torch.stack([images[i] for i in chunk.tolist()])
        for channel in range(channels):
            counts[channel] += pixels[:, channel].flatten().bincount(minlength=256)
    share = counts / counts.sum(1, keepdim=True)
    value = torch.arange(256) / 255
    mean = (share * value).sum(1, keepdim=True)
    std = (share * (value - mean) ** 2).sum(1).sqrt()
    return mean.flatten().tolist(), std.clamp(min=1 / 255).tolist()
