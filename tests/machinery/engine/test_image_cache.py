"""The cache of decoded images is used if it is intact, and otherwise made again with a notice."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from project.data import ImageFolderDataModule
from project.engine.image_files import ImageFiles


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Write twenty images of two classes."""
    for k in range(20):
        path = tmp_path / "photos" / ("cat", "dog")[k % 2] / f"{k:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(k).integers(256, size=(16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "photos"


def make(root: Path, **options: Any) -> ImageFolderDataModule:
    options = {"image_size": 16, "val_size": 0.3, "batch_size": 4} | options
    data = ImageFolderDataModule(root, **options)
    data.setup("fit")
    return data


def cache_of(root: Path) -> tuple[Path, Path]:
    """Return the paths of the file of pixels and of the record."""
    (pixels,), (facts,) = (sorted((root / ".cache").glob(f"*.{x}")) for x in ("npy", "json"))
    return pixels, facts


def zero_some(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[2000:4000] = bytes(2000)
    path.write_bytes(content)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def other_shape(path: Path) -> None:
    np.save(path, np.load(path)[:7])


def other_type(path: Path) -> None:
    np.save(path, np.load(path).astype(np.int16))


def other_order(path: Path) -> None:
    np.save(path, np.asfortranarray(np.load(path)))


def pickled(path: Path) -> None:
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = [zero_some, flip_a_bit, other_shape, other_type, other_order, pickled, shorter, empty]


@pytest.mark.parametrize("damage", [*DAMAGES, Path.unlink])
def test_damaged_pixels_are_made_again_and_it_is_said(
    photos: Path, caplog: pytest.LogCaptureFixture, damage: Any
) -> None:
    first = make(photos)
    pixels, _ = cache_of(photos)
    whole = pixels.read_bytes()
    damage(pixels)
    with caplog.at_level("INFO"):
        again = make(photos)
    assert [line for line in caplog.messages if f"The image cache {pixels} can't be used" in line]
    assert again.sha256 == first.sha256
    assert pixels.read_bytes() == whole


@pytest.mark.parametrize("damage", ["", "{}", "x\n{}", None, "other"])
def test_damaged_facts_are_made_again_and_it_is_said(
    photos: Path, caplog: pytest.LogCaptureFixture, damage: str | None
) -> None:
    first = make(photos)
    _, facts = cache_of(photos)
    whole = facts.read_text()
    changed = whole.replace("02.png", "22.png") if damage == "other" else damage
    facts.write_text(whole[:-5] if changed is None else changed)
    with caplog.at_level("INFO"):
        again = make(photos)
    assert [line for line in caplog.messages if f"The image cache {facts} can't be used" in line]
    assert again.sha256 == first.sha256
    assert facts.read_text() == whole


def test_a_whole_cache_is_used_silently(
    photos: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for memory_budget in (4.0, 0.0):
        first = make(photos, memory_budget=memory_budget)
        with monkeypatch.context() as patch:
            patch.setattr("project.engine.image_files.decode", None)
            with caplog.at_level("INFO"):
                again = make(photos, memory_budget=memory_budget)
        assert caplog.messages == []
        assert again._parts["train"].files.digests == first._parts["train"].files.digests
        for a, b in zip(again.sets["train"], first.sets["train"], strict=True):
            assert isinstance(a, ImageFiles) or torch.equal(a, b)  # type: ignore[arg-type]


def test_of_larger_data_only_new_images_are_read(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(photos, memory_budget=0)
    os.utime(photos / "cat" / "02.png", ns=(0, 0))
    (photos / "dog" / "03.png").rename(photos / "dog" / "99.png")
    read: list[list[int]] = []
    read_all = ImageFiles.read_all

    def spy(files: ImageFiles, todo: list[int], pixels: Any) -> Any:
        read.append(todo)
        return read_all(files, todo, pixels)

    monkeypatch.setattr(ImageFiles, "read_all", spy)
    make(photos, memory_budget=0)
    make(photos, memory_budget=0)
    assert read == [[1, 19]]


def test_it_is_on_the_disk_before_it_is_renamed(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def spy_fsync(descriptor: int) -> None:
        done.append("fsync")
        fsync(descriptor)

    def spy_replace(path: Path, target: Path) -> Path:
        done.append(target.suffix)
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "replace", spy_replace)
    make(photos)
    assert done == ["fsync", ".npy", "fsync", ".json"]


def test_what_another_process_is_writing_stays(photos: Path) -> None:
    folder = photos / ".cache"
    folder.mkdir()
    fresh, abandoned = (folder / f".train-16x3-{k}.npy.{k}.partial" for k in range(2))
    other_size = folder / "train-64x3-0.npy"
    for path in (fresh, abandoned, other_size):
        path.write_bytes(b"part")
    os.utime(abandoned, (0, time.time() - 4000))
    make(photos)
    assert fresh.exists()
    assert other_size.exists()
    assert not abandoned.exists()
    assert not [path for path in folder.iterdir() if str(os.getpid()) in path.name]


def test_a_full_disk_leaves_nothing_half_written(
    photos: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with caplog.at_level("INFO"):
        data = make(photos)
    assert len(data.sets["train"][0]) == 20  # type: ignore[arg-type]
    (said,) = [line for line in caplog.messages if "No image cache is kept" in line]
    assert "No space left on device" in said
    assert ".npy" in said
    assert list((photos / ".cache").iterdir()) == []


def test_one_process_prepares_for_all(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`prepare_data` reads and writes all; the other processes, and this one, only look it up."""
    for memory_budget in (4.0, 0.0):
        first = ImageFolderDataModule(photos, image_size=16, memory_budget=memory_budget)
        first.trainer = SimpleNamespace(world_size=2)  # type: ignore[assignment]
        first.prepare_data()
        with monkeypatch.context() as patch:
            patch.setattr("project.engine.image_files.decode", None)
            make(photos, memory_budget=memory_budget)


def test_facts_are_plain_json(photos: Path) -> None:
    make(photos)
    pixels, facts = cache_of(photos)
    stored = json.loads(facts.read_text().partition("\n")[2])
    assert stored["array"] == pixels.name
    assert len(stored["files"]) == 20
