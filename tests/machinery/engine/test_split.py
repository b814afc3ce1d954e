"""The split of folders: every image keeps its part, whatever happens to the others."""

import math
import os
import random
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from project.data import Augment, ImageFolderDataModule
from project.engine.split import deal, numbers

PARTS = ("train", "val", "test")
SHARES: Any = {"test": 0.1, "val": 0.1}


def write(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(256, size=(4, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Write 120 images of three classes."""
    for label, name in enumerate(("ant", "bee", "cow")):
        for k in range(40):
            write(tmp_path / "photos" / name / f"{k:02}.png", seed=100 * label + k)
    return tmp_path / "photos"


def make(root: Path, **options: Any) -> ImageFolderDataModule:
    data = ImageFolderDataModule(root, **{"image_size": 4, "val_size": 0.2, **options})
    data.setup("fit")
    data.setup("test")
    return data


def where(root: Path, **options: Any) -> dict[bytes, str]:
    """Return the part that the content of each file is in."""
    data = make(root, **options)
    files = data._parts["train"].files.paths
    return {
        files[i].read_bytes(): part
        for part in PARTS
        if part in data.sets
        for i in data.sets[part][2].tolist()  # type: ignore[index]
    }


def one_more_of_a_class(root: Path) -> None:
    write(root / "bee" / "00 first.png", seed=1000)


def a_new_class(root: Path) -> None:
    for k in range(30):
        write(root / "aardvark" / f"{k}.png", seed=2000 + k)


def many_at_once(root: Path) -> None:
    for k in range(300):
        write(root / "cow" / f"more {k}.png", seed=3000 + k)


def some_removed(root: Path) -> None:
    for path in random.Random(0).sample(sorted(root.glob("*/*.png")), 50):
        path.unlink()


def a_class_removed(root: Path) -> None:
    shutil.rmtree(root / "bee")


def all_renamed(root: Path) -> None:
    for path in sorted(root.glob("*/*.png")):
        name = random.Random(path.name).randbytes(4).hex()
        path.rename(path.with_name(f"{name} {path.name}"))


def classes_renamed(root: Path) -> None:
    for name in ("ant", "cow"):
        (root / name).rename(root / f"z {name}")


def into_folders(root: Path) -> None:
    for path in sorted(root.glob("*/*.png")):
        path.parent.joinpath(path.name[0]).mkdir(exist_ok=True)
        path.rename(path.parent / path.name[0] / path.name)


@pytest.mark.parametrize("memory_budget", [4.0, 0.0])
@pytest.mark.parametrize(
    "change",
    [
        one_more_of_a_class,
        a_new_class,
        many_at_once,
        some_removed,
        a_class_removed,
        all_renamed,
        classes_renamed,
        into_folders,
    ],
)
def test_no_image_wanders(
    photos: Path, change: Callable[[Path], None], memory_budget: float
) -> None:
    before = where(photos, memory_budget=memory_budget)
    assert set(before.values()) == set(PARTS)
    change(photos)
    after = where(photos, memory_budget=memory_budget)
    assert len(before.keys() & after.keys()) >= 60
    wanderers = [x for x in before.keys() & after.keys() if before[x] != after[x]]
    assert wanderers == []


def test_renamed_images_are_the_same_data(photos: Path) -> None:
    for memory_budget in (4.0, 0.0):
        before = make(photos, memory_budget=memory_budget)
        all_renamed(photos)
        after = make(photos, memory_budget=memory_budget)
        assert after.sha256 == before.sha256


@pytest.mark.parametrize("memory_budget", [4.0, 0.0])
def test_changed_images_are_other_data(photos: Path, memory_budget: float) -> None:
    before = make(photos, memory_budget=memory_budget)
    data = before._parts["train"].files.paths
    trained = data[int(before.sets["train"][2][0])]
    status = trained.stat()
    write(trained, seed=7777)
    os.utime(trained, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert make(photos, memory_budget=memory_budget).sha256 != before.sha256


def test_an_image_that_only_the_test_gets_changes_nothing_of_the_training(photos: Path) -> None:
    """Not the stream either, though the places of all images behind it have moved."""
    options: Any = {"batch_size": 8, "augment": Augment(flip="alternating")}
    before = make(photos, **options)
    for seed in range(5000, 5100):
        write(photos / "ant" / "0.png", seed)
        after = make(photos, **options)
        if len(after.sets["test"][2]) > len(before.sets["test"][2]):
            break
    assert after.sha256 == before.sha256
    for a, b in zip(before.train_dataloader(), after.train_dataloader(), strict=True):
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])


def test_copies_of_an_image_stay_together(photos: Path) -> None:
    for path in sorted(photos.glob("*/*.png")):
        shutil.copy(path, path.with_name(f"copy of {path.name}"))
    data = make(photos)
    files = data._parts["train"].files.paths
    found: dict[bytes, set[str]] = {}
    for part in PARTS:
        for i in data.sets[part][2].tolist():  # type: ignore[index]
            found.setdefault(files[i].read_bytes(), set()).add(part)
    assert len(found) == 120
    assert all(len(parts) == 1 for parts in found.values())


def random_numbers(size: int, seed: int) -> Tensor:
    return numbers([f"{seed} {k}".encode() for k in range(size)], seed=0)


@pytest.mark.parametrize("size", [200, 1000])
def test_shares_are_met_within_what_chance_allows(size: int) -> None:
    """Over 400 sets of images: the mean share is right, its spread is binomial."""
    labels = torch.zeros(size, dtype=torch.int64)
    counts = torch.tensor(
        [
            [len(parts[part]) if part in parts else 0 for part in ("test", "val")]
            for seed in range(400)
            for parts in [deal(random_numbers(size, seed), labels, SHARES, None)]
        ],
        dtype=torch.float64,
    )
    deviation = (size * 0.1 * 0.9) ** 0.5
    assert ((counts.mean(0) - 0.1 * size).abs() < 4 * deviation / 400**0.5).all()
    assert (counts.std(0) / deviation - 1).abs().max() < 0.15
    within = ((counts - 0.1 * size).abs() <= deviation).double().mean(0)
    assert (within > 0.6).all()  # 0.68 of a normal distribution


def test_numbers_are_uniform_and_of_content_and_seed_alone() -> None:
    drawn = random_numbers(20_000, 1)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = torch.histc(drawn, bins=20, min=0, max=1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 43.8  # 0.999 of chi squared, 19 degrees
    digests = [b"a", b"b", b"a"]
    first = numbers(digests, 0)
    assert first[0] == first[2] != first[1]
    assert numbers(digests[:1], 0)[0] == first[0]
    assert numbers(digests[:1], 1)[0] != first[0]


@pytest.mark.parametrize("seed", range(20))
def test_no_class_lacks_a_training_image(seed: int) -> None:
    labels = torch.cat([torch.arange(30), torch.full((20,), 30)])  # 30 classes of one image
    found = random_numbers(50, seed)
    parts = deal(found, labels, {"test": 0.4, "val": 0.4}, None)
    assert labels[parts["train"]].unique().tolist() == list(range(31))
    every = torch.cat(list(parts.values()))
    assert every.sort().values.tolist() == list(range(50))
    rest = found[parts["train"]]
    assert rest.tolist() == sorted(rest.tolist(), reverse=True)


def test_the_one_exception_moves_a_single_image() -> None:
    """Two images of a class, both outside training: the higher one is trained on, until a third
    one comes that would be anyway."""
    found = torch.tensor([0.05, 0.15, 0.9, 0.12, 0.8])
    labels = torch.tensor([0, 0, 1, 1, 0])
    before = deal(found[:4], labels[:4], SHARES, None)
    assert before["train"].tolist() == [2, 1]
    after = deal(found, labels, SHARES, None)
    assert after["train"].tolist() == [2, 4]
    assert after["val"].tolist() == [1, 3]
    assert before["test"].tolist() == after["test"].tolist() == [0]


def test_a_smaller_training_set_is_a_part_of_a_larger_one(photos: Path) -> None:
    sizes = (3, 10, 40, 70)
    made = [make(photos, train_size=size, batch_size=2) for size in sizes]
    trained = [set(data.sets["train"][2].tolist()) for data in made]
    assert [len(part) for part in trained] == list(sizes)
    assert all(a < b for a, b in pairwise(trained))
    assert set(make(photos).sets["train"][2].tolist()) > trained[-1]
    for data in made:
        _, labels, indices = data.sets["train"]
        assert labels[indices].unique().tolist() == [0, 1, 2]
        for part in ("val", "test"):
            assert torch.equal(data.sets[part][2], made[0].sets[part][2])  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"val_size": 24},
            r"val_size 24 is a number .* set a share, as --data\.val_size 0\.2 \(24",
        ),
        ({"test_size": 1}, r"test_size 1 is a number of images"),
        (
            {"val_size": 0.6, "test_size": 0.4},
            r"test_size 0\.4 \+ val_size 0\.6: shares .* must add up to less than 1",
        ),
        ({"val_size": -0.1}, r"val_size -0\.1: shares can't be negative"),
        ({"val_size": math.nan}, r"val_size nan: shares can't be negative"),
        (
            {"train_size": 2},
            r"train_size 2 does not fit: there are \d+ training images of 3 classes",
        ),
        ({"train_size": 120}, r"train_size 120 does not fit: there are \d+ training"),
    ],
)
def test_sizes_that_can_not_be(photos: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(photos, **options)


def test_too_few_images_to_validate_on() -> None:
    """The error names the share by which there is one."""
    found, labels = torch.tensor([0.9, 0.31, 0.8]), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="none of the 3 images falls into validation") as error:
        deal(found, labels, SHARES, None)
    share = float(str(error.value).split("--data.val_size ")[1].split(",")[0])
    assert share == 0.22
    assert deal(found, labels, SHARES | {"val": share}, None)["val"].tolist() == [1]
    with pytest.raises(ValueError, match="there are too few; set --data.val_size 0 to train"):
        deal(found, torch.arange(3), SHARES, None)
