"""Photos without labels, read and normalised like the images that a network was trained on."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from .datamodule import Split, StreamDataModule
from .image_files import MAX_MEGAPIXELS, ImageFiles
from .image_index import READ, scan
from .transforms import BatchTransform, Normalize


def stored_preprocessing(checkpoint: dict[str, Any]) -> dict[str, Any] | None:
    """Return how a checkpoint's run reads and normalises images, or None if it has no images."""
    for state in checkpoint.values():
        if isinstance(state, dict) and "preprocessing" in state:
            found: dict[str, Any] = state["preprocessing"]
            return found
    return None


def preprocessing(path: Path, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return how a checkpoint's run reads and normalises images, and the names of its classes.

    Raises:
        ValueError: If the checkpoint does not say so.
    """
    found = stored_preprocessing(checkpoint)
    if found is None:
        raise ValueError(
            f"{path} was not trained on images, or is older than `export` and `predict --images`"
        )
    return found


class Photos(ImageFiles):
    """Image files, some of which may be damaged: these are black, and `unreadable` says why."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.unreadable: dict[int, str] = {}

    def __getitem__(self, index: int) -> Tensor:
        try:
            return super().__getitem__(index)
        except ValueError as error:
            self.unreadable[index] = str(error)
            return torch.zeros(self.channels, self.image_size, self.image_size, dtype=torch.uint8)

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        """Read a batch in threads, since what processes note in `unreadable` would be lost."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(self.__getitem__, indices))


class PhotosDataModule(StreamDataModule):
    """The photos in a folder and in the folders in it, as the test set of `predict`."""

    def __init__(
        self,
        root: Path,
        preprocessing: dict[str, Any],
        batch_size: int,
        max_megapixels: float = MAX_MEGAPIXELS,
    ) -> None:
        super().__init__(batch_size, seed=0)
        self.class_names, self.preprocessing = preprocessing["class_names"], preprocessing
        self.num_classes = len(self.class_names)
        self.image_size = preprocessing["image_size"]
        self.in_channels = preprocessing["in_channels"]
        if not root.is_dir():
            raise ValueError(f"--images: {root} is not a folder: name one with images to classify")
        found = scan(root)
        if reasons := found.reasons():
            rank_zero_info(f"{len(found.paths):,} images in {root}; left out: {reasons}")
        found.check(root)
        if not found.paths:
            raise ValueError(f"--images: there are no images in {root} ({READ} are read)")
        self.photos = Photos(found.paths, self.image_size, self.in_channels, max_megapixels)

    def setup(self, stage: str) -> None:
        unknown = torch.zeros(len(self.photos), dtype=torch.int64)
        self.sets["test"] = (self.photos, unknown, torch.arange(len(unknown)))

    def batch_transform(self, split: Split) -> BatchTransform:
        return Normalize(self.preprocessing["mean"], self.preprocessing["std"])
