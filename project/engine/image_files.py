"""Decoding of image files, one by one on demand or all at once."""

import hashlib
import io
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset

from ..runs.files import open_regular, read_bytes
from .image_index import FORMATS

LISTED = 10  # most bad files that an error names
MAX_MEGAPIXELS = 179.0  # Pillow's own limit, against images that would fill the memory
TURNED = {  # transposition for each value of the orientation tag, EXIF 2.32, section 4.6.4
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")  # about damaged EXIF data
Image.MAX_IMAGE_PIXELS = None  # it counts the pixels of a JPEG unreduced; `_reduce` checks instead


class DamagedImageError(ValueError):
    """An image can't be read; the message names it and the cause.

    A worker of a DataLoader passes the whole traceback as the message; only its last line is kept.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.strip().rpartition(f"{type(self).__name__}: ")[2])


def read_image(
    path: Path, image_size: int, channels: int, megapixels: float = MAX_MEGAPIXELS
) -> Tensor:
    """Open a regular file and decode the image in it."""
    with open_regular(path) as file:
        return decode(file, image_size, channels, megapixels)


def decode(file: IO[bytes], image_size: int, channels: int, megapixels: float) -> Tensor:
    """Decode an image to uint8 (C, image_size, image_size), cropped to a square about its centre.

    A photo is rotated as its EXIF data say, transparent parts become white, and 16 bits become 8.
    If an image has several frames, only the first one is used.

    Args:
        file: Open image file.
        image_size: Height and width, in pixels.
        channels: 3 for colour, 1 for grey.
        megapixels: Largest size that is decoded, in megapixels. It is compared with the fraction of
            its size at which a JPEG is decoded.
    """
    with Image.open(file, formats=FORMATS) as image:
        _reduce(image, image_size, megapixels)
        turned = _upright(image)
        pixels = _square(_flat(turned, channels), image_size)
    array = np.asarray(pixels).reshape(image_size, image_size, channels)
    return torch.from_numpy(array.transpose(2, 0, 1).copy())


def _reduce(image: Image.Image, image_size: int, megapixels: float) -> None:
    """Set a JPEG to be decoded at a fraction of its size, many times faster; refuse huge images."""
    full = image.size
    image.draft("RGB", (image_size, image_size))
    # While a progressive JPEG is decoded, it takes up its full size in memory.
    width, height = full if "progressive" in image.info else image.size
    if width * height > megapixels * 1e6:
        raise ValueError(
            f"it has {full[0]}×{full[1]} pixels, {full[0] * full[1] / 1e6:.0f} megapixels: to read "
            f"it anyway, set --data.max_megapixels above {megapixels:g}"
        )


def _upright(image: Image.Image) -> Image.Image:
    """Rotate an image upright by its EXIF data, which may be damaged."""
    image.load()  # TIFF and AVIF rotate themselves, and then reset the orientation
    orientation = 1
    with suppress(Exception):  # damaged EXIF data can raise anything
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    method = TURNED.get(orientation)
    return image if method is None else image.transpose(method)


def _flat(image: Image.Image, channels: int) -> Image.Image:
    """Convert an image to 8 bits, without transparency."""
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError("its values have more than 16 bits: save it with 8 or 16")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its values are floating point, in an unknown range: save it with 8 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    mode = "RGB" if channels == 3 else "L"
    return image if image.mode == mode else image.convert(mode)


def _square(image: Image.Image, image_size: int) -> Image.Image:
    size = (image_size, image_size)
    return image if image.size == size else ImageOps.fit(image, size, Image.Resampling.BICUBIC)


def _cannot(path: Path, error: Exception) -> str:
    """Return the sentence for a file that can't be read."""
    cause = (error.strerror if isinstance(error, OSError) else None) or error
    if isinstance(error, UnidentifiedImageError):
        cause = "its format is not known"
    return f"{path} can't be read as an image ({cause})"


class ImageFiles(Dataset[Tensor]):
    """Images of a list of files, uint8 (C, H, W), each decoded on demand.

    Args:
        paths: Paths of the files.
        image_size: Height and width, in pixels.
        channels: 3 for colour, 1 for grey.
        megapixels: Largest size of an image that is decoded, in megapixels.
        digests: Hash of the content of each file, if known.
    """

    def __init__(
        self,
        paths: list[Path],
        image_size: int,
        channels: int,
        megapixels: float = MAX_MEGAPIXELS,
        digests: list[bytes] | None = None,
    ) -> None:
        self.paths, self.image_size, self.channels = paths, image_size, channels
        self.megapixels, self.digests = megapixels, digests or []

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        path = self.paths[index]
        try:
            return read_image(path, self.image_size, self.channels, self.megapixels)
        except Exception as error:  # a damaged image can raise anything
            raise DamagedImageError(_cannot(path, error)) from error

    def identity(self, indices: Tensor) -> bytes:
        """Return bytes that identify the content of some images and how they are decoded."""
        held = b"".join(self.digests[i] for i in indices.tolist())
        return f"{self.image_size}x{self.channels} ".encode() + held

    def read_all(self, todo: list[int], pixels: Tensor | None) -> dict[int, bytes]:
        """Read and decode each of the files once, on all cores.

        Args:
            todo: Indices of the files.
            pixels: Tensor that the images are written to, uint8 (N, C, H, W), or None to drop them.

        Returns:
            The hash of the content of each file, by its index.

        Raises:
            ValueError: If files can't be read; the message names them.
        """

        def read(index: int) -> bytes | str:
            try:
                content = read_bytes(self.paths[index])
                file = io.BytesIO(content)
                image = decode(file, self.image_size, self.channels, self.megapixels)
            except Exception as error:  # a damaged image can raise anything
                return _cannot(self.paths[index], error)
            if pixels is not None:
                pixels[index] = image
            return hashlib.blake2b(content, digest_size=16).digest()

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            read_files = dict(zip(todo, pool.map(read, todo), strict=True))
        bad = [error for error in read_files.values() if isinstance(error, str)]
        if bad:
            more = [f"and {len(bad) - LISTED} more"] if len(bad) > LISTED else []
            listed = "; ".join(bad[:LISTED] + more)
            raise ValueError(f"remove or replace {len(bad)} of {len(self)} files: {listed}")
        return {index: digest for index, digest in read_files.items() if isinstance(digest, bytes)}
