"""A cache of the content of image files, so that the next start need not read them again.

`<stem>.json` holds the size, time and hash of each file that was read in full, and the checksum of
`<stem>-<state>.npy`, the decoded pixels. Both files are used only if their checksums are right.
"""

import hashlib
import json
import os
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from ..runs.files import check_regular, read_text, replacing, write_whole
from .image_files import ImageFiles
from .values import Images

MANY = 5000  # number of images from which reading takes long enough to be announced
ABANDONED_S = 3600  # seconds without a write after which a half-written file is removed


@dataclass
class Record:
    """Content of `<stem>.json`."""

    files: dict[str, list[Any]] = field(default_factory=dict)  # size in bytes, time in ns, hash
    array: str = ""  # name of the file of pixels
    crc32: int = 0


class ImageCache:
    """Reads the image files that are not in the cache yet.

    Args:
        folder: Folder of the cache, or None to keep no cache.
        root: Folder that the images are in.
        stem: Beginning of the names of the cache's files.
    """

    def __init__(self, folder: Path | None, root: Path, stem: str) -> None:
        self.folder, self.root, self.stem = folder, root, stem

    def read(self, files: ImageFiles, in_memory: bool) -> Images:
        """Read each file that is not in the cache, and set the hashes of all of them in `files`.

        Returns:
            The pixels, uint8 (N, C, H, W), if they are to be in memory; otherwise the files.

        Raises:
            ValueError: If files can't be read; the message names them.
        """
        names = [path.relative_to(self.root).as_posix() for path in files.paths]
        states = [[s.st_size, s.st_mtime_ns] for s in map(os.stat, files.paths)]
        record = self._read_record()
        known: dict[int, bytes] = {}
        for i, (name, state) in enumerate(zip(names, states, strict=True)):
            if name in record.files and record.files[name][:2] == state:
                known[i] = bytes.fromhex(record.files[name][2])
        shape = (len(files), files.channels, files.image_size, files.image_size)
        array = self._array_name(names, states)
        pixels = None
        if in_memory and array == record.array and len(known) == len(files):
            pixels = self._read_array(record, shape)
        todo = [i for i in range(len(files)) if (in_memory and pixels is None) or i not in known]
        if todo:
            if len(todo) > MANY:
                rank_zero_info(f"Reading {len(todo):,} images of {self.root} for the first time.")
            if in_memory:
                pixels = torch.empty(shape, dtype=torch.uint8)
            known |= files.read_all(todo, pixels)
            facts = {
                name: [*state, known[i].hex()]
                for i, (name, state) in enumerate(zip(names, states, strict=True))
            }
            self._write(Record(facts, record.array, record.crc32), array, pixels)
        files.digests = [known[i] for i in range(len(files))]
        return files if pixels is None else pixels

    def _array_name(self, names: Sequence[str], states: Sequence[list[int]]) -> str:
        """Return the name of the file of pixels, for these files and this version of Pillow."""
        state = json.dumps([PIL.__version__, names, states])
        return f"{self.stem}-{hashlib.sha256(state.encode()).hexdigest()[:16]}.npy"

    def _read_record(self) -> Record:
        if self.folder is None:
            return Record()
        path = self.folder / f"{self.stem}.json"
        try:
            checksum, _, body = read_text(path).partition("\n")
            if checksum != _checksum(body):
                raise ValueError("its checksum differs")
            return Record(**json.loads(body))
        except OSError:  # there is no file yet
            pass
        except (ValueError, TypeError) as error:
            _refuse(path, error)
        return Record()

    def _read_array(self, record: Record, shape: tuple[int, ...]) -> Tensor | None:
        """Return the pixels, memory-mapped, or None if they are not what was written."""
        assert self.folder is not None
        path = self.folder / record.array
        try:
            check_regular(path)
            array = np.load(path, mmap_mode="c")
            if (array.shape, array.dtype) != (shape, np.uint8):
                raise ValueError(f"it holds {array.dtype} {array.shape}, not uint8 {shape}")
            if zlib.crc32(array.data) != record.crc32:
                raise ValueError("its checksum differs")
        except Exception as error:  # a damaged file can raise anything
            _refuse(path, error)
            return None
        return torch.from_numpy(array)

    def _write(self, record: Record, array: str, pixels: Tensor | None) -> None:
        """Write the record and the pixels, if the folder can be written to."""
        if self.folder is None:
            return
        path = self.folder / f"{self.stem}.json"
        try:
            self.folder.mkdir(exist_ok=True)
            if pixels is not None:
                record.array, record.crc32 = array, zlib.crc32(pixels.numpy().data)
                with replacing(self.folder / array) as file:  # too large for a copy in memory
                    np.save(file, pixels.numpy())
            body = json.dumps(vars(record))
            write_whole(path, f"{_checksum(body)}\n{body}")
            self._sweep(record.array)
        except (OSError, ValueError) as error:
            rank_zero_info(f"No image cache is kept, so the next start reads all again: {error}")

    def _sweep(self, array: str) -> None:
        """Remove the pixels of earlier states, and files half-written by killed processes."""
        assert self.folder is not None
        for stale in self.folder.glob(f"{self.stem}-*.npy"):
            if stale.name != array:
                stale.unlink(missing_ok=True)
        for partial in self.folder.glob(f".{self.stem}*.partial"):
            try:
                abandoned = time.time() - partial.stat().st_mtime > ABANDONED_S
            except FileNotFoundError:  # another process has just finished it
                continue
            if abandoned:
                partial.unlink(missing_ok=True)


def _refuse(path: Path, error: Exception) -> None:
    why = str(error) or type(error).__name__
    rank_zero_info(f"The image cache {path} can't be used ({why}): reading the images again.")


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
