"""The files that are read in a folder, and the count of those that are left out."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from project.data import ImageFolderDataModule
from project.engine.image_index import find_parts, part_of, scan
from project.engine.photos import PhotosDataModule

FACTS = {"class_names": ["cat", "dog"], "image_size": 8, "in_channels": 3}
FACTS |= {"mean": [0.5] * 3, "std": [0.2] * 3}


def write(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(256, size=(8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Write images of ten cats and ten dogs."""
    for k in range(20):
        write(tmp_path / "photos" / ("cat", "dog")[k % 2] / f"{k}.png", k)
    return tmp_path / "photos"


def fit(root: Path, **options: Any) -> ImageFolderDataModule:
    options = {"image_size": 8, "val_size": 0.3, "batch_size": 4} | options
    data = ImageFolderDataModule(root, **options)
    data.setup("fit")
    return data


def test_folders_within_class_folders_are_read(photos: Path) -> None:
    for k in range(30):
        write(photos / "cat" / "in" / f"den{k % 3}" / f"{k}.jpg", 100 + k)
    assert fit(photos).sets["train"][1].bincount().tolist() == [40, 10]


def leave_out(photos: Path) -> str:
    """Put something of each kind into the folder, and return the line to expect."""
    for name in (".DS_Store", ".hidden.png"):
        (photos / "cat" / name).write_text("")
    for name in ("a.heic", "b.heic", "notes.txt", "LICENSE"):
        (photos / "dog" / name).write_text("")
    (photos / "readme.md").write_text("")
    (photos / "cat" / "broken.jpg").symlink_to("nowhere.jpg")
    (photos / "cat" / "again").symlink_to(photos)
    os.mkfifo(photos / "cat" / "pipe.png")
    write(photos / "loose.png")
    return (
        "beside the class folders 1, hidden 2, link to a folder above 1, link to nothing 1, "
        "not a regular file 1, other suffix 5 (.heic 2, none 1, .md 1, .txt 1)"
    )


def test_what_is_left_out_is_counted_in_one_line(
    photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = leave_out(photos)
    with caplog.at_level("INFO"):
        fit(photos)
    assert f"20 images in {photos}; left out: {expected}" in caplog.messages
    caplog.clear()
    (photos / "loose.png").unlink()
    (photos / "loose2.png").symlink_to("nowhere")
    with caplog.at_level("INFO"):
        PhotosDataModule(photos, FACTS, batch_size=2)
    (said,) = caplog.messages
    assert said == (
        f"20 images in {photos}; left out: hidden 2, link to a folder above 1, link to nothing 2, "
        "not a regular file 1, other suffix 5 (.heic 2, none 1, .md 1, .txt 1)"
    )


def test_nothing_is_said_if_all_is_read(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        fit(photos)
        fit(photos)  # now there is a cache, which is ours
        PhotosDataModule(photos / "cat", FACTS, batch_size=2)
    assert not [line for line in caplog.messages if "left out" in line]


def test_most_images_left_out_is_an_error(photos: Path) -> None:
    for k in range(10):
        (photos / "cat" / f"{k}.heic").write_text("")
        (photos / "cat" / f"{k}.xml").write_text("")  # which is no image
    fit(photos)
    (photos / "cat" / "10.heic").write_text("")
    expected = r"only 10 of the 21 files in .*cat that may be images can be used; left out: other"
    with pytest.raises(ValueError, match=expected):
        fit(photos)
    with pytest.raises(ValueError, match=expected):
        PhotosDataModule(photos / "cat", FACTS, batch_size=2)
    (photos / "cat" / "10.heic").unlink()
    for k in range(20):
        write(photos / f"{k}.png")
    with pytest.raises(
        ValueError, match=r"only 20 of the 50 files in .*beside the class folders 20"
    ):
        fit(photos)


@pytest.mark.parametrize(
    "read", [fit, lambda root: PhotosDataModule(root, FACTS, batch_size=2)], ids=["fit", "photos"]
)
def test_a_folder_that_can_not_be_read_is_named(
    photos: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], Any]
) -> None:
    """Whoever tests as root may read everything, so the refusal is simulated."""
    iterdir = Path.iterdir

    def refuse(path: Path) -> Any:
        if path.name == "dog":
            raise PermissionError(13, "Permission denied", str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(ValueError, match=r"the folder .*/dog can't be read \(Permission denied\)"):
        read(photos)


@pytest.mark.parametrize(
    "names",
    [
        ("Train", "Val", "Test"),
        ("training", "validation", "testing"),
        ("TRAIN", "valid", "TEST"),
        ("train_set", "val set", "test-set"),
        ("train_images", "validation_data", "tests"),
    ],
)
def test_parts_in_their_usual_spellings(tmp_path: Path, names: tuple[str, ...]) -> None:
    for k in range(8):
        for name in names:
            write(tmp_path / name / ("cat", "dog")[k % 2] / f"{k}.png", k)
    data = fit(tmp_path)
    data.setup("test")
    assert data.class_names == ["cat", "dog"]
    for part in ("train", "val", "test"):
        assert len(data.sets[part][2]) == 8  # type: ignore[index]
    assert list(find_parts(tmp_path).values()) == [tmp_path / name for name in sorted(names)]


@pytest.mark.parametrize("name", ["cat", "trainer", "contest", "valley", "devices", "1", "images"])
def test_other_names_are_classes(name: str) -> None:
    assert part_of(name) is None


def test_a_class_can_be_called_train(tmp_path: Path) -> None:
    for k in range(20):
        write(tmp_path / ("bus", "train")[k % 2] / f"{k}.png", k)
    assert fit(tmp_path).class_names == ["bus", "train"]


def test_parts_without_class_folders_are_not_taken_for_classes(tmp_path: Path) -> None:
    for k in range(20):
        write(tmp_path / ("train", "test")[k % 2] / f"{k}.png", k)
    with pytest.raises(ValueError, match=r"train needs two or more class folders"):
        fit(tmp_path)


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (("train/cat", "Training/cat"), "/Training and .*/train are both train images: keep one"),
        (("val/cat", "test/cat"), "has 'test' and 'val', but no train folder"),
        (("train/cat", "val/cat", "odd/cat"), "may have train, val and test in it, not 'odd'"),
    ],
)
def test_parts_that_are_not_clear(tmp_path: Path, folders: tuple[str, ...], message: str) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(ValueError, match=message):
        fit(tmp_path)


def test_a_test_folder_without_classes(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run is trained all the same, and told how to predict them."""
    root = photos.parent / "parts"
    root.mkdir()
    photos.rename(root / "train")
    for k in range(5):
        write(root / "Test" / f"{k}.png", k)
    with caplog.at_level("INFO"):
        data = fit(root, test_size=0.3)
    assert any(f"predict --run RUN --images {root / 'Test'}`" in line for line in caplog.messages)
    data.setup("test")
    assert data.sets["test"][0] is data.sets["train"][0]
    (root / "Test").rename(root / "val")
    with pytest.raises(ValueError, match="val has images, but no class folders: put each image"):
        fit(root)


def test_an_empty_class_folder_of_validation_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for k in range(8):
        write(tmp_path / "train" / ("cat", "dog")[k % 2] / f"{k}.png", k)
    write(tmp_path / "val" / "cat" / "0.png", 9)
    (tmp_path / "val" / "dog").mkdir()
    with caplog.at_level("INFO"):
        fit(tmp_path, test_size=0)
    assert f"9 images in {tmp_path}; left out: empty class folder 1" in caplog.messages


def test_scan_is_in_the_order_of_the_paths(photos: Path) -> None:
    for k in range(5):
        write(photos / "cat" / str(k) / "x.png", k)
    paths = scan(photos / "cat").paths
    assert len(paths) == 15
    assert paths == sorted(paths)
