"""Batches are bit for bit the same as those that earlier checkpoints and results were made with.

The hashes are of the batches themselves. If one changes, every seed gives a different training run
than before, which no refactoring may cause.
"""

import hashlib
from typing import Any

import pytest
import torch

from project.data import Augment, Compose, Normalize, SyntheticDataModule, TensorLoader
from project.engine.keyed import generator

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
EVERYTHING = Augment(
    resized_crop=0.5,
    rotation=20,
    crop=2,
    padding="zeros",
    flip=True,
    color_jitter=0.4,
    cutout=3,
)


def loader(augment: Augment | None, **kwargs: Any) -> TensorLoader:
    """Return batches of 8 from 50 images of noise, 3×8×8, in classes of 30, 15 and 5."""
    images = torch.randint(256, (50, 3, 8, 8), generator=generator(50), dtype=torch.uint8)
    labels = torch.arange(3).repeat_interleave(torch.tensor([30, 15, 5]))
    options: dict[str, Any] = {"shuffle": True, "seed": 7, **kwargs}
    transform: Any = Normalize(MEAN, STD)
    if augment is not None:
        augment.fill = MEAN
        transform = Compose([augment, transform])
    return TensorLoader(images, labels, 8, transform=transform, **options)


def hash_of(batches: Any) -> str:
    digest = hashlib.sha256()
    for images, labels in batches:
        digest.update(images.numpy().tobytes())
        digest.update(labels.numpy().tobytes())
    return digest.hexdigest()[:16]


SUBSET = torch.arange(3, 48, 2)
STREAMS: dict[str, tuple[Augment | None, dict[str, Any], list[str]]] = {
    "plain": (None, {}, ["fa89c98643f019d5", "8a539446f3244b6f", "911a7d9058bd3f33"]),
    "everything": (EVERYTHING, {}, ["522177eb451a63e7", "89a1ab1f76db21f5", "690f6ac866ada7f0"]),
    "alternating": (
        Augment(flip="alternating", crop=1),
        {"indices": SUBSET},
        ["a1c43b3714321f12", "bf54814aee214134", "f296f5f279128758"],
    ),
    "balanced": (
        EVERYTHING,
        {"class_balanced": True},
        ["a7026fbc2c8d1c27", "4e9cd8cae235e491", "96274e30be4a2745"],
    ),
    "repeated": (
        EVERYTHING,
        {"repeat": True},
        ["522177eb451a63e7", "522177eb451a63e7", "522177eb451a63e7"],
    ),
    "dropped": (
        Augment(cutout=4),
        {"drop_last": True},
        ["473f4f2fedebf7ea", "19eb8dfe3bbb1599", "7a83e996d49d07f4"],
    ),
    "first rank": (
        EVERYTHING,
        {"rank": 0, "world_size": 2, "drop_last": True},
        ["748c484101a728ed", "2a684a74834083f3", "91a43854468ee89c"],
    ),
    "second rank": (
        Augment(flip="alternating", rotation=40),
        {"rank": 1, "world_size": 2, "drop_last": True, "class_balanced": True},
        ["a77a73537825701f", "7233797134379c84", "ad146656eeb0065a"],
    ),
    "evaluation": (
        None,
        {"shuffle": False},
        ["fff20292bd23b6e3", "fff20292bd23b6e3", "fff20292bd23b6e3"],
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_batches_of_three_epochs(name: str) -> None:
    augment, options, expected = STREAMS[name]
    made = loader(augment, **options)
    found = []
    for epoch in range(3):
        made.set_epoch(epoch)
        found.append(hash_of(made))
    assert found == expected


def test_batches_of_a_data_module() -> None:
    augment = Augment(0.6, 15, 3, "reflect", "alternating", 0.2, 5)
    data = SyntheticDataModule(
        90, 30, 20, image_size=12, batch_size=16, augment=augment, sampling="class_balanced", seed=3
    )
    data.setup("fit")
    data.setup("test")
    train, val, test = data.train_dataloader(), data.val_dataloader(), data.test_dataloader()
    found = [hash_of(batches) for batches in (train, val, test, [data.examples("train", 20)])]
    found += [data.sha256[:16], data.hash_of("test")[:16]]
    assert found == [
        "108a88b3b25eaf15",
        "d7656e181daf9db9",
        "fa5637e5505814be",
        "5047e2c1ab1f707c",
        "eef1ec5ae3ccb300",
        "4d7b3616b21efdee",
    ]
