"""The user's own images: one folder per class."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from project.data.datamodule import ImageDataModule
from project.data.loader import Images
from project.data.stream import Split
from project.files import check_regular, open_regular

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}
LISTED = 20  # bad files named in one error


def read_image(path: Path, image_size: int, channels: int) -> Tensor:
    """Decode an image to uint8 (C, image_size, image_size), cropped to a square about its centre.

    A photo is turned as its EXIF data say; transparent parts become white; 16 bits become 8.
    """
    with open_regular(path) as opened, Image.open(opened) as file:
        # JPEG decodes at a fraction of its size, which is many times faster for photos.
        file.draft("RGB", (image_size, image_size))
        image = ImageOps.exif_transpose(file) if file.getexif() else file
        if image.mode.startswith("I"):
            image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8))
        if image.has_transparency_data:
            image = image.convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image)
        mode, size = "RGB" if channels == 3 else "L", (image_size, image_size)
        if image.mode != mode:
            image = image.convert(mode)
        if image.size != size:
            image = ImageOps.fit(image, size, Image.Resampling.BICUBIC)
        pixels = np.asarray(image).reshape(image_size, image_size, channels)
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


class ImageFiles(Dataset[Tensor]):
    """Decodes an image of a list of files, uint8 (C, H, W), when it is asked for."""

    def __init__(self, paths: list[Path], image_size: int, channels: int) -> None:
        self.paths, self.image_size, self.channels = paths, image_size, channels

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        path = self.paths[index]
        try:
            return read_image(path, self.image_size, self.channels)
        except Exception as error:  # a damaged image can raise anything
            raise ValueError(f"{path} can't be read as an image ({error})") from error

    def __repr__(self) -> str:
        """Names and sizes of the files, as the data's identity."""
        files = (f"{path.parent.name}/{path.name}:{path.stat().st_size}" for path in self.paths)
        return f"{self.image_size}x{self.channels} " + " ".join(files)

    def read_cached(self, folder: Path, name: str) -> Tensor:
        """As `read_all`, from a file that is kept in `folder` for as long as no image changes.

        Its name has the hash of names, sizes and times of the images. It is mapped, not read.
        """
        stats = ((path, path.stat()) for path in self.paths)
        state = "".join(f"{p.parent.name}/{p.name} {s.st_size} {s.st_mtime_ns}\n" for p, s in stats)
        stem = f"{name}-{self.image_size}x{self.channels}-"
        path = folder / f"{stem}{hashlib.sha256(state.encode()).hexdigest()[:16]}.npy"
        with suppress(OSError, ValueError, EOFError):  # missing or damaged
            check_regular(path)
            return torch.from_numpy(np.load(path, mmap_mode="c"))
        images = self.read_all()
        partial = path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # a folder that can't be written to, or is full, keeps none
            folder.mkdir(exist_ok=True)
            for stale in folder.glob(f"{stem}*"):
                stale.unlink(missing_ok=True)
            try:
                with partial.open("wb") as file:
                    np.save(file, images.numpy())
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        return images

    def read_all(self) -> Tensor:
        """Decode all files, uint8 (N, C, H, W), on all cores.

        Raises:
            ValueError: With the names of the files that can't be read.
        """
        shape = (len(self), self.channels, self.image_size, self.image_size)
        images = torch.empty(shape, dtype=torch.uint8)

        def read(index: int) -> str | None:
            try:
                images[index] = self[index]
            except ValueError as error:
                return str(error)
            return None

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            bad = [error for error in pool.map(read, range(len(self))) if error]
        if bad:
            more = f"\n  and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
            listed = "".join(f"\n  {line}" for line in bad[:LISTED])
            raise ValueError(f"remove or replace {len(bad)} of {len(self)} files:{listed}{more}")
        return images


def _visible(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!.]*"))


class ImageFolderDataModule(ImageDataModule):
    """Your own images, one folder per class: `root/train/cat/1.jpg`, or just `root/cat/1.jpg`.

    JPEG, PNG, WebP and BMP; hidden and other files are skipped. Without folders `val` and `test`
    beside `train`, those examples are cut off the training images by `split_seed`.

    Args:
        root: Folder with the class folders, or with `train` and optionally `val` and `test`.
        image_size: Height and width to which each image is cropped and scaled, in pixels.
        in_channels: 3 for colour, 1 for grey.
        val_size: Number of validation examples, or their share if below 1; unused with `val`.
        test_size: Number of test examples, or their share if below 1; unused with `test`.
        memory_budget: Largest size of the decoded images in memory, in GB. Larger data are read
            from disk at every epoch, and normalised by their first 20,000 training images.
        num_workers: Processes that read images from disk; unused within the memory budget.
        cache: Whether decoded images are kept in `root/.cache`, so that the next start is fast.
        kwargs: As for every image data module.
    """

    def __init__(
        self,
        root: Path,
        image_size: int = 64,
        in_channels: Literal[1, 3] = 3,
        val_size: int | float = 0.1,
        test_size: int | float = 0.1,
        memory_budget: float = 4.0,
        num_workers: int = 2,
        cache: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(val_size=val_size, num_workers=num_workers, **kwargs)
        if image_size < 1:
            raise ValueError(f"image_size {image_size} must be positive")
        self.root, self.image_size, self.in_channels = Path(root), image_size, in_channels
        self.memory_budget, self.cache = memory_budget, cache
        nested = (self.root / "train").is_dir()
        self.test_size = 0 if nested and (self.root / "test").is_dir() else test_size

    def _folder(self, split: Split) -> Path:
        nested = (self.root / "train").is_dir()
        return self.root / split if nested else self.root

    @cached_property
    def class_names(self) -> list[str]:  # type: ignore[override]
        folder = self._folder("train")
        if not folder.is_dir():
            raise ValueError(f"{folder.resolve()} is no folder: set --data.root to your images")
        names = [path.name for path in _visible(folder) if path.is_dir()]
        if len(names) < 2:
            found = f"only {names[0]!r}" if names else "none"
            raise ValueError(
                f"{folder} needs two or more class folders with images in them, found {found}"
            )
        return names

    def load(self, split: Split) -> tuple[Images, Tensor] | None:
        folder = self._folder(split)
        if split != "train" and (folder == self.root or not folder.is_dir()):
            return None
        siblings = {path.name for path in _visible(self.root) if path.is_dir()}
        if folder != self.root and (others := siblings - {"train", "val", "test"}):
            raise ValueError(f"{self.root} may have train, val and test in it, not {others}")
        unknown = {path.name for path in _visible(folder) if path.is_dir()} - set(self.class_names)
        if unknown:
            raise ValueError(f"{folder} has classes that the training images lack: {unknown}")
        paths: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(self.class_names):
            found = [p for p in _visible(folder / name) if p.suffix.lower() in SUFFIXES]
            if not found and split == "train":
                raise ValueError(f"class folder {folder / name} has no images ({sorted(SUFFIXES)})")
            paths += found
            labels += [label] * len(found)
        if not paths:
            raise ValueError(f"{folder} has no images: remove it, or fill it")
        files = ImageFiles(paths, self.image_size, self.in_channels)
        size = len(files) * self.in_channels * self.image_size**2
        if size > self.memory_budget * 1e9:
            return files, torch.tensor(labels)
        cached = files.read_cached(self.root / ".cache", split) if self.cache else files.read_all()
        return cached, torch.tensor(labels)
