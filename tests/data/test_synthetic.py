"""Synthetic images: reproducible, balanced, and not distinguishable by their mean."""

from typing import Any

import pytest
import torch

from project.data import SyntheticDataModule
from project.data.synthetic import stripes


def set_up(*sizes: int, **kwargs: Any) -> SyntheticDataModule:
    data = SyntheticDataModule(*sizes, **kwargs)
    data.setup("fit")
    data.setup("test")
    return data


def test_synthetic_images_depend_on_split_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    base = set_up(200, 50, 50)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    same = set_up(200, 50, 50, seed=9)
    other = set_up(200, 50, 50, split_seed=1)
    assert torch.equal(same.sets["train"][0], base.sets["train"][0])
    assert torch.equal(same.sets["train"][2], base.sets["train"][2])
    assert not torch.equal(other.sets["train"][0], base.sets["train"][0])
    assert torch.equal(same.sets["test"][2], base.sets["test"][2])


def test_synthetic_parts_are_disjoint_and_balanced() -> None:
    data = set_up(200, 60, 40)
    images, labels, _ = data.sets["train"]
    parts = {split: data.sets[split][2].tolist() for split in ("train", "val", "test")}
    assert {split: len(part) for split, part in parts.items()} == {
        "train": 200,
        "val": 60,
        "test": 40,
    }
    assert len({index for part in parts.values() for index in part}) == 300
    assert len({image.numpy().tobytes() for image in images}) == 300
    assert labels.bincount().tolist() == [30] * 10


@pytest.mark.parametrize("image_size", [16, 32])
def test_synthetic_images(image_size: int) -> None:
    data = set_up(100, 20, 20, image_size=image_size)
    images = data.sets["train"][0]
    assert images.shape == (140, 3, image_size, image_size)
    assert images.dtype == torch.uint8
    assert len(set(data.class_names)) == data.num_classes == 10


def test_synthetic_classes_differ_in_direction_and_width() -> None:
    # The strongest spatial frequency of each image, in cycles per image and in degrees.
    images, labels = stripes(1000, 32, seed=0)
    spectrum = torch.fft.fft2(images.float() - images.float().mean((2, 3), keepdim=True))
    power = spectrum.abs().square().sum(1)[:, :, :16].flatten(1)  # (N, 32 * 16), half a plane
    peak = power.argmax(1)
    y, x = torch.fft.fftfreq(32, 1 / 32)[peak // 16], (peak % 16).float()
    direction = torch.atan2(y, x).rad2deg()
    difference = direction - 36 * (labels % 5)
    off = ((difference + 90) % 180 - 90).abs()
    assert (off < 18).float().mean() > 0.85
    wide = (x**2 + y**2).sqrt() < 4.3
    assert (wide == (labels < 5)).float().mean() > 0.95


def test_synthetic_class_has_no_mean_image() -> None:
    images, labels = stripes(4000, 32, seed=0)
    means = torch.stack([images[labels == k].float().mean(0) for k in range(10)])
    assert (means.mean((2, 3)) - 127).abs().max() < 4
    assert (means - means.mean(0)).std() < 5  # of grey levels; one image has 60
    # Nor a mean of squares, which a fixed phase would give it under random colours: 0.04, not 0.1.
    power = (images.float() - 127).square().mean(1)
    powers = torch.stack([power[labels == k].mean(0) for k in range(10)])[:, 10:22, 10:22]
    assert (powers / powers.mean((1, 2), keepdim=True)).std((1, 2)).max() < 0.06
