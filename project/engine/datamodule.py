"""What all data modules share: the loaders, and the position in the training stream."""

import hashlib
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, Literal, TypeAlias

import lightning as L
from torch import Tensor

from .content import content, example_digest
from .loader import TensorLoader
from .transforms import BatchTransform
from .values import Batch

Split = Literal["train", "val", "test"]
Sampling = Literal["class_balanced"]
# Inputs and targets of all examples, both a `Source` of values.py, and the indices of those in the
# split, int64. Any, since only the user's code knows which sources they are.
Part: TypeAlias = tuple[Any, Any, Tensor]

# Evaluation keeps no activations for gradients; with four times the batch it needs more memory than
# training all the same, because of the few largest of them.
EVAL_FACTOR = 2


class StreamDataModule(L.LightningDataModule, ABC):
    """Examples in splits, as streams of batches that can be resumed and shared among ranks.

    A concrete class fills `sets` in `setup`.

    Args:
        batch_size: Examples per optimiser step over all processes, not per process.
        seed: Random seed of the order and of the batch transform; the command line sets it to the
            run's seed.
    """

    sampling: Sampling | None = None
    drop_last = False
    num_workers = 0

    def __init__(self, batch_size: int, seed: int) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size} must be positive")
        self.batch_size, self.seed = batch_size, seed
        self.sets: dict[Split, Part] = {}
        self._train_loader: TensorLoader | None = None
        self._position: dict[str, int] | None = None

    @abstractmethod
    def setup(self, stage: str) -> None:
        """Fill `sets` with the splits that a stage needs: fit, validate, test or predict."""

    def batch_transform(self, split: Split) -> BatchTransform | None:
        """Return the function that is applied to each batch of a split, or None.

        That of "train" may be random; that of "val" is also used to show training examples as they
        are.
        """
        return None

    @cached_property
    def sha256(self) -> str:
        """Hash of the training and validation examples in their order, targets included."""
        return self.hash_of("train", "val")

    def hash_of(self, *splits: Split) -> str:
        """Return a hash of the examples of some splits in their order, targets included."""
        digest = hashlib.sha256()
        for split in splits:
            if split in self.sets:
                inputs, targets, indices = self.sets[split]
                for source in (targets, inputs):
                    for held in content(source, indices):
                        digest.update(held)
        return digest.hexdigest()

    def digests(self, split: Split) -> list[bytes]:
        """Return a hash of the inputs of each example of a split, in its order."""
        inputs, _, indices = self.sets[split]
        return [example_digest(inputs, i) for i in indices.tolist()]

    def examples(self, split: Split, size: int) -> Batch:
        """Return the first examples of a split, not augmented, and the same on each rank."""
        return self.pick(split, list(range(min(size, len(self.sets[split][2])))))

    def pick(self, split: Split, places: list[int]) -> Batch:
        """Return the examples at some places of a split, not augmented, the same on each rank."""
        inputs, targets, indices = self.sets[split]
        chosen, transform = indices[places], self.batch_transform("val")
        loader = TensorLoader(inputs, targets, len(places), indices=chosen, transform=transform)
        return next(iter(loader))

    def _loader(self, split: Split, batch_size: int, train: bool = False) -> TensorLoader:
        inputs, targets, indices = self.sets[split]
        return TensorLoader(
            inputs,
            targets,
            batch_size,
            indices=indices,
            transform=self.batch_transform(split),
            shuffle=train,
            class_balanced=train and self.sampling == "class_balanced",
            repeat=train and self._overfits,
            drop_last=train and self.drop_last,
            seed=self.seed,
            rank=self.trainer.global_rank if self.trainer else 0,
            world_size=self.trainer.world_size if self.trainer else 1,
            num_workers=self.num_workers,
        )

    @property
    def _overfits(self) -> bool:
        """Whether each epoch has the same batches, by --trainer.overfit_batches."""
        return self.trainer is not None and self.trainer.overfit_batches > 0  # type: ignore[attr-defined]

    def train_dataloader(self) -> TensorLoader:
        loader = self._loader("train", self.batch_size, train=True)
        if self._position is not None:
            loader.load_state_dict(self._position)
            self._position = None
        self._train_loader = loader
        return loader

    def val_dataloader(self) -> TensorLoader | list[TensorLoader]:
        return self._loader("val", EVAL_FACTOR * self.batch_size) if "val" in self.sets else []

    def test_dataloader(self) -> TensorLoader:
        return self._loader("test", EVAL_FACTOR * self.batch_size)

    def predict_dataloader(self) -> TensorLoader:
        return self.test_dataloader()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the training stream, and which data it is.

        It is kept here and not by the loader alone, since this is the one state that Lightning
        restores before any loader exists and at every kind of checkpoint.
        """
        if self._train_loader is None:
            return {}
        return {"position": self._train_loader.state_dict(), "sha256": self.sha256}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["sha256"] != self.sha256:
            raise ValueError(
                f"{type(self).__name__} holds other training or validation examples than those of "
                "the checkpoint: restore them, or start a new run with --init_from"
            )
        position = state_dict["position"]
        self._position = position | {key: int(position[key]) for key in ("epoch", "batch")}
