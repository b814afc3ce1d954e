"""What all data modules share: the loaders, and the position in the training stream."""

import hashlib
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import lightning as L
from torch import Tensor

from .augment import Augment
from .loader import Batch, Images, TensorLoader

Split = Literal["train", "val", "test"]
Sampling = Literal["class_balanced"]

# Evaluation keeps no activations for gradients; with four times the batch it needs more memory than
# training all the same, by the few largest of them.
EVAL_FACTOR = 2


@runtime_checkable
class Identified(Protocol):
    """Images on disk that know what each of them holds without reading it again."""

    def identity(self, indices: Tensor) -> bytes:
        """What the images of some indices hold, in their order."""


class StreamDataModule(L.LightningDataModule, ABC):
    """Examples in splits, as streams of batches that can be resumed and shared among ranks.

    A concrete class fills `sets` in `setup` and defines `statistics`.

    Args:
        batch_size: Examples per optimiser step over all processes, not per process.
        seed: Of the order; the command line sets it to the run's seed.
    """

    augment: Augment | None = None
    sampling: Sampling | None = None
    drop_last = False
    num_workers = 0

    def __init__(self, batch_size: int, seed: int) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size} must be positive")
        self.batch_size, self.seed = batch_size, seed
        # Inputs and targets of all examples, and the indices of those in the split.
        self.sets: dict[Split, tuple[Images, Tensor, Tensor]] = {}
        self._train_loader: TensorLoader | None = None
        self._position: dict[str, int] | None = None

    @property
    @abstractmethod
    def statistics(self) -> tuple[list[float], list[float]]:
        """Mean and std of each channel, by which the inputs are normalised."""

    @cached_property
    def sha256(self) -> str:
        """Hash of the training and validation examples in their order, labels included."""
        return self.hash_of("train", "val")

    def hash_of(self, *splits: Split) -> str:
        """Hash of the examples of some splits in their order, labels included."""
        digest = hashlib.sha256()
        for split in splits:
            if split in self.sets:
                images, labels, indices = self.sets[split]
                digest.update(labels[indices].numpy().tobytes())
                if isinstance(images, Tensor):
                    for chunk in indices.split(1000):
                        digest.update(images.index_select(0, chunk).numpy().data)
                elif isinstance(images, Identified):
                    digest.update(images.identity(indices))
                elif type(images).__repr__ is object.__repr__:
                    raise ValueError(
                        f"{type(images).__name__} needs a __repr__ that names its content, by "
                        "which a resumed run knows its data again"
                    )
                else:
                    digest.update(repr(images).encode(errors="surrogateescape"))
        return digest.hexdigest()

    def examples(self, split: Split, size: int) -> Batch:
        """The first examples of a split, normalised and not augmented, the same on each rank."""
        images, labels, indices = self.sets[split]
        mean, std = self.statistics
        return next(
            iter(TensorLoader(images, labels, size, indices=indices[:size], mean=mean, std=std))
        )

    def _loader(self, split: Split, batch_size: int, train: bool = False) -> TensorLoader:
        images, labels, indices = self.sets[split]
        mean, std = self.statistics
        return TensorLoader(
            images,
            labels,
            batch_size,
            indices=indices,
            mean=mean,
            std=std,
            shuffle=train,
            augment=self.augment if train else None,
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
        """The position in the training stream, and which data it is.

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
