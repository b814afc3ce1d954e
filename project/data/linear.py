"""Noisy points of a linear function: data whose truth is known, and an example of a data set."""

from collections.abc import Sequence

import torch

from project.engine.datamodule import Split, StreamDataModule
from project.engine.keyed import generator

SPLITS: tuple[Split, ...] = ("train", "val", "test")


class LinearDataModule(StreamDataModule):
    """Noisy values of a linear function, y = Xw + b + noise, with X of standard normal numbers.

    Args:
        weight: The true w, one number per feature.
        bias: The true b.
        noise: Standard deviation of the noise. Its square is the lowest expected loss of any model.
        train_size: Number of training points.
        val_size: Number of validation points.
        test_size: Number of test points.
        batch_size: Points per optimiser step over all processes, not per process.
        seed: Random seed of the order; the command line sets it to the run's seed.
        split_seed: Random seed of the points. It is separate from the run's seed, so that runs with
            other seeds are compared on the same points.
    """

    def __init__(
        self,
        weight: Sequence[float] = (2.0, -3.4),
        bias: float = 4.2,
        noise: float = 0.1,
        train_size: int = 1000,
        val_size: int = 1000,
        test_size: int = 1000,
        batch_size: int = 32,
        seed: int = 0,
        split_seed: int = 0,
    ) -> None:
        super().__init__(batch_size, seed)
        if min(len(weight), train_size, val_size, test_size) < 1 or noise < 0:
            raise ValueError("sizes must be positive, and noise not negative")
        self.weight, self.bias, self.noise = torch.tensor(weight), bias, noise
        self.num_features, self.sizes = len(weight), (train_size, val_size, test_size)
        self.split_seed = split_seed

    def setup(self, stage: str) -> None:
        for i, (split, size) in enumerate(zip(SPLITS, self.sizes, strict=True)):
            key = generator(self.split_seed, i)
            x, noise = torch.randn(size, self.num_features + 1, generator=key).tensor_split([-1], 1)
            y = x @ self.weight + self.bias + self.noise * noise.flatten()
            self.sets[split] = x, y, torch.arange(size)
