"""The images in a folder, the folders of its parts, and the files that are left out and why.

No file is left out without being counted.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from PIL import Image

from .datamodule import Split

# Only these widely used decoders of Pillow run, whatever a file holds. An EPS file, for example, is
# a program that Ghostscript would run.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "TIFF", "GIF", "PPM", "JPEG2000", "AVIF")
READ = "JPEG, PNG, WebP, BMP, TIFF, GIF, JPEG 2000, AVIF and PPM"
# Suffixes of image formats that are not read. A file without a suffix may be an image, too.
NOT_READ = re.compile(
    r"(\.(heic|heif|jxl|tga|psd|ico|cur|icns|pcx|dds|sgi|xpm|xbm|eps|svg|exr|hdr|dcm"
    r"|raw|dng|cr2|cr3|nef|arw|orf|rw2))?"
)
PARTS: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "validate", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "tests"), "test"),
}
CACHE = ".cache"  # the project's own folder, beside the images
SHOWN = 4  # most suffixes or folders that a message names


@cache
def suffixes() -> frozenset[str]:
    """Return the suffixes of the formats that are read, in lower case."""
    known = Image.registered_extensions()
    return frozenset(suffix for suffix, name in known.items() if name in (*FORMATS, "MPO"))


@dataclass
class Found:
    """Content of a folder: the images to read, and the number of files left out, by reason."""

    paths: list[Path] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    other_suffixes: Counter[str] = field(default_factory=Counter)
    doubtful: int = 0  # number of left-out files that may be images

    def leave_out(self, reason: str, path: Path) -> None:
        self.left_out[reason] += 1
        self.doubtful += _may_be_image(path)

    def add(self, other: "Found") -> None:
        self.paths += other.paths
        self.left_out += other.left_out
        self.other_suffixes += other.other_suffixes
        self.doubtful += other.doubtful

    def reasons(self) -> str:
        """Return what is left out, for example "hidden 3, other suffix 12 (.heic 10, .txt 2)"."""
        reasons = self.left_out + Counter({"other suffix": self.other_suffixes.total()})
        ranked = sorted(self.other_suffixes.items(), key=lambda item: (-item[1], item[0]))
        named = [f"{suffix or 'none'} {count}" for suffix, count in ranked[:SHOWN]]
        named += ["…"] if len(ranked) > SHOWN else []
        suffix = f" ({', '.join(named)})"
        return ", ".join(
            f"{reason} {count}{suffix if reason == 'other suffix' else ''}"
            for reason, count in sorted(reasons.items())
        )

    def check(self, folder: Path) -> None:
        """Refuse a folder if more of its possible images are left out than used."""
        used = len(self.paths)
        if self.doubtful > used:
            raise ValueError(
                f"only {used} of the {used + self.doubtful} files in {folder} that may be images "
                f"can be used; left out: {self.reasons()}. Convert or move the others"
            )


def scan(folder: Path) -> Found:
    """Find the images in a folder and in all folders below it, in the order of their paths.

    Raises:
        ValueError: If a folder can't be read.
    """
    found = Found()
    real = folder.resolve()
    _scan(folder, found, tuple(_identity(os.stat(path)) for path in (real, *real.parents)))
    found.paths.sort()
    return found


def _may_be_image(path: Path) -> bool:
    suffix = path.suffix.lower()
    return suffix in suffixes() or NOT_READ.fullmatch(suffix) is not None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _scan(folder: Path, found: Found, above: tuple[tuple[int, int], ...]) -> None:
    """Add the content of a folder; `above` are its parent folders, to which links may lead."""
    for path in entries(folder):
        if path.name.startswith("."):
            found.left_out["hidden"] += path.name != CACHE
            continue
        try:
            status = path.stat()
        except OSError as error:
            reason = "link to nothing" if path.is_symlink() else f"unreadable ({error.strerror})"
            found.leave_out(reason, path)
            continue
        if stat.S_ISDIR(status.st_mode) and (own := _identity(status)) in above:
            found.left_out["link to a folder above"] += 1
        elif stat.S_ISDIR(status.st_mode):
            _scan(path, found, (*above, own))
        else:
            _add_file(path, status.st_mode, found)


def _add_file(path: Path, mode: int, found: Found) -> None:
    if path.suffix.lower() not in suffixes():
        found.other_suffixes[path.suffix.lower()] += 1
        found.doubtful += _may_be_image(path)
    elif stat.S_ISREG(mode):
        found.paths.append(path)
    else:
        found.leave_out("not a regular file", path)


def entries(folder: Path) -> list[Path]:
    """Return the paths of everything in a folder, sorted.

    Raises:
        ValueError: If the folder can't be read.
    """
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise ValueError(f"the folder {folder} can't be read ({error.strerror})") from error


def folders(folder: Path) -> list[Path]:
    """Return the visible folders in a folder, sorted."""
    return [path for path in entries(folder) if path.name[0] != "." and path.is_dir()]


def beside(folder: Path) -> Found:
    """Find the files directly in a folder in which only folders are expected."""
    found = Found()
    for path in entries(folder):
        if path.name.startswith("."):
            found.left_out["hidden"] += path.name != CACHE
        elif not path.is_dir() and path.suffix.lower() in suffixes():
            found.leave_out("beside the class folders", path)
        elif not path.is_dir():
            found.other_suffixes[path.suffix.lower()] += 1
    return found


def part_of(name: str) -> Split | None:
    """Return the part that a folder's name means, in any usual spelling (`Train`, `test_set`)."""
    word = re.sub("[^a-z]", "", name.lower())
    return PARTS.get(word) or PARTS.get(re.sub("(set|data|images|split)$", "", word))


def find_parts(root: Path) -> dict[Split, Path]:
    """Return the folders of training, validation and test images, or all of `root` as training.

    A folder called `train` is a part if there are folders in it, or only parts beside it; otherwise
    it is a class, for example of vehicles.

    Raises:
        ValueError: If it is not clear which folder is which part.
    """
    if not root.is_dir():
        return {"train": root}
    named = [(part_of(path.name), path) for path in folders(root)]
    trains = [path for part, path in named if part == "train"]
    others = {path.name for part, path in named if part is None}
    if not named or (others and not any(folders(path) for path in trains)):
        return {"train": root}
    if others:
        raise ValueError(f"{root} may have train, val and test in it, not {_some(others)}")
    parts: dict[Split, Path] = {}
    for part, path in named:
        assert part is not None
        if part in parts:
            raise ValueError(f"{parts[part]} and {path} are both {part} images: keep one of them")
        parts[part] = path
    if "train" not in parts:
        raise ValueError(f"{root} has {_some(p.name for p in parts.values())}, but no train folder")
    return parts


def _some(names: Iterable[str]) -> str:
    every = sorted(map(repr, names))
    more = [f"{len(every) - SHOWN} more"] if len(every) > SHOWN else []
    *first, last = every[:SHOWN] + more
    return f"{', '.join(first)} and {last}" if first else last
