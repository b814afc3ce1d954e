"""CIFAR-10 (Krizhevsky, 2009): 50,000 + 10,000 colour images, 32×32, 10 classes."""

import io
import pickle
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from project.data.augmented import AugmentedImageDataModule
from project.data.download import download
from project.engine.datamodule import Split
from project.engine.signals import Stopped
from project.runs.files import NotRegularError, open_regular, read_bytes

BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
LARGEST = 100_000_000  # bytes of a batch; the official ones have 31 million
ARCHIVES = ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz")


def _encode(text: str, encoding: str) -> bytes:
    """Do what `codecs.encode` does for pickles of Python 2, without looking up other encodings."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it has bytes in {encoding!r}, not in latin1")
    return text.encode("latin1")


_reconstruct = np.ndarray(0).__reduce__()[0]  # makes the array that is then filled
ALLOWED = {  # all names in the pickle of an array, in old and new versions of numpy
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and nothing else: a pickle that would run code is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it would call {module}.{name}")
        return ALLOWED[module, name]


def read_batch(data: bytes, pickled: bool) -> tuple[Tensor, Tensor]:
    """Return images, uint8 (N, 3, 32, 32), and labels, int64 (N,), of one official batch file."""
    if pickled:
        batch = _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
        pixels, labels = np.asarray(batch[b"data"]), torch.tensor(batch[b"labels"])
    else:  # a row is one byte of label and 3,072 of pixels
        rows = np.frombuffer(data, np.uint8).reshape(-1, 3073).copy()
        pixels, labels = rows[:, 1:], torch.from_numpy(rows[:, 0])
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise ValueError(f"its images are {pixels.dtype} {pixels.shape}, not uint8 (N, 3072)")
    if labels.dtype not in (torch.int64, torch.uint8) or labels.shape != pixels.shape[:1] != (0,):
        raise ValueError(f"{len(pixels)} images, labels {labels.dtype} {tuple(labels.shape)}")
    if labels.min() < 0 or labels.max() > 9:
        raise ValueError(f"its labels are from {labels.min()} to {labels.max()}, not from 0 to 9")
    images = torch.from_numpy(np.ascontiguousarray(pixels)).view(-1, 3, 32, 32)
    return images, labels.long()


class CIFAR10DataModule(AugmentedImageDataModule):
    """CIFAR-10: 50,000 training and 10,000 test images, colour, 32×32, 10 classes.

    Args:
        root: Folder with the official archive, Python or binary form, packed or unpacked; it is
            downloaded there and verified if missing.
        kwargs: Further options of every image data module.
    """

    in_channels, image_size = 3, 32
    class_names = [
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ]

    def __init__(self, root: Path = Path("data"), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = Path(root)

    def _source(self) -> Path | None:
        candidates = (self.root / name for name in FOLDERS + ARCHIVES)
        inside = (self.root,) if (self.root.name in FOLDERS and self.root.is_dir()) else ()
        return next((path for path in (*inside, *candidates) if path.exists()), None)

    def prepare_data(self) -> None:
        if self._source() is not None:
            return
        from torchvision.datasets import CIFAR10

        get = partial(CIFAR10, str(self.root), download=True)
        download("CIFAR-10", self.root, " ".join(FOLDERS + ARCHIVES), get)

    def load(self, split: Split) -> tuple[Tensor, Tensor] | None:
        if split == "val":
            return None
        source = self._source()
        assert source is not None, "prepare_data() comes first"
        pickled = source.name in (FOLDERS[0], ARCHIVES[0])
        name = str(source)
        try:
            batches = []
            for name, data in _files(source, BATCHES[split], "" if pickled else ".bin"):
                batches.append(read_batch(data, pickled))
                name = str(source)  # in which the next one may be missing
        except NotRegularError:
            raise
        except Stopped:  # by a signal, not by the file
            raise
        except (Exception, SystemExit) as error:  # a damaged archive or pickle can raise anything
            raise ValueError(f"{name} is truncated or damaged ({error}): copy it again") from error
        images, labels = zip(*batches, strict=True)
        return torch.cat(images), torch.cat(labels)


def _files(source: Path, names: list[str], suffix: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the batch files in a folder or an archive, in the given order."""
    if source.is_dir():
        for name in names:
            path = source / (name + suffix)
            yield str(path), read_bytes(path)
    else:
        with open_regular(source) as opened, tarfile.open(fileobj=opened) as archive:
            members = {Path(member.name).name: member for member in archive}
            for name in names:
                if (member := members[name + suffix]).size > LARGEST:
                    raise ValueError(f"{member.name} has {member.size} bytes")
                if (file := archive.extractfile(member)) is None:
                    raise ValueError(f"{member.name} is not a file")
                yield f"{source}:{name + suffix}", file.read()
