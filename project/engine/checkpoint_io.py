"""Checkpoint files: whole or absent, and read without running code."""

import os
import pickle
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch import Tensor

from ..runs.files import check_regular, open_regular
from ..runs.folder import CONFIG
from .storable import storable

# What zipfile and torch raise if bytes are missing or bits are flipped.
DAMAGE = (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError, ValueError)
PARTS: dict[str, Any] = {  # a file that holds only weights has only the first of these
    **{"state_dict": dict, "epoch": int, "global_step": int, "loops": dict, "callbacks": dict},
    **{"optimizer_states": list, "lr_schedulers": list, "metrics": dict, "config": dict},
    **{"hyper_parameters": dict, "pytorch-lightning_version": str},
}
FOLDER = 0x10  # bit of a record's MS-DOS attributes that marks it as a folder


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a temporary file in the same folder, flushes it to disk and renames it.

    At any instant there is therefore a whole file. Lightning writes to the system's temporary
    folder instead, and copies the file byte by byte if that folder is on another disk. The first
    checkpoint of a run is read back, so that no run ends with files that can't be loaded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_read_back = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        path = Path(path)
        checkpoint = {key: storable(part, str(key)) for key, part in checkpoint.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        check_regular(path)
        for left in path.parent.glob(".*.ckpt.*"):  # left behind by a save that was killed
            with suppress(OSError):
                left.unlink()
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with partial.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            if not self._is_read_back:  # once is enough: all checkpoints hold the same kinds
                if fault := _fault(_read(partial)):
                    raise ValueError(f"{path} was not saved: it could not be loaded ({fault})")
                self._is_read_back = True
            partial.replace(path)
        except pickle.UnpicklingError as error:
            what = str(error).splitlines()[0]
            raise ValueError(f"{path} was not saved: it could not be loaded ({what})") from error
        except (OSError, RuntimeError) as error:  # torch hides an OSError behind a RuntimeError
            cause = error.__context__ if isinstance(error.__context__, OSError) else error
            kept = "; the file before it is kept" if path.is_file() else ""
            raise OSError(f"can't save {path} ({cause}){kept}") from error
        finally:
            partial.unlink(missing_ok=True)

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        if Path(path).name == ".temp.ckpt":  # only weights, sent by a process of a notebook
            return _read(Path(path))
        return load_checkpoint(Path(path))  # ignores `weights_only`: it never runs code


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint into CPU memory. Nothing in the file is executed."""
    check_regular(path)
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {path}")
    try:
        checkpoint = _read(path)
    except DAMAGE as error:
        cause = (str(error) or type(error).__name__).splitlines()[0]
        if "weights_only" in cause:  # torch's advice is unsafe for a file of unknown origin
            cause = "it is a program, not weights"
        what = f"{path} is damaged or no checkpoint ({cause}){_newest_whole(path)}"
        raise ValueError(what) from error
    except pickle.UnpicklingError as error:
        what = f"{path} holds more than tensors and plain values, so that loading could run code"
        raise ValueError(f"{what}: it was refused, and nothing in it was run") from error
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise ValueError(f"{path} is no checkpoint of a run: it has no state_dict")
    if fault := _fault(checkpoint):
        raise ValueError(f"{path} was not written by a run: {fault}")
    return checkpoint


def _fault(checkpoint: dict[str, Any]) -> str:
    """Return which part of a checkpoint has the wrong type; an empty string if none has."""
    for name, kind in PARTS.items():
        if name in checkpoint and not isinstance(checkpoint[name], kind):
            return f"its {name} is of type {type(checkpoint[name]).__name__}"
    for name, weight in checkpoint.get("state_dict", {}).items():
        if not isinstance(name, str) or not isinstance(weight, Tensor):
            return f"{str(name)[:80]} in its state_dict is of type {type(weight).__name__}"
        if weight.layout != torch.strided:
            return f"{name} in its state_dict is {weight.layout}"
    for name, metric in checkpoint.get("metrics", {}).items():
        if not isinstance(metric, int | float):
            return f"{str(name)[:80]} in its metrics is of type {type(metric).__name__}"
    for name, state in checkpoint.get("callbacks", {}).items():
        if not isinstance(state, dict):
            return f"the state of {str(name)[:80]} is of type {type(state).__name__}"
    for part in checkpoint.values():
        if isinstance(part, dict) and not _says_how_to_read(part.get("preprocessing")):
            return "its preprocessing is not a size, a mean and a std of images, with class names"
    return ""


def _says_how_to_read(facts: Any) -> bool:
    """Return whether the facts about images in a checkpoint, if there are any, are well typed."""
    if facts is None:
        return True
    if not isinstance(facts, dict):
        return False
    lists = [facts.get(name) for name in ("class_names", "mean", "std")]
    names, mean, std = (part if isinstance(part, list) else [] for part in lists)
    size, channels = facts.get("image_size"), facts.get("in_channels")
    return (
        isinstance(size, int)
        and isinstance(channels, int)
        and size > 0
        and channels == len(mean) == len(std)
        and all(isinstance(number, float) for number in (*mean, *std))
        and all(isinstance(name, str) for name in names)
    )


def _read(path: Path) -> Any:
    # torch does not verify the checksums that it has written. If a flipped bit turns a record into
    # a folder, torch reads nothing for it and returns uninitialised memory.
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        if not archive.infolist():
            raise zipfile.BadZipFile("there is nothing in it")
        if (bad := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"wrong checksum of {bad}")
        for info in archive.infolist():
            if info.external_attr & FOLDER:
                raise zipfile.BadZipFile(f"wrong attributes of {info.filename}")
            if info.compress_type != zipfile.ZIP_STORED:  # it could inflate to any size
                raise zipfile.BadZipFile(f"{info.filename} is compressed")
    return torch.load(path, map_location="cpu", weights_only=True)


def _newest_whole(damaged: Path) -> str:
    config = damaged.parent.parent / CONFIG
    given = f"--config {config} " if config.is_file() else ""
    others = [p for p in damaged.parent.glob("*.ckpt") if p != damaged and p.is_file()]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            epoch = _read(path)["epoch"] + 1
        except (*DAMAGE, pickle.UnpicklingError, LookupError, TypeError):
            continue
        return f"; the newest whole one is {path}, of epoch {epoch}: {given}--ckpt_path {path}"
    return f"; no whole one is left, start the run anew: fit {given}".rstrip() if given else ""
