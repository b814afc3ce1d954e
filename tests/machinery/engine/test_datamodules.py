"""What all image data modules share: split, normalisation, loaders, position, missing data."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import pytest
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.utils.data import Dataset

from project.data import (
    Augment,
    AugmentedImageDataModule,
    CIFAR10DataModule,
    FashionMNISTDataModule,
    ImageDataModule,
    TensorLoader,
)
from project.data.download import download
from project.engine.datamodule import Split
from project.engine.keyed import generator

EXTREME = Augment(resized_crop=0.1, rotation=180, crop=4, flip=True, color_jitter=0.9, cutout=16)


class Noise(AugmentedImageDataModule):
    """200 training and 30 test images of noise, darker in the first channel."""

    in_channels, image_size = 2, 12
    class_names = ["a", "b", "c"]

    def load(self, split: Split) -> tuple[Tensor, Tensor] | None:
        if split == "val":
            return None
        size = {"train": 200, "test": 30}[split]
        images = torch.randint(256, (size, 2, 12, 12), generator=generator(size))
        images[:, 0] //= 2
        return images.to(torch.uint8), torch.arange(size) % 3


def make(**kwargs: Any) -> Noise:
    data = Noise(**{"batch_size": 16, "val_size": 40, **kwargs})
    data.setup("fit")
    data.setup("test")
    return data


def labels_of(loader: TensorLoader | list[TensorLoader]) -> Tensor:
    assert isinstance(loader, TensorLoader)
    return torch.cat([labels for _, labels in loader])


def images_of(loader: TensorLoader | list[TensorLoader]) -> Tensor:
    assert isinstance(loader, TensorLoader)
    return torch.cat([images for images, _ in loader])


def test_split_depends_on_split_seed_alone() -> None:
    base = make()
    same = make(seed=5, augment=EXTREME, batch_size=32)
    for split in ("train", "val"):
        assert torch.equal(same.sets[split][2], base.sets[split][2])
    assert not torch.equal(labels_of(same.train_dataloader()), labels_of(base.train_dataloader()))
    other = make(split_seed=1)
    assert set(other.sets["val"][2].tolist()) != set(base.sets["val"][2].tolist())


def test_split_leaves_global_rng_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    make().train_dataloader()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("sizes", "train", "val"),
    [
        ({"val_size": 40}, 160, 40),
        ({"val_size": 0.25}, 150, 50),
        ({"train_size": 50, "val_size": 40}, 50, 40),
        ({"train_size": 100, "val_size": 100}, 100, 100),
    ],
)
def test_sizes_of_the_parts(sizes: dict[str, Any], train: int, val: int) -> None:
    data = make(**sizes)
    parts = [data.sets[split][2].tolist() for split in ("train", "val")]
    assert [len(part) for part in parts] == [train, val]
    assert len(set(parts[0] + parts[1])) == train + val


def test_no_validation_examples() -> None:
    data = make(val_size=0)
    assert data.val_dataloader() == []
    assert len(data.sets["train"][2]) == 200


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"train_size": 180}, r"train_size 180 \+ val_size 40 does not fit the 200 images"),
        ({"val_size": 200}, "^val_size 200 leaves none for training of the 200 images"),
        ({"train_size": 0}, r"train_size 0 \+ val_size 40 does not fit"),
    ],
)
def test_sizes_that_do_not_fit(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**sizes)


def test_augmentation_is_for_training_only() -> None:
    plain, augmented = make(), make(augment=EXTREME)
    for name in ("val_dataloader", "test_dataloader", "predict_dataloader"):
        got, expected = (getattr(data, name)() for data in (augmented, plain))
        assert torch.equal(images_of(got), images_of(expected))
    got, expected = augmented.train_dataloader(), plain.train_dataloader()
    assert torch.equal(labels_of(got), labels_of(expected))
    assert not torch.equal(images_of(got), images_of(expected))


def test_data_on_disk_must_say_what_they_are() -> None:
    class Anonymous(Dataset[torch.Tensor]):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.zeros(3, 8, 8, dtype=torch.uint8)

    data = make()
    data.sets["train"] = (Anonymous(), torch.zeros(4, dtype=torch.int64), torch.arange(4))
    with pytest.raises(ValueError, match="Anonymous needs a __repr__ that names its content"):
        _ = data.sha256


def test_validation_is_whole_in_a_fixed_order() -> None:
    data = make(batch_size=6, drop_last=True)  # evaluation batches of 12, and 4 left
    loader = data.val_dataloader()
    _, labels, indices = data.sets["val"]
    assert isinstance(loader, TensorLoader)
    assert [len(batch) for _, batch in loader] == [12, 12, 12, 4]
    assert torch.equal(labels_of(loader), labels[indices])
    assert len(data.train_dataloader()) == 26  # 160 = 26 · 6 + 4


def test_statistics_are_of_the_training_examples() -> None:
    data = make(train_size=30)
    images, _, indices = data.sets["train"]
    assert isinstance(images, Tensor)
    pixels = images[indices].double() / 255
    mean, std = data.statistics
    assert mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-6)
    assert std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-6)


def test_one_grey_level_does_not_divide_by_zero() -> None:
    data = make()
    data.sets["train"][0].fill_(51)  # type: ignore[union-attr]
    images = images_of(data.train_dataloader())
    torch.testing.assert_close(images, torch.zeros_like(images), atol=1e-4, rtol=0)


def test_position_is_that_of_the_training_stream() -> None:
    data = make(augment=EXTREME)
    assert data.state_dict() == {}
    loader = data.train_dataloader()
    loader.set_epoch(2)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    list(data.val_dataloader())  # does not move it
    state = data.state_dict()
    position = {"seed": 0, "batch_size": 16, "examples": 160, "class_balanced": False}
    position |= {"epoch": 2, "batch": 3}
    shown = {"image_size": data.image_size, "in_channels": data.in_channels}
    shown |= {"class_names": data.class_names}
    shown |= dict(zip(("mean", "std"), data.statistics, strict=True))
    assert state == {"position": position, "sha256": data.sha256, "preprocessing": shown}

    resumed = make(augment=EXTREME)
    resumed.load_state_dict(state)
    loader = resumed.train_dataloader()
    loader.set_epoch(2)
    for got, expected in zip(loader, batches, strict=True):
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])
    assert resumed.train_dataloader().state_dict()["batch"] == 0  # a second one starts anew


def test_position_in_other_data_is_refused() -> None:
    data = make()
    data.train_dataloader()
    with pytest.raises(ValueError, match="Noise holds other training or validation examples"):
        make(split_seed=1).load_state_dict(data.state_dict())


def test_position_of_another_stream_is_refused_by_the_data_module() -> None:
    data = make()
    data.train_dataloader()
    other = make(seed=1)
    other.load_state_dict(data.state_dict())
    with pytest.raises(ValueError, match="seed was 0, now it is 1"):
        other.train_dataloader()


def test_loaders_know_their_rank() -> None:
    data = make()
    share = {"global_rank": 1, "world_size": 2, "overfit_batches": 0.0}
    data.trainer = SimpleNamespace(**share)  # type: ignore[assignment]
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        assert isinstance(loader, TensorLoader)
        assert (loader.rank, loader.world_size) == (1, 2)


def test_sha256_is_of_the_examples_in_their_order() -> None:
    base = make().sha256
    assert make(seed=3, batch_size=8).sha256 == base
    others = [make(split_seed=1), make(val_size=41)]
    others.append(make())
    others[-1].sets["train"][0][0, 0, 0, 0] ^= 1  # type: ignore[index]
    assert len({base, *(other.sha256 for other in others)}) == 4


class Unequal(Noise):
    """Noise, of which 150 training images and 10 test images are of class a."""

    counts = (150, 10, 40)

    def load(self, split: Split) -> tuple[Tensor, Tensor] | None:
        loaded = super().load(split)
        if loaded is None:
            return None
        labels = torch.arange(3).repeat_interleave(torch.tensor(self.counts))
        return loaded[0], labels if split == "train" else loaded[1]


def fitted(data: ImageDataModule) -> ImageDataModule:
    data.setup("fit")
    data.setup("test")
    return data


def test_class_balance_changes_the_training_stream_alone() -> None:
    kwargs: dict[str, Any] = {"batch_size": 16, "val_size": 40}
    plain = fitted(Unequal(**kwargs))
    even = fitted(Unequal(**kwargs, sampling="class_balanced"))
    for name in ("val_dataloader", "test_dataloader", "predict_dataloader"):
        got, expected = (getattr(data, name)() for data in (even, plain))
        assert torch.equal(images_of(got), images_of(expected))
        assert torch.equal(labels_of(got), labels_of(expected))
    counts = labels_of(even.train_dataloader()).bincount()
    assert counts.sum() == 160
    assert counts.max() - counts.min() == 1
    assert even.statistics == plain.statistics
    assert even.sha256 == plain.sha256


def test_unequal_classes_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        data = fitted(Unequal(val_size=40))
        data.setup("fit")
        counts = data.sets["train"][1][data.sets["train"][2]].bincount().tolist()
        share = (data.sets["val"][1][data.sets["val"][2]] == 0).float().mean()
        (said,) = caplog.messages
        assert said == (
            f"Unequal classes: {counts[0]} training images of a, {counts[1]} of b. Always "
            f"predicting a would score a val/acc of {share:.3f}.\n"
            "To train on all of them equally often: --data.sampling class_balanced"
        )
        caplog.clear()
        fitted(Unequal(val_size=0, sampling="class_balanced"))
        (said,) = caplog.messages
        assert "150 training images of a, 10 of b. Always predicting a would score a train/" in said
        assert "train/acc of 0.750" in said
        assert "All of them are drawn equally often" in said


def test_a_class_without_training_images_is_said_to_have_none(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unequal, "counts", (199, 0, 1))
    with caplog.at_level("INFO"):
        Unequal(val_size=0, sampling="class_balanced").setup("fit")
    (said,) = caplog.messages
    assert "199 training images of a, 0 of b." in said
    assert said.endswith(
        "1 of 3 classes have no training image at all: the network can't learn them, whatever the "
        "sampling."
    )
    assert "equally often" not in said


def test_equal_classes_are_not_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level("INFO"):
        make()  # 67, 67 and 66 images, of which some are cut off
        monkeypatch.setattr(Unequal, "counts", (75, 75, 50))  # at the bound
        Unequal(val_size=0).setup("fit")
        Unequal(val_size=0).setup("test")
        assert caplog.messages == []
        monkeypatch.setattr(Unequal, "counts", (76, 75, 49))
        Unequal(val_size=0).setup("test")  # of no interest there
        assert caplog.messages == []
        Unequal(val_size=0).setup("fit")
        assert len(caplog.messages) == 1


def test_only_rank_zero_reports(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    with caplog.at_level("INFO"):
        Unequal(val_size=0).setup("fit")
    assert caplog.messages == []


def no_network(*args: Any, **kwargs: Any) -> None:
    raise URLError("Temporary failure in name resolution")


@pytest.mark.parametrize(
    ("module", "data_module", "wanted"),
    [
        ("mnist", FashionMNISTDataModule, r"train-images-idx3-ubyte\[\.gz\] .*t10k-labels"),
        ("cifar", CIFAR10DataModule, r"cifar-10-batches-py .* cifar-10-binary\.tar\.gz"),
    ],
)
def test_missing_data_without_network(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    data_module: Callable[[Path], ImageDataModule],
    wanted: str,
) -> None:
    monkeypatch.setattr(f"torchvision.datasets.{module}.download_and_extract_archive", no_network)
    root = tmp_path / "nothing here"
    with pytest.raises(ValueError, match="under") as error:
        data_module(root).prepare_data()
    message = str(error.value)
    assert "\n" not in message
    assert f"under {root}: looked for" in message
    pattern = rf"looked for {wanted}.*, and the download failed \(.+\)\. Put a copy there, "
    assert error.match(pattern)
    assert message.endswith(
        "name its folder with --data.root, or try the project without data: --config synthetic"
    )
    assert isinstance(error.value.__cause__, Exception)


def test_missing_data_where_the_cause_says_nothing() -> None:
    def fails() -> None:
        raise TimeoutError

    with pytest.raises(ValueError, match=r"\(TimeoutError\(\)\)"):
        download("images", Path(), "them", fails)
