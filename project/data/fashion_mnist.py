"""FashionMNIST, arXiv:1708.07747: 60,000 + 10,000 grey images of clothing, 28×28, 10 classes."""

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from project.data.datamodule import ImageDataModule, missing
from project.data.stream import Split

FILES = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")}
FILES["test"] = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
DTYPE_UINT8 = 8


def read_idx(path: Path) -> Tensor:
    """Read an IDX file of unsigned bytes, gzipped or not, as a uint8 tensor of its shape.

    Raises:
        ValueError: If the file is damaged or holds something else.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zero, dtype, num_dims = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{num_dims}I", data, 4)
    except (EOFError, gzip.BadGzipFile, struct.error, zlib.error) as error:
        raise ValueError(f"{path} is truncated or damaged ({error}): copy it again") from error
    pixels = torch.frombuffer(bytearray(data), dtype=torch.uint8)[4 + 4 * num_dims :]
    expected = torch.Size(shape).numel()
    if zero != 0 or dtype != DTYPE_UINT8 or len(pixels) != expected:
        raise ValueError(
            f"{path} is truncated or no IDX file: its header promises {expected} bytes, "
            f"{len(pixels)} follow. Copy it again"
        )
    return pixels.view(shape)


class FashionMNISTDataModule(ImageDataModule):
    """FashionMNIST: 60,000 training and 10,000 test images, grey, 28×28, 10 classes of clothing.

    Args:
        root: Folder with the four IDX files, gzipped or not, or with torchvision's
            `FashionMNIST/raw`; they are downloaded there if missing.
        kwargs: As for every image data module.
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
        return next((path for path in candidates if path.is_file()), None)

    def prepare_data(self) -> None:
        names = [name for pair in FILES.values() for name in pair]
        if all(self._path(name) for name in names):
            return
        from torchvision.datasets import FashionMNIST

        try:
            FashionMNIST(str(self.root), download=True)
        except Exception as error:  # urllib, ssl, hash mismatch: all mean that there are no data
            wanted = " ".join(f"{name}[.gz]" for name in names)
            raise missing("FashionMNIST", self.root, wanted, error) from error

    def load(self, split: Split) -> tuple[Tensor, Tensor] | None:
        if split == "val":
            return None
        paths = [self._path(name) for name in FILES[split]]
        assert all(paths), "prepare_data() comes first"
        images, labels = (read_idx(path) for path in paths if path)
        if images.shape[1:] != (28, 28) or len(images) != len(labels) or labels.max() > 9:
            raise ValueError(f"{paths[0]} and {paths[1]} do not hold FashionMNIST: copy them again")
        return images.unsqueeze(1), labels.long()
