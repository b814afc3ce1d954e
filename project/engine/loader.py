"""Batches as a pure function of (seed, epoch, batch), so that a run can be resumed and sharded.

Legend: N examples, B examples of a global batch, C channels, H height, W width.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, SequentialSampler

from .augment import Augment
from .workers import read_batches

Images: TypeAlias = Tensor | Dataset[Tensor]
Batch: TypeAlias = tuple[Tensor, Tensor]


def generator(*key: int) -> torch.Generator:
    """A random generator that depends on `key` and on nothing else, as JAX's `fold_in`."""
    digest = hashlib.blake2b(struct.pack(f"<{len(key)}q", *key), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


class Normalize(nn.Module):
    """Turns pixels from 0 to 255 into float32, by mean and std per channel in units of [0, 1]."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.scale = nn.Buffer(1 / (255 * torch.tensor(std)).view(-1, 1, 1))
        self.shift = nn.Buffer((-torch.tensor(mean) / torch.tensor(std)).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return images.float().mul_(self.scale).add_(self.shift)


def _read_batch(dataset: Dataset[Tensor], batch: list[int]) -> Tensor:
    if hasattr(dataset, "__getitems__"):  # torch's protocol for reading several at once
        return torch.stack(dataset.__getitems__(batch))
    return torch.stack([dataset[index] for index in batch])


class TensorLoader:
    """Shuffled and augmented batches for training, or every example once for evaluation.

    Iterating gives images, float32 (B, C, H, W), normalised, and labels, int64 (B,). Rank r takes
    every `world_size`-th example of each global batch, so any number of ranks sees one stream.

    Args:
        images: uint8 (N, C, H, W) in memory, or a map-style dataset of uint8 (C, H, W), which is
            read by `num_workers` processes.
        labels: int64 (N,).
        batch_size: Examples per step, over all ranks.
        indices: The examples to use, int64; all of them by default.
        mean: Per channel, in units of [0, 1].
        std: Per channel, in units of [0, 1].
        shuffle: Training order: a new permutation each epoch, and equally many examples on each
            rank. Without it each example comes once, also where a rank gets one less than another.
        augment: Random changes, drawn from a generator keyed by (seed, epoch, batch).
        class_balanced: Training order: the same number of examples of each class, or one more or
            less, in an epoch of the same length. The examples of a class take turns.
        repeat: Training order: each epoch has the batches of the first one, with the same random
            changes.
        drop_last: Leave out the examples that do not fill a batch. A last training batch of one
            example per rank is always left out: batch normalisation has no variance there.
        seed: Of the order and of the augmentation.
        rank: Of this process.
        world_size: Number of processes.
        num_workers: Processes that read a dataset; unused for a tensor.

    Raises:
        ValueError: If the batch size, or a last training batch, can't be dealt out to the ranks.
    """

    def __init__(
        self,
        images: Images,
        labels: Tensor,
        batch_size: int,
        *,
        indices: Tensor | None = None,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        shuffle: bool = False,
        augment: Augment | None = None,
        class_balanced: bool = False,
        repeat: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
    ) -> None:
        if batch_size < 1 or batch_size % world_size:
            raise ValueError(
                f"batch_size {batch_size} is over all processes: use a positive multiple of "
                f"{world_size}"
            )
        self.images, self.labels, self.batch_size = images, labels, batch_size
        self.indices = torch.arange(len(labels)) if indices is None else indices
        self.mean, self.normalize = tuple(mean), Normalize(mean, std)
        self.shuffle, self.augment, self.drop_last = shuffle, augment, drop_last
        self.class_balanced, self.repeat = class_balanced, repeat
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self._sides = None  # of each image in even epochs, where it changes them in odd ones
        if augment is not None and augment.flip == "alternating":
            # By place among the examples: other images beside them do not matter.
            self._sides = torch.zeros(len(labels))
            self._sides[self.indices] = torch.rand(len(self.indices), generator=generator(seed))
        self.num_workers = num_workers
        self.epoch = self.batch = self._first = 0
        # Lightning looks for `set_epoch` in the samplers of a DataLoader's two attributes, and for
        # one that does not shuffle in the first of them.
        in_turn = SequentialSampler(self.indices)
        self.sampler = self if shuffle and not repeat else in_turn
        self.batch_sampler = SimpleNamespace(sampler=self)
        self._num_batches = self._count_batches()

    def _count_batches(self) -> int:
        """Of an epoch, with what is left for the last one if the ranks can share it."""
        rest, ranks = len(self.indices) % self.batch_size, self.world_size
        if self.shuffle and not self.drop_last and rest > ranks and rest % ranks:
            raise ValueError(
                f"the last training batch has {rest} examples, which {ranks} ranks can't share "
                "equally: set --data.drop_last true, or another --data.train_size"
            )
        keep_rest = rest > ranks if self.shuffle else rest > 0
        number = len(self.indices) // self.batch_size + (keep_rest and not self.drop_last)
        if number == 0:
            raise ValueError(
                f"{len(self.indices)} examples make no batch of {self.batch_size}: "
                "set a smaller --data.batch_size"
            )
        return number

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[Batch]:
        # A generator on purpose: nothing runs before the first batch is asked for, since Lightning
        # calls iter() before set_epoch(), and twice before the first epoch.
        if self._first >= len(self):
            self.set_epoch(self.epoch + 1)
        first, self._first = self._first, 0
        order = self._order() if self.shuffle else self.indices
        batches = range(first, len(self))
        shards = [self._shard(order[k * self.batch_size :][: self.batch_size]) for k in batches]
        for k, shard, images in zip(batches, shards, self._read(shards), strict=True):
            self.batch = k + 1
            if self.augment is not None:
                images = self.augment(images, self._uniforms(k, shard), self.mean)
            yield self.normalize(images), self.labels[shard]

    @property
    def _drawn(self) -> int:
        """The epoch whose batches are drawn."""
        return 0 if self.repeat else self.epoch

    def _order(self) -> Tensor:
        examples = self._turns() if self.class_balanced else self.indices
        order = torch.randperm(len(examples), generator=generator(self.seed, self._drawn))
        return examples[order]

    def _turns(self) -> Tensor:
        """The classes in turn, and the examples of each in turn.

        They go on from epoch to epoch, so that all examples of a class come equally often.
        """
        size = min(len(self.indices), len(self) * self.batch_size)  # without what is left out
        turn = self._drawn * size + torch.arange(size)
        mixed = self.indices[torch.randperm(len(self.indices), generator=generator(self.seed, -1))]
        labels, places = self.labels[mixed].sort(stable=True)
        counts = labels.unique_consecutive(return_counts=True)[1]
        label, first = turn % len(counts), counts.cumsum(0) - counts
        return mixed[places[first[label] + turn // len(counts) % counts[label]]]

    def _shard(self, examples: Tensor) -> Tensor:
        return examples[self.rank :: self.world_size]

    def _uniforms(self, batch: int, shard: Tensor) -> Tensor:
        size = min(self.batch_size, len(self.indices) - batch * self.batch_size)
        key = generator(self.seed, self._drawn, batch)
        u = self._shard(torch.rand(size, Augment.num_uniforms, generator=key))
        if self._sides is not None:
            u[:, Augment.flip_uniform] = (self._sides[shard] + self._drawn / 2) % 1
        return u

    def _read(self, shards: list[Tensor]) -> Iterable[Tensor]:
        if isinstance(self.images, Tensor):
            return (self.images.index_select(0, shard) for shard in shards)
        # A rank without a share of the last batch reads one image to drop it, for its shape.
        batches = [shard.tolist() or [0] for shard in shards]
        if self.num_workers:
            seed = generator(self.seed, self._drawn).initial_seed()  # not from the global generator
            read: Iterable[Tensor] = read_batches(self.images, batches, self.num_workers, seed)
        else:
            read = (_read_batch(self.images, batch) for batch in batches)
        return (images[: len(shard)] for images, shard in zip(read, shards, strict=True))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches come next, from its first one unless it is resumed."""
        if epoch != self.epoch:
            self.epoch, self.batch, self._first = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """The position in the stream, and what the stream depends on."""
        return {
            "seed": self.seed,
            "batch_size": self.batch_size,
            "examples": len(self.indices),
            "class_balanced": self.class_balanced,
            "epoch": self.epoch,
            "batch": self.batch,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at a position.

        Raises:
            ValueError: If it is one of another stream.
        """
        own = self.state_dict()
        for key in ("seed", "batch_size", "examples", "class_balanced"):
            was = state.get(key, False)  # class_balanced is not in old positions
            if was != own[key]:
                raise ValueError(
                    f"can't continue the data stream: {key} was {was}, now it is {own[key]}"
                )
        self.epoch, self.batch = state["epoch"], state["batch"]
        self._first = self.batch
