"""Your own images: one folder per class."""

from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from project.data.augmented import AugmentedImageDataModule
from project.engine.datamodule import Split
from project.engine.image_cache import ImageCache
from project.engine.image_files import MAX_MEGAPIXELS, ImageFiles
from project.engine.image_index import CACHE, READ, Found, beside, find_parts, folders, scan
from project.engine.split import deal, numbers
from project.engine.values import Images


class Part(NamedTuple):
    """The image files of a part, and the class of each, int64 (N,)."""

    files: ImageFiles
    labels: Tensor


class ImageFolderDataModule(AugmentedImageDataModule):
    """Your own images, one folder per class: `root/train/cat/1.jpg`, or just `root/cat/1.jpg`.

    Folders within a class folder are read, too. JPEG, PNG, WebP, BMP, TIFF, GIF (the first
    picture), JPEG 2000, AVIF and PPM are read; everything that is left out is counted and reported.
    Without folders `val` and `test` beside `train`, those examples are taken from the training
    images by a hash of their content and `split_seed`, so that adding, removing or renaming images
    moves none of the others, and copies of an image stay together.

    Args:
        root: Folder with the class folders, or with `train` and optionally `val` and `test`.
        image_size: Height and width to which each image is cropped and scaled, in pixels.
        in_channels: 3 for colour, 1 for grey.
        val_size: Share of the validation images, below 1; unused with `val`.
        test_size: Share of the test images, below 1; unused with `test`.
        memory_budget: Largest size of the decoded images in memory, in GB. Larger data are read
            from disk at every epoch, and normalised by their first 20,000 training images.
        num_workers: Number of processes that read images from disk; unused within the budget.
        cache: Whether decoded images, or hashes of larger data, are kept in `root/.cache`, so that
            the next start is fast.
        max_megapixels: Largest image that is decoded, in millions of pixels; JPEGs are decoded at
            a fraction of their size.
        kwargs: Further options of every image data module.
    """

    def __init__(
        self,
        root: Path,
        image_size: int = 64,
        in_channels: Literal[1, 3] = 3,
        val_size: float = 0.1,
        test_size: float = 0.1,
        memory_budget: float = 4.0,
        num_workers: int = 2,
        cache: bool = True,
        max_megapixels: float = MAX_MEGAPIXELS,
        **kwargs: Any,
    ) -> None:
        super().__init__(val_size=val_size, num_workers=num_workers, **kwargs)
        if image_size < 1:
            raise ValueError(f"image_size {image_size} must be positive")
        self.root, self.image_size, self.in_channels = Path(root), image_size, in_channels
        self.memory_budget, self.cache, self.test_size = memory_budget, cache, test_size
        self.max_megapixels = max_megapixels

    @cached_property
    def _folders(self) -> dict[Split, Path]:
        return find_parts(self.root)

    @cached_property
    def class_names(self) -> list[str]:  # type: ignore[override]
        folder = self._folders["train"]
        if not folder.is_dir():
            raise ValueError(f"{folder.resolve()} is not a folder: set --data.root to your images")
        names = [path.name for path in folders(folder)]
        if len(names) < 2:
            found = f"only {names[0]!r}" if names else "none"
            raise ValueError(
                f"{folder} needs two or more class folders with images in them, found {found}"
            )
        return names

    @cached_property
    def _parts(self) -> dict[Split, Part]:
        """The image files of each part that has a folder; it also reports what is left out."""
        assert self.class_names, "or it has raised what is wrong with the folder"
        total = beside(self.root)
        if self.root != self._folders["train"]:
            for folder in self._folders.values():
                total.add(beside(folder))
        parts: dict[Split, Part] = {}
        for split, folder in self._folders.items():
            if split == "train" or not self._is_flat(split, folder):
                parts[split] = self._find(split, folder, total)
        if reasons := total.reasons():
            rank_zero_info(f"{len(total.paths):,} images in {self.root}; left out: {reasons}")
        total.check(self.root)
        return parts

    def _is_flat(self, split: Split, folder: Path) -> bool:
        """Return whether a folder has images but no classes, as a test set without labels may."""
        loose = beside(folder)
        if folders(folder) or not loose.doubtful:
            return False
        if split == "val":
            raise ValueError(
                f"{folder} has images, but no class folders: put each image into the folder of "
                f"its class, as in {self._folders['train']}"
            )
        rank_zero_info(
            f"{folder} has images, but no class folders, so the test images are taken from "
            f"{self._folders['train']}. After training, `predict --run RUN --images {folder}` "
            "predicts the classes of those in it."
        )
        return True

    def _find(self, split: Split, folder: Path, total: Found) -> Part:
        """Return the images of each class of a part, and add what was found to `total`."""
        names = {path.name for path in folders(folder)}
        if unknown := names - set(self.class_names):
            raise ValueError(f"{folder} has classes that the training images lack: {unknown}")
        paths: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(self.class_names):
            found = _images_of_class(folder / name, needed=split == "train")
            total.add(found)
            paths += found.paths
            labels += [label] * len(found.paths)
        if not paths:
            raise ValueError(f"{folder} has no images: remove it, or fill it")
        files = ImageFiles(paths, self.image_size, self.in_channels, self.max_megapixels)
        return Part(files, torch.tensor(labels))

    def prepare_data(self) -> None:
        """Read the images once for all processes of a machine, which then use the cache."""
        if self.trainer is None or self.trainer.world_size == 1 or not self.cache:
            return
        for split in self._parts:
            self.load(split)

    def load(self, split: Split) -> tuple[Images, Tensor] | None:
        if split not in self._parts:
            return None
        files, labels = self._parts[split]
        size = len(files) * self.in_channels * self.image_size**2
        stem = f"{split}-{self.image_size}x{self.in_channels}"
        kept = self.root / CACHE if self.cache else None
        cache = ImageCache(kept, self._folders[split], stem)
        return cache.read(files, in_memory=size <= self.memory_budget * 1e9), labels

    def files(self, split: Split) -> list[str]:
        part = self._parts.get(split) or self._parts["train"]  # of which it is dealt out
        return [path.relative_to(self.root).as_posix() for path in part.files.paths]

    def deal(self, labels: Tensor, own_val: bool) -> dict[Split, Tensor]:
        """Split by a hash of each image, so that no image moves when others come or go."""
        shares: dict[Split, float] = {"test": self.test_size, "val": self.val_size}
        shares = {split: share for split, share in shares.items() if split not in self._parts}
        for split, share in shares.items():
            if share >= 1:
                raise ValueError(
                    f"{split}_size {share:g} is a number of images, so each new image could move "
                    f"another one to another part: set a share, as --data.{split}_size "
                    f"{share / len(labels):.2g} ({share:g} of {len(labels)})"
                )
        digests = self._parts["train"].files.digests
        return deal(numbers(digests, self.split_seed), labels, shares, self.train_size)


def _images_of_class(folder: Path, needed: bool) -> Found:
    """Return the images of a class, of which not most may be left out, and some may be needed."""
    found = scan(folder) if folder.is_dir() else Found()
    if not found.paths and needed:
        why = f"left out: {reasons}" if (reasons := found.reasons()) else "it is empty"
        raise ValueError(f"class folder {folder} has no images ({why}; {READ} are read)")
    found.check(folder)
    if not found.paths and folder.is_dir():
        found.left_out["empty class folder"] += 1
    return found
