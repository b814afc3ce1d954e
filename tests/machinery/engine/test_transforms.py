"""Functions of whole batches, with the random numbers that they ask for, on any number of ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from project.commands.cli import main
from project.data import AugmentedImageDataModule, BatchTransform, Compose, TensorLoader
from project.engine.datamodule import Split
from project.engine.keyed import generator
from project.engine.values import Batch

SIZE = 40


class Record(BatchTransform):
    """Leaves a batch as it is, and keeps the numbers that it was given."""

    def __init__(self, num_uniforms: int, alternating: tuple[int, ...] = ()) -> None:
        self.num_uniforms, self.alternating = num_uniforms, alternating
        self.given: list[Tensor] = []

    def __call__(self, inputs: Any, targets: Any, u: Tensor) -> Batch:
        self.given.append(u)
        return inputs, targets


class MixPairs(BatchTransform):
    """Mixes each example with the one at its other end of the batch; gives both targets."""

    num_uniforms, mixes = 1, True

    def __init__(self, strength: float = 1.0) -> None:
        self.strength = strength

    def __call__(self, inputs: Any, targets: Any, u: Tensor) -> Batch:
        share = self.strength * u.view(-1, *[1] * (inputs.ndim - 1))
        mixed = torch.lerp(inputs.float(), inputs.flip(0).float(), share)
        return mixed, {"one": targets, "other": targets.flip(0), "share": share.flatten()}


def loader(transform: BatchTransform | None, **kwargs: Any) -> TensorLoader:
    inputs = torch.randint(256, (SIZE, 1, 4, 4), generator=generator(1), dtype=torch.uint8)
    options: dict[str, Any] = {"shuffle": True, "seed": 5, **kwargs}
    return TensorLoader(inputs, torch.arange(SIZE), 8, transform=transform, **options)


def test_each_transform_gets_columns_of_its_own() -> None:
    parts = [Record(2), Record(0), Record(3)]
    made = loader(Compose(parts))
    made.set_epoch(2)
    list(made)
    for k in range(5):
        u = torch.rand(8, 5, generator=generator(5, 2, k))
        expected = (u[:, :2], u[:, 2:2], u[:, 2:])
        assert all(torch.equal(p.given[k], e) for p, e in zip(parts, expected, strict=True))


def test_alternating_columns_turn_by_a_half_from_epoch_to_epoch() -> None:
    other, turning = Record(2), Record(3, alternating=(0, 2))
    made = loader(Compose([other, turning]))
    by_epoch = []
    for epoch in range(3):
        made.set_epoch(epoch)
        turning.given.clear()
        examples = torch.cat([labels for _, labels in made])
        by_epoch.append(torch.cat(turning.given)[examples.argsort()])
    first, second, third = by_epoch
    torch.testing.assert_close(((second - first) % 1)[:, [0, 2]], torch.full((SIZE, 2), 0.5))
    torch.testing.assert_close(first[:, [0, 2]], third[:, [0, 2]])
    assert not torch.equal(first[:, 1], third[:, 1])


def test_without_a_transform_batches_are_what_is_stored() -> None:
    inputs, labels = next(iter(loader(None, shuffle=False)))
    assert inputs.dtype == torch.uint8
    assert labels.tolist() == list(range(8))


@pytest.mark.parametrize("parts", [[MixPairs()], [Record(4), MixPairs()]])
@pytest.mark.parametrize("world_size", [2, 4])
def test_examples_are_mixed_in_the_same_way_on_any_number_of_ranks(
    world_size: int, parts: list[BatchTransform]
) -> None:
    transform = Compose(parts)
    assert transform.mixes
    alone = list(loader(transform))
    ranks = [list(loader(transform, rank=r, world_size=world_size)) for r in range(world_size)]
    for (inputs, targets), shares in zip(alone, zip(*ranks, strict=True), strict=True):
        assert not torch.equal(targets["one"], targets["other"])
        together = torch.stack([x for x, _ in shares], 1).flatten(0, 1)
        assert torch.equal(together, inputs)
        for name, target in targets.items():
            together = torch.stack([y[name] for _, y in shares], 1).flatten()
            assert torch.equal(together, target)


def test_a_mixing_stream_resumes_exactly() -> None:
    expected, interrupted = list(loader(MixPairs())), loader(MixPairs())
    batches = iter(interrupted)
    for _ in range(2):
        next(batches)
    resumed = loader(MixPairs())
    resumed.load_state_dict(interrupted.state_dict())
    for (inputs, _), (expected_inputs, _) in zip(resumed, expected[2:], strict=True):
        assert torch.equal(inputs, expected_inputs)


class Images(AugmentedImageDataModule):
    in_channels, image_size, class_names = 1, 4, ["a", "b"]

    def load(self, split: Split) -> tuple[Tensor, Tensor] | None:
        if split == "val":
            return None
        images = torch.randint(256, (SIZE, 1, 4, 4), generator=generator(1), dtype=torch.uint8)
        return images, torch.arange(SIZE) % 2


def test_transforms_of_your_own_change_normalised_training_batches_alone() -> None:
    plain = Images(batch_size=8, val_size=8)
    mixed = Images(batch_size=8, val_size=8, transforms=[MixPairs()])
    for data in (plain, mixed):
        data.setup("fit")
    inputs, labels = next(iter(plain.train_dataloader()))
    changed, targets = next(iter(mixed.train_dataloader()))
    share = torch.rand(8, 1, generator=generator(0, 0, 0)).view(-1, 1, 1, 1)
    assert torch.equal(changed, torch.lerp(inputs, inputs.flip(0), share))
    assert torch.equal(targets["other"], labels.flip(0))
    (x, y), (other_x, other_y) = (next(iter(d.val_dataloader())) for d in (plain, mixed))
    assert torch.equal(x, other_x)
    assert torch.equal(y, other_y)
    assert torch.equal(mixed.examples("train", 4)[0], plain.examples("train", 4)[0])


class Negative(BatchTransform):
    """Turns the sign of inputs in a part of the batches' examples.

    Args:
        share: Share of the examples.
    """

    num_uniforms = 1

    def __init__(self, share: float = 0.5) -> None:
        self.share = share

    def __call__(self, inputs: Any, targets: Any, u: Tensor) -> Batch:
        sign = torch.where(u < self.share, -1.0, 1.0)
        return inputs * sign.view(-1, 1, 1, 1), targets


def test_transforms_are_options(tmp_path: Path) -> None:
    args = ["fit", "--config", "synthetic", "--config", "presets/debug", "--data.image_size", "8"]
    args += ["--data.augment.crop", "1", "--data.transforms+", f"{__name__}.Negative"]
    args += ["--data.transforms.share", "0.25", "--trainer.accelerator", "cpu"]
    cli = main([*args, "--trainer.default_root_dir", str(tmp_path)])
    (transform,) = cli.datamodule.transforms
    assert type(transform).__name__ == "Negative"
    assert transform.share == 0.25
    assert cli.datamodule.batch_transform("train").num_uniforms == 14
