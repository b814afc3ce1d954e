"""FashionMNIST, arXiv:1708.07747: 60,000 + 10,000 grey images of clothing, 28×28, 10 classes."""

import gzip
import math
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from project.data.augmented import AugmentedImageDataModule
from project.data.download import download
from project.engine.datamodule import Split
from project.runs.files import open_regular

FILES = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")}
FILES["test"] = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
DTYPE_UINT8 = 8
CHUNK = 1 << 20  # bytes


def read_idx(path: Path) -> Tensor:
    """Read an IDX file of unsigned bytes, gzipped or not, as a uint8 tensor of its shape.

    It reads, and inflates, no more than the header of the file promises.

    Raises:
        ValueError: If the file is damaged or holds something else.
    """
    try:
        with open_regular(path) as opened:
            file = gzip.GzipFile(fileobj=opened) if path.suffix == ".gz" else opened
            zero, dtype, num_dims = struct.unpack(">HBB", file.read(4))
            shape = struct.unpack(f">{num_dims}I", file.read(4 * num_dims))
            if zero != 0 or dtype != DTYPE_UINT8:
                raise ValueError(f"{path} is not an IDX file of unsigned bytes: copy it again")
            expected = math.prod(shape)
            data = _read_at_most(file, expected + 1)
    except (EOFError, gzip.BadGzipFile, struct.error, zlib.error) as error:
        raise ValueError(f"{path} is truncated or damaged ({error}): copy it again") from error
    if len(data) != expected:
        found = f"{len(data)} follow" if len(data) < expected else "more follow"
        raise ValueError(
            f"{path} is truncated or damaged: its header promises {expected} bytes, {found}. "
            "Copy it again"
        )
    return torch.frombuffer(data or bytearray(1), dtype=torch.uint8)[:expected].view(shape)


def _read_at_most(file: IO[bytes] | gzip.GzipFile, size: int) -> bytearray:
    """Read up to `size` bytes in chunks: a header may promise more than fits in memory."""
    data = bytearray()
    while len(data) < size and (chunk := file.read(min(size - len(data), CHUNK))):
        data += chunk
    return data


class FashionMNISTDataModule(AugmentedImageDataModule):
    """FashionMNIST: 60,000 training and 10,000 test images, grey, 28×28, 10 classes of clothing.

    Args:
        root: Folder with the four IDX files, gzipped or not, or with torchvision's
            `FashionMNIST/raw`; they are downloaded there if missing.
        kwargs: Further options of every image data module.
    """

    in_channels, image_size = 1, 28
    class_names = [
        *("T-shirt", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ]

    def __init__(self, root: Path = Path("data"), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = Path(root)

    def _path(self, name: str) -> Path | None:
        folders = (self.root, self.root / "FashionMNIST" / "raw")
        candidates = (folder / (name + end) for folder in folders for end in ("", ".gz"))
        found = (path for path in candidates if path.exists() and not path.is_dir())
        return next(found, None)

    def prepare_data(self) -> None:
        names = [name for pair in FILES.values() for name in pair]
        if all(self._path(name) for name in names):
            return
        from torchvision.datasets import FashionMNIST

        wanted = " ".join(f"{name}[.gz]" for name in names)
        get = partial(FashionMNIST, str(self.root), download=True)
        download("FashionMNIST", self.root, wanted, get)

    def load(self, split: Split) -> tuple[Tensor, Tensor] | None:
        if split == "val":
            return None
        paths = [self._path(name) for name in FILES[split]]
        assert all(paths), "prepare_data() comes first"
        images, labels = (read_idx(path) for path in paths if path)
        fits = images.shape[1:] == (28, 28) and labels.shape == images.shape[:1] != (0,)
        if not fits or labels.max() > 9:
            raise ValueError(f"{paths[0]} and {paths[1]} do not hold FashionMNIST: copy them again")
        return images.unsqueeze(1), labels.long()
