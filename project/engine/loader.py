"""Batches as a pure function of (seed, epoch, batch), so that a run can be resumed and sharded.

Legend: N examples of the data set, B examples of a global batch.
"""

from collections.abc import Iterator
from types import SimpleNamespace

import torch
from torch import Tensor

from .keyed import generator
from .order import class_balanced as in_balance
from .order import count_batches, shuffled
from .reading import read
from .targets import are_classes, kind
from .transforms import BatchTransform
from .values import Batch, Source, count, rows


class TensorLoader:
    """Shuffled and transformed batches for training, or every example once for evaluation.

    Iterating yields inputs and targets. Rank r takes every `world_size`-th example of each global
    batch, so that the stream is the same for any number of ranks.

    Args:
        inputs: Inputs of all examples: a tensor (N, …), a dict of these, or a map-style dataset of
            tensors or dicts of them, which is read by `num_workers` processes.
        targets: Targets of all examples, in one of the same forms.
        batch_size: Examples per step, over all ranks.
        indices: The examples to use, int64; all of them by default.
        transform: Function of a batch and of random numbers keyed by (seed, epoch, batch).
        shuffle: Training order: a new permutation in each epoch, and the same number of examples on
            each rank. If false, each example is yielded exactly once, even if that leaves one rank
            an example short.
        class_balanced: Training order: the same number of examples of each class, or one more or
            less, in an epoch of the same length. The examples of a class take turns.
        repeat: Training order: each epoch repeats the batches of the first one, with the same
            random numbers.
        drop_last: Whether to leave out the examples that do not fill a batch. A last training batch
            of one example per rank is always left out: batch normalisation has no variance there.
        seed: Random seed of the order and of the transform.
        rank: Rank of this process.
        world_size: Number of processes.
        num_workers: Number of processes that read datasets; unused for tensors.

    Raises:
        ValueError: If the batch size, or a last training batch, can't be divided among the ranks.
    """

    def __init__(
        self,
        inputs: Source,
        targets: Source,
        batch_size: int,
        *,
        indices: Tensor | None = None,
        transform: BatchTransform | None = None,
        shuffle: bool = False,
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
        if class_balanced and not are_classes(targets):
            raise ValueError(
                "class_balanced needs one class for each example, and the targets are "
                f"{kind(targets)}: leave it out"
            )
        self.inputs, self.targets, self.batch_size = inputs, targets, batch_size
        self.indices = torch.arange(count(targets)) if indices is None else indices
        self.transform, self.shuffle = transform, shuffle
        self.class_balanced, self.repeat = class_balanced, repeat
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.num_workers = num_workers
        self.epoch = self.batch = self._first = 0
        self._alternating = self._draw_alternating()
        # Lightning calls `set_epoch` of what it finds in this attribute of a DataLoader.
        self.batch_sampler = SimpleNamespace(sampler=self)
        self._num_batches = count_batches(
            len(self.indices), batch_size, world_size, shuffle, drop_last
        )

    def _draw_alternating(self) -> Tensor | None:
        """Draw the random numbers that each example keeps, float32 (N, columns)."""
        if self.transform is None or not self.transform.alternating:
            return None
        # In the order of `indices`, so that other examples beside them do not matter.
        shape = len(self.indices), len(self.transform.alternating)
        kept = torch.zeros(int(self.indices.max()) + 1, shape[1])
        kept[self.indices] = torch.rand(shape, generator=generator(self.seed))
        return kept

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[Batch]:
        # A generator on purpose: nothing runs before the first batch is asked for, since Lightning
        # calls iter() before set_epoch(), and twice before the first epoch.
        if self._first >= len(self):
            self.set_epoch(self.epoch + 1)
        start, self._first = self._first, 0
        order = self._order()
        numbers = range(start, len(self))
        batches = [order[k * self.batch_size :][: self.batch_size] for k in numbers]
        whole = self.transform is not None and self.transform.mixes
        wanted = batches if whole else [self._share(batch) for batch in batches]
        seed = generator(self.seed, self._drawn).initial_seed()  # not from the global generator
        loaded = read(self.inputs, self.targets, wanted, self.num_workers, seed)
        for k, examples, batch in zip(numbers, batches, loaded, strict=True):
            self.batch = k + 1
            yield self._transformed(k, examples, batch)

    @property
    def _drawn(self) -> int:
        """The epoch whose random numbers are drawn."""
        return 0 if self.repeat else self.epoch

    def _order(self) -> Tensor:
        if not self.shuffle:
            return self.indices
        examples = self.indices
        if self.class_balanced:
            size = min(len(examples), len(self) * self.batch_size)  # without what is left out
            examples = in_balance(examples, self.targets, size, self.seed, self._drawn)  # type: ignore[arg-type]
        return shuffled(examples, self.seed, self._drawn)

    def _share(self, rows: Tensor) -> Tensor:
        return rows if self.world_size == 1 else rows[self.rank :: self.world_size]

    def _transformed(self, k: int, examples: Tensor, batch: Batch) -> Batch:
        """Apply the transform to batch `k`, given the indices of its examples on all ranks."""
        if self.transform is None:
            return batch
        u = self._uniforms(k, examples, self.transform)
        if not self.transform.mixes:
            return self.transform(*batch, self._share(u))
        share = self._share(torch.arange(len(examples)))
        inputs, targets = self.transform(*batch, u)
        return rows(inputs, share), rows(targets, share)

    def _uniforms(self, k: int, examples: Tensor, transform: BatchTransform) -> Tensor:
        """Draw the random numbers of batch `k`, float32 (B, num_uniforms)."""
        shape = len(examples), transform.num_uniforms
        if transform.num_uniforms == 0:
            return torch.empty(shape)
        u = torch.rand(shape, generator=generator(self.seed, self._drawn, k))
        if self._alternating is not None:
            kept = self._alternating[examples] + self._drawn / 2
            u[:, list(transform.alternating)] = kept % 1
        return u

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches come next, from its first one unless it is resumed."""
        if epoch != self.epoch:
            self.epoch, self.batch, self._first = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position in the stream, and what the stream depends on."""
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
            ValueError: If the position belongs to another stream.
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
