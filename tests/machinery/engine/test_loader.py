"""The stream of batches is a function of (seed, epoch, batch): of no rank, restart or other draw.

Legend: N examples, B examples of a global batch, C channels, H height, W width.
"""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from project.data import Augment, BatchTransform, Compose, Normalize, TensorLoader
from project.engine.keyed import generator
from project.engine.values import Batch

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
ALL_AUGMENTS = Augment(resized_crop=0.5, rotation=20, crop=2, flip=True, color_jitter=0.4, cutout=3)


def examples(size: int) -> tuple[Tensor, Tensor]:
    """Return random images, uint8 (N, 3, 8, 8), each with its own index as label."""
    images = torch.randint(256, (size, 3, 8, 8), generator=generator(size), dtype=torch.uint8)
    return images, torch.arange(size)


PIXELS = Normalize((0.0,), (1 / 255,))  # leaves them as they are


def normalized(augment: BatchTransform | None, by: BatchTransform | None = None) -> BatchTransform:
    by = by or Normalize(MEAN, STD)
    return by if augment is None else Compose([augment, by])


def make(size: int = 50, batch_size: int = 8, **kwargs: Any) -> TensorLoader:
    """Return a loader, for training unless told otherwise."""
    kwargs = {"shuffle": True, "transform": normalized(ALL_AUGMENTS), **kwargs}
    return TensorLoader(*examples(size), batch_size, **kwargs)


def epoch_of(loader: TensorLoader, epoch: int) -> list[Batch]:
    loader.set_epoch(epoch)
    return list(loader)


def assert_equal(got: list[Batch], expected: list[Batch]) -> None:
    assert len(got) == len(expected)
    for (images, labels), (expected_images, expected_labels) in zip(got, expected, strict=True):
        assert torch.equal(labels, expected_labels)
        assert torch.equal(images, expected_images)


def differ(a: list[Batch], b: list[Batch]) -> bool:
    return any(not torch.equal(x[0], y[0]) for x, y in zip(a, b, strict=True))


class Listed(Dataset[Tensor]):
    """A map-style dataset of the images of a tensor."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index]


def test_generator_has_not_changed() -> None:
    # Golden: another key would give another stream to every checkpoint and result that there is.
    assert generator(0).initial_seed() == 1786884285633530058
    assert generator(1, 2, 3).initial_seed() == 13041116711478803063
    keys = [(0,), (0, 0), (0, 0, 0), (0, 1), (1, 0), (-1, 0)]
    assert len({generator(*key).initial_seed() for key in keys}) == len(keys)


def test_stream_is_a_permutation_normalised() -> None:
    images, labels = examples(50)
    indices = torch.arange(3, 45)
    loader = make(indices=indices, transform=normalized(None), seed=7)
    got = epoch_of(loader, 2)

    order = indices[torch.randperm(42, generator=generator(7, 2))]
    assert len(got) == len(loader) == 6
    for k, (batch, batch_labels) in enumerate(got):
        chosen = order[8 * k : 8 * k + 8]
        pixels = images.index_select(0, chosen).double() / 255
        expected = (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
        assert batch.dtype == torch.float32
        assert torch.equal(batch_labels, labels[chosen])
        torch.testing.assert_close(batch.double(), expected, atol=2e-6, rtol=0)
    assert torch.cat([y for _, y in got]).sort().values.tolist() == indices.tolist()


def test_augmentation_draws_from_seed_epoch_and_batch() -> None:
    images, _ = examples(50)
    got = epoch_of(make(seed=7, transform=normalized(ALL_AUGMENTS, PIXELS)), 2)
    order = torch.randperm(50, generator=generator(7, 2))
    for k, (batch, _) in enumerate(got):
        chosen = images[order[8 * k : 8 * k + 8]]
        u = torch.rand(len(chosen), ALL_AUGMENTS.num_uniforms, generator=generator(7, 2, k))
        expected, _ = ALL_AUGMENTS(chosen, torch.arange(len(chosen)), u)
        torch.testing.assert_close(batch, expected.float(), atol=1e-3, rtol=0)


def test_order_and_augmentation_change_with_seed_and_epoch() -> None:
    base = epoch_of(make(), 0)
    assert_equal(epoch_of(make(), 0), base)
    for other in (epoch_of(make(), 1), epoch_of(make(seed=1), 0)):
        assert differ(other, base)
        assert [y.tolist() for _, y in other] != [y.tolist() for _, y in base]
    # The same image in the same place, so that only its augmentation can differ.
    one = [make(size=16, indices=torch.zeros(16, dtype=torch.int64)) for _ in range(2)]
    first, second = (epoch_of(loader, epoch) for epoch, loader in enumerate(one))
    assert differ(first, second)
    assert differ(first[:1], first[1:])


@pytest.mark.parametrize("world_size", [1, 2])
def test_alternating_flip_mirrors_each_image_in_every_other_epoch(world_size: int) -> None:
    images, _ = examples(400)
    augment = Augment(flip="alternating")

    def mirrored(epoch: int) -> Tensor:
        """Return whether each image is mirrored."""
        flags = torch.zeros(400, dtype=torch.bool)
        for rank in range(world_size):
            transform = normalized(augment, PIXELS)
            loader = make(400, rank=rank, world_size=world_size, transform=transform)
            for batch, labels in epoch_of(loader, epoch):
                whole = batch.round().to(torch.uint8)
                flags[labels] = (whole == images[labels].flip(3)).flatten(1).all(1)
                kept = (whole == images[labels]).flatten(1).all(1)
                assert torch.equal(kept, ~flags[labels])
        return flags

    first = mirrored(0)
    assert 150 < first.sum() < 250
    assert torch.equal(mirrored(1), ~first)
    assert torch.equal(mirrored(2), first)


@pytest.mark.parametrize("num_workers", [None, 0, 2])
def test_global_rng_is_neither_read_nor_moved(num_workers: int | None) -> None:
    def run(seed: int) -> list[Batch]:
        images, labels = examples(50)
        source = images if num_workers is None else Listed(images)
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
        loader = TensorLoader(
            source, labels, 8, shuffle=True, transform=ALL_AUGMENTS, num_workers=num_workers or 0
        )
        batches = list(loader)
        assert random.getstate() == before[0]
        assert np.random.get_state()[1].tolist() == before[1]
        assert torch.equal(torch.get_rng_state(), before[2])
        return batches

    assert_equal(run(1), run(2))


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_together_see_what_one_rank_sees(world_size: int, shuffle: bool) -> None:
    # 52 = 6 · 8 + 4: the last training batch would be one example per rank with 4 ranks.
    size = 52 if world_size == 2 or not shuffle else 56
    alone = epoch_of(make(size, shuffle=shuffle), 3)
    ranks = [
        epoch_of(make(size, shuffle=shuffle, rank=r, world_size=world_size), 3)
        for r in range(world_size)
    ]
    together = []
    for shards in zip(*ranks, strict=True):
        assert len({len(labels) for _, labels in shards}) == 1
        images, labels = (
            torch.stack(parts, 1).flatten(0, 1) for parts in zip(*shards, strict=True)
        )
        together.append((images, labels))
    assert_equal(together, alone)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [12, 30, 120])  # rests of 5 and 11, and one batch of all
def test_evaluation_shows_each_example_once(
    batch_size: int, world_size: int, streamed: bool
) -> None:
    images, labels = examples(101)
    loaders = [
        TensorLoader(
            Listed(images) if streamed else images,
            labels,
            batch_size,
            rank=r,
            world_size=world_size,
        )
        for r in range(world_size)
    ]
    ranks = [list(loader) for loader in loaders]
    assert {len(batches) for batches in ranks} == {len(loaders[0])} == {-(-101 // batch_size)}
    seen = torch.cat([y for batches in ranks for _, y in batches])
    assert seen.sort().values.tolist() == list(range(101))
    for batches in ranks:
        for batch, batch_labels in batches:
            assert torch.equal(batch, images[batch_labels])


@pytest.mark.parametrize("streamed", [False, True])
def test_evaluation_with_fewer_examples_left_than_ranks(streamed: bool) -> None:
    images, labels = examples(25)  # 2 · 12 + 1, so that ranks 1 and 2 end with an empty batch
    source = Listed(images) if streamed else images
    ranks = [list(TensorLoader(source, labels, 12, rank=r, world_size=3)) for r in range(3)]
    assert [[len(y) for _, y in batches] for batches in ranks] == [[4, 4, 1], [4, 4, 0], [4, 4, 0]]
    assert [batches[-1][0].shape for batches in ranks] == [(1, 3, 8, 8), (0, 3, 8, 8), (0, 3, 8, 8)]


def test_evaluation_has_neither_order_nor_augmentation_of_an_epoch() -> None:
    loader = make(shuffle=False, transform=normalized(None))
    assert_equal(epoch_of(loader, 0), epoch_of(loader, 5))
    assert torch.cat([y for _, y in loader]).tolist() == list(range(50))


STREAMS = [None, 0, 2]  # in memory, or read by so many workers


def stream(num_workers: int | None, **kwargs: Any) -> TensorLoader:
    loader = make(num_workers=num_workers or 0, **kwargs)
    if num_workers is not None:
        assert isinstance(loader.inputs, Tensor)
        loader.inputs = Listed(loader.inputs)
    return loader


def test_dataset_gives_the_batches_of_the_tensor() -> None:
    for kwargs in ({}, {"shuffle": False, "transform": None}, {"rank": 1, "world_size": 2}):
        expected = epoch_of(make(**kwargs), 2)
        assert_equal(epoch_of(stream(0, **kwargs), 2), expected)
        assert_equal(epoch_of(stream(2, **kwargs), 2), expected)


@pytest.mark.parametrize("num_workers", STREAMS)
@pytest.mark.parametrize("stop", [1, 3, 6])  # batches of the second epoch that are done, of 7
def test_resume_within_an_epoch(stop: int, num_workers: int | None) -> None:
    loader = make()
    expected = [epoch_of(loader, epoch) for epoch in range(3)]

    interrupted = stream(num_workers)
    epoch_of(interrupted, 0)
    interrupted.set_epoch(1)
    batches = iter(interrupted)
    for _ in range(stop):
        next(batches)
    state = interrupted.state_dict()
    assert state == {"seed": 0, "batch_size": 8, "examples": 50} | {
        "class_balanced": False,
        "epoch": 1,
        "batch": stop,
    }

    resumed = stream(num_workers)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert_equal(epoch_of(resumed, 1), expected[1][stop:])
    assert_equal(epoch_of(resumed, 2), expected[2])  # one-shot: not from `stop` on


def test_resume_at_the_end_of_an_epoch() -> None:
    loader = make()
    expected = [epoch_of(loader, epoch) for epoch in range(3)]
    loader = make()
    epoch_of(loader, 0)
    epoch_of(loader, 1)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert resumed.state_dict() == loader.state_dict()
    assert_equal(list(resumed), expected[2])  # also where nobody calls set_epoch
    assert (resumed.epoch, resumed.batch) == (2, len(resumed))
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert_equal(epoch_of(resumed, 2), expected[2])


def test_resume_is_one_shot_without_set_epoch() -> None:
    expected = epoch_of(make(), 0)
    loader = make()
    loader.load_state_dict({**loader.state_dict(), "batch": 5})
    assert_equal(list(loader), expected[5:])
    assert_equal(list(loader), expected)


def test_resume_into_another_epoch_starts_at_its_first_batch() -> None:
    loader = make()
    loader.load_state_dict({**loader.state_dict(), "epoch": 1, "batch": 5})
    assert_equal(epoch_of(loader, 4), epoch_of(make(), 4))


def test_position_after_a_resumed_batch() -> None:
    loader = make()
    loader.load_state_dict({**loader.state_dict(), "epoch": 1, "batch": 5})
    next(iter(loader))
    assert (loader.epoch, loader.batch) == (1, 6)


def test_position_is_the_same_on_every_rank() -> None:
    states = []
    for rank in range(2):
        loader = make(rank=rank, world_size=2)
        next(iter(loader))
        states.append(loader.state_dict())
    assert states[0] == states[1]
    alone = make()
    alone.load_state_dict(states[0])  # and a run can go on with another number of ranks
    assert_equal(list(alone), epoch_of(make(), 0)[1:])


@pytest.mark.parametrize(
    ("key", "other", "expected"),
    [
        ("seed", {"seed": 3}, "seed was 3, now it is 0"),
        ("batch_size", {"batch_size": 16}, "batch_size was 16, now it is 8"),
        ("examples", {"size": 64}, "examples was 64, now it is 50"),
        ("class_balanced", {"class_balanced": True}, "class_balanced was True, now it is False"),
    ],
)
def test_position_of_another_stream_is_refused(
    key: str, other: dict[str, Any], expected: str
) -> None:
    loader = make()
    with pytest.raises(ValueError, match=expected):
        loader.load_state_dict(make(**other).state_dict())
    assert (loader.epoch, loader.batch) == (0, 0)


def test_position_of_before_there_was_class_balance() -> None:
    state = make().state_dict()
    del state["class_balanced"]
    make().load_state_dict(state)
    with pytest.raises(ValueError, match="class_balanced was False, now it is True"):
        make(class_balanced=True).load_state_dict(state)


@pytest.mark.parametrize("batch", [0, 3])
def test_iter_without_consuming_changes_nothing(batch: int) -> None:
    loader = make()
    state = {**loader.state_dict(), "batch": batch}
    loader.load_state_dict(state)
    iter(loader)
    batches = iter(loader)
    assert loader.state_dict() == state
    assert_equal(list(batches), epoch_of(make(), 0)[batch:])


def test_set_epoch_counts_between_iter_and_first_batch() -> None:
    loader = make()
    batches = iter(loader)
    loader.set_epoch(1)
    assert_equal(list(batches), epoch_of(make(), 1))


def test_set_epoch_is_found_by_lightning() -> None:
    from lightning.fabric.utilities.data import _set_sampler_epoch

    loader = make()
    _set_sampler_epoch(loader, 5)
    assert loader.epoch == 5


@pytest.mark.parametrize(
    ("size", "world_size", "sizes"),
    [
        (50, 1, [8] * 6 + [2]),
        (49, 1, [8] * 6),  # a batch of one has no variance
        (48, 1, [8] * 6),
        (52, 2, [4] * 6 + [2]),
        (50, 2, [4] * 6),  # one per rank
        (49, 2, [4] * 6),
        (56, 4, [2] * 7),
        (5, 1, [5]),
    ],
)
def test_last_training_batch(size: int, world_size: int, sizes: list[int]) -> None:
    for rank in range(world_size):
        loader = make(size, rank=rank, world_size=world_size)
        assert [len(labels) for _, labels in loader] == sizes
        assert len(loader) == len(sizes)


def test_drop_last() -> None:
    full = epoch_of(make(50), 0)
    assert_equal(epoch_of(make(50, drop_last=True), 0), full[:6])
    assert len(make(51, world_size=2, drop_last=True)) == 6  # a rest of 3 does not matter then


def test_batch_size_must_be_a_multiple_of_the_ranks() -> None:
    with pytest.raises(ValueError, match=r"batch_size 9 .* use a positive multiple of 2"):
        make(batch_size=9, world_size=2)
    for batch_size in (0, -2):
        with pytest.raises(ValueError, match=f"batch_size {batch_size} .* positive"):
            make(batch_size=batch_size, world_size=2)


def test_rest_that_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has 3 examples, which 2 ranks .* --data\.drop_last"):
        make(51, world_size=2)
    assert len(make(51, world_size=2, shuffle=False)) == 7  # in evaluation ranks may differ


def test_fewer_examples_than_a_batch() -> None:
    with pytest.raises(ValueError, match=r"5 examples make no batch of 8: .* --data\.batch_size"):
        make(5, drop_last=True)
    with pytest.raises(ValueError, match="1 examples make no batch of 8"):
        make(1)
    assert [len(labels) for _, labels in make(1, shuffle=False)] == [1]


COUNTS = [100, 2, 21, 1, 7]  # examples of each class


def balanced(counts: list[int] = COUNTS, batch_size: int = 16, **kwargs: Any) -> TensorLoader:
    """A class-balanced loader whose images are the number of their example, one pixel each."""
    size = sum(counts)
    images = torch.arange(size).to(torch.uint8).view(-1, 1, 1, 1)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    kwargs = {"shuffle": True, "class_balanced": True, **kwargs}
    return TensorLoader(images, labels, batch_size, **kwargs)


def drawn(loader: TensorLoader, epoch: int) -> tuple[Tensor, Tensor]:
    """Return the numbers and the labels of the examples of an epoch."""
    numbers, labels = zip(*epoch_of(loader, epoch), strict=True)
    return torch.cat(numbers).flatten().long(), torch.cat(labels)


@pytest.mark.parametrize(
    ("kwargs", "size"),
    [
        ({}, 131),
        ({"drop_last": True}, 128),
        ({"batch_size": 13}, 130),  # a rest of one is always left out
        ({"batch_size": 13, "indices": torch.arange(3, 105)}, 102),  # of three classes of the five
    ],
)
def test_class_balanced_epochs(kwargs: dict[str, Any], size: int) -> None:
    loader = balanced(**kwargs)
    uses = torch.zeros(131, dtype=torch.int64)
    for epoch in range(7):
        numbers, labels = drawn(loader, epoch)
        assert torch.equal(labels, loader.targets[numbers])
        assert len(labels) == size
        counts = labels.unique(return_counts=True)[1]
        assert counts.max() - counts.min() <= 1
        uses += numbers.bincount(minlength=131)
        for label in labels.unique():  # each example of a class as often as the others so far
            of_class = uses[loader.indices[loader.targets[loader.indices] == label]]
            assert of_class.max() - of_class.min() <= 1
    assert set(uses.nonzero().flatten().tolist()) <= set(loader.indices.tolist())
    assert len(loader) == len(balanced(**kwargs, class_balanced=False))


def test_class_balanced_epochs_are_shuffled_by_seed_and_epoch() -> None:
    base = drawn(balanced(), 1)[1]
    assert torch.equal(drawn(balanced(), 1)[1], base)
    for loader, epoch in ((balanced(), 2), (balanced(seed=1), 1)):
        assert not torch.equal(drawn(loader, epoch)[1], base)
    first, again = (drawn(balanced(COUNTS, seed=seed), 0)[0] for seed in (0, 1))
    assert set(first.tolist()) != set(again.tolist())  # of the frequent class, other examples


@pytest.mark.parametrize("world_size", [2, 4])
def test_class_balanced_ranks_together_see_what_one_rank_sees(world_size: int) -> None:
    alone = epoch_of(balanced(drop_last=True), 3)
    ranks = [
        epoch_of(balanced(drop_last=True, rank=r, world_size=world_size), 3)
        for r in range(world_size)
    ]
    for batch, shards in zip(alone, zip(*ranks, strict=True), strict=True):
        for got, parts in zip(batch, zip(*shards, strict=True), strict=True):
            assert torch.equal(got, torch.stack(parts, 1).flatten(0, 1))


@pytest.mark.parametrize("stop", [3, 9])  # of nine batches
def test_class_balanced_stream_resumes_exactly(stop: int) -> None:
    kwargs: dict[str, Any] = {"transform": Augment(color_jitter=0.5), "seed": 4}
    expected = [epoch_of(balanced(**kwargs), epoch) for epoch in range(3)]
    interrupted = balanced(**kwargs)
    interrupted.set_epoch(1)
    batches = iter(interrupted)
    for _ in range(stop):
        next(batches)
    resumed = balanced(**kwargs)
    resumed.load_state_dict(interrupted.state_dict())
    if stop < len(resumed):
        assert_equal(list(resumed), expected[1][stop:])
    assert_equal(epoch_of(resumed, 2), expected[2])


def test_class_balance_is_for_training_only() -> None:
    assert drawn(balanced(shuffle=False), 1)[0].tolist() == list(range(131))
