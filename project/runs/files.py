"""Reading of regular files only, and writing of files so that there is a whole one at any instant.

A pipe, a device or a socket with the name of an image or a checkpoint would block its reader
forever, and a device would be replaced by a file. Nothing here imports torch.
"""

import csv
import io
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # first characters of formulas, by OWASP's list
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegularError(ValueError):
    """A path names something that is not a regular file."""

    def __init__(self, path: Path | str, mode: int) -> None:
        super().__init__(f"{path} is not a regular file but {KINDS.get(stat.S_IFMT(mode), '?')}")


def open_regular(path: Path | str, mode: str = "rb", **kwargs: Any) -> IO[Any]:
    """Open an existing file for reading, as `open` does, without ever waiting for a writer.

    Args:
        path: Path of the file; links are followed.
        mode: Mode of `open`, which must be one for reading.
        kwargs: Arguments of `open`, such as `encoding`.

    Raises:
        NotRegularError: If the path is a folder, a pipe, a device or a socket.
        OSError: If there is no such file, or it can't be read.
    """

    def opener(name: str, flags: int) -> int:
        # Without O_NONBLOCK, opening a pipe blocks until some process writes to it.
        descriptor = os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
        found = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(found):
            os.close(descriptor)
            raise NotRegularError(name, found)
        return descriptor

    check_regular(path)  # merely opening a device may have an effect, such as rewinding a tape
    return open(path, mode, opener=opener, **kwargs)


def read_bytes(path: Path | str) -> bytes:
    """Return the content of a regular file; raises what `open_regular` raises."""
    with open_regular(path) as file:
        content: bytes = file.read()
    return content


def read_text(path: Path | str) -> str:
    """Return the content of a regular UTF-8 file; raises what `open_regular` raises.

    Raises:
        ValueError: If the file is not UTF-8.
    """
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from error


def check_regular(path: Path | str) -> None:
    """Raise NotRegularError if a path, after following links, exists but is not a regular file."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise NotRegularError(path, mode)


def check_folder(folder: Path) -> None:
    """Raise NotRegularError if a folder holds anything but regular files and folders."""
    for entry in sorted(folder.iterdir()):
        if not entry.is_dir():
            check_regular(entry)


def write_rows(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Write rows to a CSV file as `replacing` does. File names that are not UTF-8 keep their bytes.

    A text that a spreadsheet would run as a formula gets a leading quote.
    """
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([_no_formula(cell) for cell in row] for row in rows)
    write_whole(path, buffer.getvalue().encode("utf-8", "surrogateescape"))


def _no_formula(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell  # numbers such as -1 stay unquoted


def readable(name: str) -> str:
    """Return a file name for display, in which bytes that are not UTF-8 appear as `\\xe9`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that takes the place of `path` once its content is on disk.

    At any instant there is a whole file at `path`, the old or the new one.

    Args:
        path: Path of the file, in a folder that exists.

    Raises:
        NotRegularError: If something other than a regular file has that path.
        OSError: If the file can't be written; the error names it, and no half-written file is left.
    """
    check_regular(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file as `replacing` does; text is written as UTF-8."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    with replacing(path) as file:
        file.write(data)
