"""What is not a regular file is neither opened nor replaced; a write is whole or absent."""

import errno
import os
from pathlib import Path

import pytest

from project.runs.files import NotRegularError, open_regular, read_bytes, read_text, write_whole


@pytest.fixture(params=["pipe", "folder", "device", "link to a pipe"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "odd"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "folder":
        path.mkdir()
    elif request.param == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe")
    return path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_not_a_regular_file_is_neither_read_nor_replaced(odd: Path) -> None:
    before = odd.lstat()
    for action in (open_regular, read_bytes, read_text):
        with pytest.raises(NotRegularError, match="odd is not a regular file but a"):
            action(odd)
    with pytest.raises(NotRegularError, match="odd is not a regular file but a"):
        write_whole(odd, b"content")
    assert (odd.lstat().st_ino, odd.lstat().st_mode) == (before.st_ino, before.st_mode)


def test_a_missing_file_is_an_oserror_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        read_bytes(tmp_path / "absent")


def test_a_write_replaces_text_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"\x00\xff")
    assert read_bytes(path) == b"\x00\xff"
    write_whole(path, "größer\n")
    assert read_text(path) == "größer\n"
    assert list(tmp_path.iterdir()) == [path]


def test_text_of_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"latin is not UTF-8 text \(byte 3\)"):
        read_text(tmp_path / "latin")


def test_a_write_that_fails_names_the_file_and_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
