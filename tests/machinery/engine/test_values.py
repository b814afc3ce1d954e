"""Inputs and targets of any kind: tensors, dicts of tensors and datasets on disk, in one stream."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from project.data import BatchTransform, StreamDataModule, TensorLoader
from project.engine.keyed import generator
from project.engine.values import Batch, Source, Values, count

SIZE = 30
TOKENS = torch.randint(1000, (SIZE, 5), generator=generator(2))
FEATURES = torch.rand(SIZE, 3, generator=generator(3))
MASKS = torch.randint(4, (SIZE, 6, 6), generator=generator(4))
IMAGES = torch.randint(256, (SIZE, 3, 6, 6), generator=generator(5), dtype=torch.uint8)
NAMED = {"tokens": TOKENS, "features": FEATURES}


class Files(Dataset[Tensor]):
    """Arrays in files, one for each example."""

    def __init__(self, folder: Path, values: Tensor) -> None:
        self.folder, self.number = folder, len(values)
        folder.mkdir()
        for i, value in enumerate(values):
            np.save(folder / f"{i}.npy", value.numpy())

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(np.load(self.folder / f"{index}.npy"))

    def __repr__(self) -> str:
        return f"{self.number} files"


class Rows(Dataset[dict[str, Tensor]]):
    """A dataset of dicts."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[index] for name, value in NAMED.items()}

    def __repr__(self) -> str:
        return "named"


def equal(a: Values, b: Values) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)


def assert_equal(got: list[Batch], expected: list[Batch]) -> None:
    for (x, y), (expected_x, expected_y) in zip(got, expected, strict=True):
        assert equal(x, expected_x)
        assert equal(y, expected_y)


def stream(inputs: Source, targets: Source, epoch: int = 1, **kwargs: Any) -> list[Batch]:
    loader = TensorLoader(inputs, targets, 8, **{"shuffle": True, "seed": 3, **kwargs})
    loader.set_epoch(epoch)
    return list(loader)


def shown(targets: Source, **kwargs: Any) -> list[Batch]:
    """Return the numbers of the examples, and the targets."""
    return stream(torch.arange(SIZE), targets, **kwargs)


@pytest.mark.parametrize("values", [TOKENS, FEATURES, MASKS, NAMED], ids=["t", "f", "m", "named"])
def test_values_in_memory_are_as_stored(values: Values) -> None:
    for kwargs in ({}, {"shuffle": False}):
        for numbers, targets in shown(values, **kwargs):
            if isinstance(values, dict):
                assert all(torch.equal(targets[n], v[numbers]) for n, v in values.items())
            else:
                assert torch.equal(targets, values[numbers])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_images_and_masks_on_disk_make_the_batches_of_those_in_memory(
    num_workers: int, tmp_path: Path
) -> None:
    images, masks = Files(tmp_path / "images", IMAGES), Files(tmp_path / "masks", MASKS)
    expected = stream(IMAGES, MASKS)
    assert_equal(stream(images, masks, num_workers=num_workers), expected)
    assert_equal(stream(IMAGES, masks, num_workers=num_workers), expected)
    assert_equal(stream(images, MASKS, num_workers=num_workers), expected)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_datasets_of_dicts(num_workers: int) -> None:
    kwargs: dict[str, Any] = {"shuffle": False, "world_size": 4, "num_workers": num_workers}
    for rank in range(4):  # 30 = 3 · 8 + 6: the last ranks have one example less
        expected = stream(NAMED, NAMED, rank=rank, **kwargs)
        assert_equal(stream(Rows(), Rows(), rank=rank, **kwargs), expected)
    kwargs = {"shuffle": False, "indices": torch.arange(25), "world_size": 2, "rank": 1}
    numbers = [
        len(y["tokens"]) for _, y in stream(Rows(), Rows(), num_workers=num_workers, **kwargs)
    ]
    assert numbers == [4, 4, 4, 0]


class Module(StreamDataModule):
    """Data of any kind; half of the examples validate."""

    def __init__(self, inputs: Any, targets: Any, **kwargs: Any) -> None:
        super().__init__(batch_size=5, seed=0)
        self.inputs, self.targets = inputs, targets
        for name, value in kwargs.items():
            setattr(self, name, value)
        self.setup("fit")

    def setup(self, stage: str) -> None:
        half = SIZE // 2
        self.sets["train"] = (self.inputs, self.targets, torch.arange(half))
        self.sets["val"] = (self.inputs, self.targets, torch.arange(half, SIZE))


def test_a_data_module_of_dicts_keeps_its_position_and_knows_its_data() -> None:
    data = Module(NAMED, MASKS)
    loader = data.train_dataloader()
    batches = iter(loader)
    next(batches)
    state = data.state_dict()
    resumed = Module({name: NAMED[name].clone() for name in ("features", "tokens")}, MASKS)
    resumed.load_state_dict(state)
    assert_equal(list(resumed.train_dataloader()), list(batches))
    changed = Module(NAMED | {"tokens": TOKENS + 1}, MASKS)
    renamed = Module({"tokens": TOKENS, "f": FEATURES}, MASKS)
    masks = MASKS.clone()
    masks[3, 0, 0] += 1
    for other in (changed, renamed, Module(NAMED, masks)):
        with pytest.raises(ValueError, match="holds other training or validation examples"):
            other.load_state_dict(state)


def test_copies_among_examples_are_found_by_their_inputs() -> None:
    copied = FEATURES.clone()
    copied[20] = copied[4]
    for inputs in (copied, {"features": copied}):
        data = Module(inputs, TOKENS)
        train, val = data.digests("train"), data.digests("val")
        assert [i for i, digest in enumerate(val) if digest in train] == [5]
        assert val[5] == train[4]
    assert len(set(Module(Rows(), TOKENS).digests("val"))) == SIZE // 2


class Plus(BatchTransform):
    """Adds a number to float inputs."""

    def __call__(self, inputs: Any, targets: Any, u: Tensor) -> Batch:
        return inputs + 1, targets


class Transformed(Module):
    def batch_transform(self, split: str) -> BatchTransform | None:
        return Plus() if split == "train" else None


def test_a_transform_is_of_a_split() -> None:
    data = Transformed(FEATURES, TOKENS)
    (train, _), (val, _) = next(iter(data.train_dataloader())), next(iter(data.val_dataloader()))
    assert train.min() >= 1
    assert torch.equal(val, FEATURES[15:25])
    examples, targets = data.examples("train", 4)  # as validation shows them
    assert torch.equal(examples, FEATURES[:4])
    assert torch.equal(targets, TOKENS[:4])


def test_classes_are_balanced_only_if_there_are_classes() -> None:
    message = r"needs one class for each example, and the targets are int64 \(N, 5\): leave it out"
    with pytest.raises(ValueError, match=message):
        Module(FEATURES, TOKENS, sampling="class_balanced").train_dataloader()
    labels = torch.arange(SIZE) % 3
    batches = list(Module(Rows(), labels, sampling="class_balanced").train_dataloader())
    assert torch.cat([y for _, y in batches]).bincount().tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([1, 2], "a list was given where inputs or targets are expected: give a tensor with a row"),
        ({}, "a dict was given"),
        ({"a": [1, 2]}, "a dict was given"),
        (torch.tensor(1), r"int64 \(\) was given"),
        ({"a": torch.ones(2), "b": torch.ones(3)}, r"numbers of examples: {'a': 2, 'b': 3}"),
    ],
)
def test_what_makes_no_batch_is_refused(source: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        count(source)
