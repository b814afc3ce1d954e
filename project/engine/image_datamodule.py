"""What all image data modules share: the split and the normalisation."""

from abc import abstractmethod
from functools import cached_property
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from ..runs.classes import difference, saved_classes
from .class_report import unequal_classes
from .datamodule import Sampling, Split, StreamDataModule
from .pixel_statistics import mean_and_std
from .split import at_random
from .targets import are_classes, kind
from .transforms import BatchTransform, Compose, Normalize
from .values import Images, Source, count


class ImageDataModule(StreamDataModule):
    """Training, validation and test images, normalised by the training images' mean and std.

    A concrete class sets `in_channels`, `image_size` and `class_names` and defines `load`.

    Args:
        batch_size: Examples per optimiser step over all processes, not per process.
        train_size: Number of training examples; by default all but the validation examples.
        val_size: Number of validation examples, or their share if below 1. They are split off the
            training images, unless the data set has a validation part of its own.
        transforms: Transforms of whole training batches, applied in this order to the normalised
            images and the targets, such as a mixup of your own.
        sampling: Order of the training examples: `class_balanced` shows all classes equally often.
            An epoch keeps its length, the images of rare classes come several times in it, those of
            frequent ones take turns.
        drop_last: Whether to leave out the training examples that do not fill the last batch.
        seed: Random seed of the order and of the augmentation; the command line sets it to the
            run's seed.
        split_seed: Random seed of the split into training and validation. It is separate from the
            run's seed, so that runs with other seeds are compared on the same validation examples.
        num_workers: Number of processes that read images from disk; unused for data in memory.
    """

    in_channels: int
    image_size: int
    class_names: list[str]
    test_size: int | float = 0  # only data sets without test images of their own split some off

    def __init__(
        self,
        batch_size: int = 128,
        train_size: int | None = None,
        val_size: int | float = 5000,
        transforms: list[BatchTransform] | None = None,
        sampling: Sampling | None = None,
        drop_last: bool = False,
        seed: int = 0,
        split_seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(batch_size, seed)
        self.train_size, self.val_size, self.split_seed = train_size, val_size, split_seed
        self.transforms, self.sampling = transforms or [], sampling
        self.drop_last, self.num_workers = drop_last, num_workers

    @abstractmethod
    def load(self, split: Split) -> tuple[Images, Source] | None:
        """Return images and targets of a split, or None if the data have no such part.

        Images are uint8 (N, C, H, W), or a dataset of uint8 (C, H, W). Targets are classes, int64
        (N,), or any tensors with a row for each image, a dict of these, or a dataset of them; what
        needs classes is left out for others. The `__repr__` of a dataset names its content, by
        which a resumed run recognises it.
        """

    def files(self, split: Split) -> list[str]:
        """Return the path of each image that `load` gives of a split, relative to the data's root.

        The list is empty if the images are not files of their own.
        """
        return []

    def pixel_transform(self) -> BatchTransform | None:
        """Return the random changes of training images before they are normalised, or None."""
        return None

    def batch_transform(self, split: Split) -> BatchTransform:
        normalize = Normalize(*self.statistics)
        if split != "train":
            return normalize
        changes = self.pixel_transform()
        parts = [*([changes] if changes else []), normalize, *self.transforms]
        return Compose(parts) if len(parts) > 1 else normalize

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def setup(self, stage: str) -> None:
        testing = stage in ("test", "predict")
        if testing and "test" not in self.sets and (own := self.load("test")) is not None:
            self.sets["test"] = (*own, torch.arange(count(own[1])))
        if "train" not in self.sets and not (testing and "test" in self.sets):
            self._split()
            if stage == "fit":
                self._report_classes()
        if testing and "test" not in self.sets:
            raise ValueError(
                f"{type(self).__name__} has no test images: give it some, or use `validate`"
            )

    def _split(self) -> None:
        loaded, own = self.load("train"), self.load("val")
        assert loaded is not None
        targets = loaded[1]
        if self.sampling is not None and not are_classes(targets):
            raise ValueError(
                f"--data.sampling {self.sampling} needs one class for each image, and the targets "
                f"are {kind(targets)}: leave it out"
            )
        for split, indices in self.deal(targets, own is not None).items():
            self.sets[split] = (*loaded, indices)
        if own is not None:
            self.sets["val"] = (*own, torch.arange(count(own[1])))

    def deal(self, targets: Any, own_val: bool) -> dict[Split, Tensor]:
        """Return the indices of the images of each part, int64, at random by `split_seed`.

        Args:
            targets: Targets of all images.
            own_val: Whether the data set has validation images of its own.
        """
        val_size = 0 if own_val else self.val_size
        return at_random(count(targets), self.train_size, val_size, self.test_size, self.split_seed)

    def _report_classes(self) -> None:
        """Say how unequal the training classes are, if they are."""
        parts = {s: targets[i] for s, (_, targets, i) in self.sets.items() if are_classes(targets)}
        if "train" not in parts:
            return
        balanced = self.sampling is not None
        report = unequal_classes(parts["train"], parts.get("val"), self.class_names, balanced)
        if report:
            rank_zero_info(report)

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
        return mean_and_std(images, indices, self.in_channels)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every stream, and what new images need to be shown to the network."""
        if state := super().state_dict():
            state["preprocessing"] = {
                "image_size": self.image_size,
                "in_channels": self.in_channels,
                "class_names": self.class_names,
                "mean": self.statistics[0],
                "std": self.statistics[1],
            }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = saved_classes({"data": state_dict})
        if saved and (differs := difference(saved, self.class_names)):
            raise ValueError(
                f"{type(self).__name__} has other classes than the checkpoint's run ({differs}): "
                "restore their names, or start a new run with --init_from"
            )
        super().load_state_dict(state_dict)
