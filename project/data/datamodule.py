"""What all image data modules share: the split, the normalisation, the loaders, the position."""

import hashlib
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor

from project.data.augment import Augment
from project.data.loader import Images, TensorLoader

Split = Literal["train", "val", "test"]

STATISTICS_EXAMPLES = 20_000  # of images on disk; the mean of more does not move by 0.001
EVAL_FACTOR = 4  # without gradients no activations are kept, so evaluation batches can be larger


class ImageDataModule(L.LightningDataModule, ABC):
    """Training, validation and test images, normalised by the training images' mean and std.

    A concrete class sets `in_channels`, `image_size` and `class_names` and defines `load`.

    Args:
        batch_size: Examples per optimiser step over all processes, not per process.
        train_size: Number of training examples; by default all but the validation examples.
        val_size: Number of validation examples, or their share if below 1. They are cut off the
            training images unless the data bring their own.
        augment: Random changes of training images; validation and test never see one.
        drop_last: Leave out the training examples that do not fill the last batch of an epoch.
        seed: Of the order and of the augmentation; the command line sets it to the run's seed.
        split_seed: Of the split into training and validation. It is apart from the run's seed, so
            that runs with other seeds are compared on the same validation examples.
        num_workers: Processes that read images from disk; unused for data in memory.
    """

    in_channels: int
    image_size: int
    class_names: list[str]
    test_size: int | float = 0  # only data without test images of their own cut some off

    def __init__(
        self,
        batch_size: int = 128,
        train_size: int | None = None,
        val_size: int | float = 5000,
        augment: Augment | None = None,
        drop_last: bool = False,
        seed: int = 0,
        split_seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size} must be positive")
        self.batch_size, self.train_size, self.val_size = batch_size, train_size, val_size
        self.augment, self.drop_last = augment, drop_last
        self.seed, self.split_seed, self.num_workers = seed, split_seed, num_workers
        self.sets: dict[Split, tuple[Images, Tensor, Tensor]] = {}  # images, labels, indices
        self._train_loader: TensorLoader | None = None
        self._position: dict[str, int] | None = None

    @abstractmethod
    def load(self, split: Split) -> tuple[Images, Tensor] | None:
        """Images, uint8 (N, C, H, W) or a dataset of uint8 (C, H, W), and labels, int64 (N,).

        None for "val" or "test" means that the data have no such part of their own.
        """

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def setup(self, stage: str) -> None:
        if "train" not in self.sets:
            self._split()
        if stage in ("test", "predict") and "test" not in self.sets:
            own = self.load("test")
            if own is None:
                raise ValueError(
                    f"{type(self).__name__} has no test images: give it some, or use `validate`"
                )
            self.sets["test"] = (*own, torch.arange(len(own[1])))

    def _split(self) -> None:
        loaded = self.load("train")
        assert loaded is not None
        images, labels = loaded
        total, val = len(labels), self.load("val")
        val_size = 0 if val else _count(self.val_size, total)
        test_size = _count(self.test_size, total)
        train_size = total - val_size - test_size if self.train_size is None else self.train_size
        if train_size < 1 or train_size + val_size + test_size > total:
            parts = f"train_size {train_size} + val_size {val_size}"
            parts += f" + test_size {test_size}" if test_size else ""
            raise ValueError(f"{parts} does not fit the {total} images that there are")
        order = torch.randperm(total, generator=torch.Generator().manual_seed(self.split_seed))
        self.sets["train"] = (images, labels, order[:train_size])
        rest = order[train_size:]
        if val is not None:
            self.sets["val"] = (*val, torch.arange(len(val[1])))
        elif val_size:
            self.sets["val"] = (images, labels, rest[:val_size])
        if test_size:
            self.sets["test"] = (images, labels, rest[val_size:][:test_size])

    @cached_property
    def statistics(self) -> tuple[list[float], list[float]]:
        """Mean and std of each channel over the training examples, in units of [0, 1]."""
        images, _, indices = self.sets["train"]
        if not isinstance(images, Tensor):
            indices = indices[:STATISTICS_EXAMPLES]
        counts = torch.zeros(self.in_channels, 256, dtype=torch.int64)
        for chunk in indices.split(1000):
            if isinstance(images, Tensor):
                pixels = images[chunk]
            else:
                pixels = torch.stack([images[int(i)] for i in chunk])
            for channel in range(self.in_channels):
                counts[channel] += pixels[:, channel].flatten().bincount(minlength=256)
        share = counts / counts.sum(1, keepdim=True)
        value = torch.arange(256) / 255
        mean = (share * value).sum(1, keepdim=True)
        std = (share * (value - mean) ** 2).sum(1).sqrt()
        return mean.flatten().tolist(), std.clamp(min=1 / 255).tolist()

    @cached_property
    def sha256(self) -> str:
        """Hash of the training and validation examples in their order, labels included."""
        digest = hashlib.sha256()
        for split in ("train", "val"):
            if split in self.sets:
                images, labels, indices = self.sets[split]
                digest.update(labels[indices].numpy().tobytes())
                if isinstance(images, Tensor):
                    for chunk in indices.split(1000):
                        digest.update(images[chunk].numpy().tobytes())
                else:
                    digest.update(repr(images).encode())
        return digest.hexdigest()

    def _loader(self, split: Split, batch_size: int, train: bool = False) -> TensorLoader:
        images, labels, indices = self.sets[split]
        mean, std = self.statistics
        return TensorLoader(
            images,
            labels,
            batch_size,
            indices=indices,
            mean=mean,
            std=std,
            shuffle=train,
            augment=self.augment if train else None,
            drop_last=train and self.drop_last,
            seed=self.seed,
            rank=self.trainer.global_rank if self.trainer else 0,
            world_size=self.trainer.world_size if self.trainer else 1,
            num_workers=self.num_workers,
        )

    def train_dataloader(self) -> TensorLoader:
        loader = self._loader("train", self.batch_size, train=True)
        if self._position is not None:
            loader.load_state_dict(self._position)
            self._position = None
        self._train_loader = loader
        return loader

    def val_dataloader(self) -> TensorLoader | list[TensorLoader]:
        return self._loader("val", EVAL_FACTOR * self.batch_size) if "val" in self.sets else []

    def test_dataloader(self) -> TensorLoader:
        return self._loader("test", EVAL_FACTOR * self.batch_size)

    def predict_dataloader(self) -> TensorLoader:
        return self.test_dataloader()

    def state_dict(self) -> dict[str, Any]:
        """The position in the training stream, and which data it is.

        It is kept here and not by the loader alone, since this is the one state that Lightning
        restores before any loader exists and at every kind of checkpoint.
        """
        if self._train_loader is None:
            return {}
        return {"position": self._train_loader.state_dict(), "sha256": self.sha256}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["sha256"] != self.sha256:
            raise ValueError(
                f"{type(self).__name__} holds other training or validation examples than those of "
                "the checkpoint: restore them, or start a new run with --init_from"
            )
        self._position = state_dict["position"]


def _count(size: int | float, total: int) -> int:
    if size < 0 or (size > 1 and size != int(size)):
        raise ValueError(f"size {size} is neither a number of examples nor a share below 1")
    return round(size * total) if size < 1 else int(size)


def missing(what: str, root: Path, wanted: str, cause: Exception) -> ValueError:
    """The error for data that are neither on disk nor to be had from the network."""
    reason = " ".join((str(cause) or repr(cause)).split())
    return ValueError(
        f"no {what} under {root.resolve()}: looked for {wanted}, and the download failed "
        f"({reason}). Put a copy there, name its folder with --data.root, or try the project "
        "without data: --config synthetic"
    )
