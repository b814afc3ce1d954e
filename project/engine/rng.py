"""The random state of a run, so that dropout continues where it stopped."""

import random
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import distributed

State = dict[str, Any]


def get_state(device: torch.device) -> State:
    """Return the state of the generators of Python, numpy, torch and the device, in plain types."""
    name, keys, *rest = np.random.get_state(legacy=True)
    state: State = {
        "python": random.getstate(),
        "numpy": [name, keys.tolist(), *rest],  # type: ignore[union-attr]
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state()
    return state


def set_state(state: State, device: torch.device) -> None:
    """Restore a state that `get_state` has returned."""
    random.setstate(state["python"])
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"])
    if "device" in state and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state["device"])


class RNGState(Callback):
    """Saves the random state of every process, and keeps validation from moving it.

    It comes first in the list of callbacks. The state is restored in the first hook after which an
    uninterrupted run would draw random numbers. That is the start of the next epoch if the run is
    resumed at the end of one, and the next batch or validation otherwise.
    """

    def __init__(self) -> None:
        self._pending: State | None = None
        self._before_validation: State | None = None
        self._device = torch.device("cpu")

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._device, self._rank = trainer.strategy.root_device, trainer.global_rank

    def state_dict(self) -> dict[str, list[State]]:
        own = self._before_validation or get_state(self._device)
        states = [own]
        if distributed.is_available() and distributed.is_initialized():
            # Only rank 0 writes a file, so it holds the states of all ranks.
            states = [own] * distributed.get_world_size()
            distributed.all_gather_object(states, own)
        return {"ranks": states}

    def load_state_dict(self, state_dict: dict[str, list[State]]) -> None:
        states = state_dict["ranks"]
        self._pending = states[self._rank % len(states)]
        own = get_state(self._device)
        set_state(self._pending, self._device)  # raises an error here if it is not a random state
        set_state(own, self._device)

    def _restore(self, *_: Any, **__: Any) -> None:
        if self._pending is not None:
            set_state(self._pending, self._device)
            self._pending = None

    on_train_epoch_start = on_train_batch_start = _restore

    def on_train_start(self, *_: Any) -> None:
        if self._rank:  # Lightning's same seed on all ranks would give them the same dropout masks
            torch.manual_seed(torch.initial_seed() + self._rank)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._restore()
            self._before_validation = get_state(self._device)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._before_validation is not None:
            set_state(self._before_validation, self._device)
            self._before_validation = None
