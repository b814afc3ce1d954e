"""A pipe, a device or a folder with the name of an image is reported at once."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from project.data import ImageFolderDataModule
from project.engine.photos import PhotosDataModule

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """Limit the time of each test, since reading a pipe would last forever."""
    signal.alarm(60)  # whose default ends the process
    yield
    signal.alarm(0)


@pytest.fixture(params=["pipe", "device", "folder"])
def images(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Two class folders of ten images, of which `cat` has something odd called `x.jpg` too."""
    for k in range(20):
        path = tmp_path / "images" / ("cat", "dog")[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(k).integers(256, size=(8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    odd = tmp_path / "images" / "cat" / "x.jpg"
    if request.param == "pipe":
        os.mkfifo(odd)
    elif request.param == "device":
        odd.symlink_to("/dev/zero")
    else:
        odd.mkdir()
    return tmp_path / "images"


@pytest.mark.parametrize("budget", [4.0, 0.0])
def test_in_a_class_folder(images: Path, budget: float) -> None:
    data = ImageFolderDataModule(
        images, image_size=8, batch_size=4, memory_budget=budget, num_workers=0
    )
    said = ""
    try:  # it is named, or is not among the images
        data.setup("fit")
        batches = list(data.train_dataloader()) + list(data.val_dataloader())
        assert sum(len(labels) for _, labels in batches) <= 20
    except ValueError as error:
        said = str(error)
    assert not said or ("x.jpg" in said and "not a regular file" in said)


def test_among_photos(images: Path) -> None:
    facts = {"class_names": ["cat", "dog"], "image_size": 8, "in_channels": 3}
    data = PhotosDataModule(images, facts | {"mean": [0.5] * 3, "std": [0.2] * 3}, batch_size=4)
    data.setup("predict")
    assert sum(len(labels) for _, labels in data.predict_dataloader()) >= 20
    assert all("not a regular file" in reason for reason in data.photos.unreadable.values())
    assert len(data.photos) - len(data.photos.unreadable) == 20


def test_in_place_of_the_cache(images: Path) -> None:
    odd = images / "cat" / "x.jpg"
    (odd.rmdir if odd.is_dir() else odd.unlink)()
    made = ImageFolderDataModule(images, image_size=8, batch_size=4)
    made.setup("fit")
    for cached in sorted((images / ".cache").glob("train-*")):
        cached.unlink()
        os.mkfifo(cached)
    again = ImageFolderDataModule(images, image_size=8, batch_size=4)
    again.setup("fit")
    assert again.sha256 == made.sha256
