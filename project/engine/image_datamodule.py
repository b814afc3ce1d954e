"""What all image data modules share: the split and the normalisation."""

import hashlib
from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from ..runs.classes import difference, saved_classes
from .augment import Augment
from .datamodule import Sampling, Split, StreamDataModule
from .loader import Images
from .targets import are_classes, kind

STATISTICS_EXAMPLES = 20_000  # of images on disk; the mean of more does not move by 0.001
UNEQUAL = 1.5  # times; ten equal classes of 50 images stay below it where a random fifth is cut off


class ImageDataModule(StreamDataModule):
    """Training, validation and test images, normalised by the training images' mean and std.

    A concrete class sets `in_channels`, `image_size` and `class_names` and defines `load`.

    Args:
        batch_size: Examples per optimiser step over all processes, not per process.
        train_size: Number of training examples; by default all but the validation examples.
        val_size: Number of validation examples, or their share if below 1. They are cut off the
            training images unless the data bring their own.
        augment: Random changes of training images; validation and test never see one.
        sampling: `class_balanced` trains on all classes equally often: an epoch keeps its length,
            the images of rare classes come several times in it, those of frequent ones take turns.
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
        sampling: Sampling | None = None,
        drop_last: bool = False,
        seed: int = 0,
        split_seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(batch_size, seed)
        self.train_size, self.val_size, self.split_seed = train_size, val_size, split_seed
        self.augment, self.drop_last, self.num_workers = augment, drop_last, num_workers
        self.sampling = sampling

    @abstractmethod
    def load(self, split: Split) -> tuple[Images, Tensor] | None:
        """Images, uint8 (N, C, H, W) or a dataset of uint8 (C, H, W), and labels, int64 (N,).

        Other targets, in a tensor with a row for each image, go without pictures and checks.

        A dataset's `__repr__` names its content, by which a resumed run knows it again.

        None for "val" or "test" means that the data have no such part of their own.
        """

    def files(self, split: Split) -> list[str]:
        """Path of each image that `load` gives of a split, relative to the data's root.

        Empty if the images are not files of their own.
        """
        return []

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def setup(self, stage: str) -> None:
        testing = stage in ("test", "predict")
        if testing and "test" not in self.sets and (own := self.load("test")) is not None:
            self.sets["test"] = (*own, torch.arange(len(own[1])))
        if "train" not in self.sets and not (testing and "test" in self.sets):
            self._split()
            if stage == "fit" and are_classes(self.sets["train"][1]):
                self._report_classes()
        if testing and "test" not in self.sets:
            raise ValueError(
                f"{type(self).__name__} has no test images: give it some, or use `validate`"
            )

    def _split(self) -> None:
        loaded, own = self.load("train"), self.load("val")
        assert loaded is not None
        self._check_targets(loaded[1])
        for split, indices in self.deal(loaded[1], own is not None).items():
            self.sets[split] = (*loaded, indices)
        if own is not None:
            self.sets["val"] = (*own, torch.arange(len(own[1])))

    def deal(self, labels: Tensor, own_val: bool) -> dict[Split, Tensor]:
        """Indices of the images that each part gets, int64, at random by `split_seed`.

        Args:
            labels: Class of each image, int64 (N,).
            own_val: Whether the data bring validation images of their own.
        """
        total = len(labels)
        val_size = 0 if own_val else _count(self.val_size, total)
        test_size = _count(self.test_size, total)
        train_size = total - val_size - test_size if self.train_size is None else self.train_size
        if train_size < 1 or train_size + val_size + test_size > total:
            sizes = [f"val_size {val_size}"] + ([f"test_size {test_size}"] if test_size else [])
            needed = "leaves none for training of"
            if self.train_size is not None:
                sizes.insert(0, f"train_size {train_size}")
                needed = "does not fit"
            given = " + ".join(sizes)
            raise ValueError(f"{given} {needed} the {total} images that there are")
        order = torch.randperm(total, generator=torch.Generator().manual_seed(self.split_seed))
        parts: dict[Split, Tensor] = {"train": order[:train_size]}
        rest = order[train_size:]
        if val_size:
            parts["val"] = rest[:val_size]
        if test_size:
            parts["test"] = rest[val_size:][:test_size]
        return parts

    def _check_targets(self, targets: Any) -> None:
        """Refuse what can't be dealt out as batches, or not in equal numbers of each class."""
        if not isinstance(targets, Tensor):
            raise ValueError(
                f"{type(self).__name__}.load gives {kind(targets)} as targets, but a tensor with a "
                "row for each image is expected: derive from LightningDataModule for other targets"
            )
        if self.sampling is not None and not are_classes(targets):
            raise ValueError(
                f"--data.sampling {self.sampling} needs one class for each image, and the targets "
                f"are {kind(targets)}: leave it out"
            )

    def _report_classes(self) -> None:
        """Say how unequal the training classes are, if they are."""
        labels = {split: labels[indices] for split, (_, labels, indices) in self.sets.items()}
        counts = labels["train"].bincount(minlength=self.num_classes)[: self.num_classes]
        few, many = int(counts.argmin()), int(counts.argmax())
        if counts[many] <= UNEQUAL * counts[few]:
            return
        split: Split = "val" if "val" in labels else "train"
        constant = (labels[split] == many).double().mean().item()
        most, least = self.class_names[many], self.class_names[few]
        images = "image" if counts[many] == 1 else "images"
        rank_zero_info(
            f"Unequal classes: {counts[many]} training {images} of {most}, {counts[few]} of "
            f"{least}. Always predicting {most} would score a {split}/acc of {constant:.3f}.\n"
            + self._advice(counts)
        )

    def _advice(self, counts: Tensor) -> str:
        """What to do about unequal classes."""
        if lacking := int((counts == 0).sum()):
            return (
                f"{lacking} of {self.num_classes} classes have no training image at all: the "
                "network can't learn them, whatever the sampling."
            )
        if self.sampling is None:
            return "To train on all of them equally often: --data.sampling class_balanced"
        return "All of them are drawn equally often, as --data.sampling class_balanced says."

    def _need_training(self) -> None:
        """Read the training images for what a test wants to know of them."""
        if "train" not in self.sets:
            with torch.inference_mode(False):  # tensors made in it could not be trained on later
                self._split()

    def hash_of(self, *splits: Split) -> str:
        if "train" in splits:
            self._need_training()
        return super().hash_of(*splits)

    @cached_property
    def statistics(self) -> tuple[list[float], list[float]]:
        """Mean and std of each channel over the training examples, in units of [0, 1]."""
        self._need_training()
        images, _, indices = self.sets["train"]
        if not isinstance(images, Tensor):
            indices = indices[:STATISTICS_EXAMPLES]
        counts = torch.zeros(self.in_channels, 256, dtype=torch.int64)
        for chunk in indices.split(1000):
            if isinstance(images, Tensor):
                pixels = images.index_select(0, chunk)  # several times faster than [chunk]
            else:
                pixels = torch.stack([images[int(i)] for i in chunk])
            for channel in range(self.in_channels):
                counts[channel] += pixels[:, channel].flatten().bincount(minlength=256)
        share = counts / counts.sum(1, keepdim=True)
        value = torch.arange(256) / 255
        mean = (share * value).sum(1, keepdim=True)
        std = (share * (value - mean) ** 2).sum(1).sqrt()
        return mean.flatten().tolist(), std.clamp(min=1 / 255).tolist()

    def state_dict(self) -> dict[str, Any]:
        """As of every stream, and what new images need to be shown to the network."""
        if state := super().state_dict():
            names = ("image_size", "in_channels", "class_names")
            state["preprocessing"] = {name: getattr(self, name) for name in names}
            state["preprocessing"] |= dict(zip(("mean", "std"), self.statistics, strict=True))
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = saved_classes({"data": state_dict})
        if saved and (differs := difference(saved, self.class_names)):
            raise ValueError(
                f"{type(self).__name__} has other classes than the checkpoint's run ({differs}): "
                "restore their names, or start a new run with --init_from"
            )
        super().load_state_dict(state_dict)

    def digests(self, split: Split) -> list[bytes]:
        """Hash of the content of each image of a split, in its order."""
        images, _, indices = self.sets[split]
        return [
            hashlib.blake2b(images[i].numpy().tobytes(), digest_size=16).digest()
            for i in indices.tolist()
        ]


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
