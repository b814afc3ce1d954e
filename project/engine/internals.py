"""What the project uses of the insides of Lightning, torch and torchmetrics, and why.

Nothing public does the same. The versions are Lightning 2.6.6, torch 2.14.1 and torchmetrics 1.9.0;
the test of the same name in `test_internals.py` fails if an inside has changed. Loggers and the
progress bar are in `output_internals.py`, and jsonargparse and LightningCLI, which a training does
not need, in `commands/internals.py`. Texts of other libraries are matched where the sentence in
their place is written: in `profiler.py`, `processes.py` and `commands/`.
"""

from collections.abc import Callable, MutableMapping
from datetime import timedelta
from typing import Any, TypeAlias

import lightning as L
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.callbacks import EarlyStopping, StochasticWeightAveraging
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer
from torchmetrics import Metric

Convert = Callable[[Tensor], Tensor]

# All layers of a kind, of any number of dimensions; torch has no public class for them.
BatchNorm: TypeAlias = _BatchNorm
Dropout: TypeAlias = _DropoutNd


# The position within a fit. Lightning decides by these whether an epoch, a validation or a step
# comes next, and a save is exact only between two of them.


def is_accumulating(trainer: L.Trainer) -> bool:
    """Return whether the batch leaves its gradients to a later one."""
    return trainer.fit_loop._should_accumulate()


def validates_next(trainer: L.Trainer) -> bool:
    """Return whether validation follows the batch."""
    fetcher: Any = trainer.fit_loop._data_fetcher
    return trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher)


def may_stop(trainer: L.Trainer) -> bool:
    """Return whether `should_stop` ends the fit, which has to have `min_epochs` and `min_steps`."""
    return trainer.fit_loop._can_stop_early


def repeat_validation(trainer: L.Trainer) -> None:
    """Count as if validation stood in its first batch; a resumed run then repeats all of it."""
    progress = trainer.fit_loop.epoch_loop.val_loop.batch_progress
    progress.reset()
    progress.increment_ready()
    progress.increment_started()


def end_epoch_once(trainer: L.Trainer) -> None:
    """Let a fit that resumes after an epoch begin the next one.

    Lightning would end that epoch once more if `max_steps` is set. FitLoop's own setter of
    `restarting` works out that it is to be ended, so that this is the setter of its base class.
    """
    _Loop.restarting.fset(trainer.fit_loop, False)  # type: ignore[attr-defined]


def step_all_schedules(trainer: L.Trainer) -> None:
    """Let plateau schedules be stepped in the first epoch after a resume, which Lightning omits."""
    trainer.fit_loop._restarting = False


def step_plateau_schedules(trainer: L.Trainer) -> None:
    """Step the plateau schedules at the end of an epoch, which Lightning does after the save."""
    loop = trainer.fit_loop.epoch_loop
    if loop._num_ready_batches_reached():
        loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)


def end_after(trainer: L.Trainer, steps: int) -> None:
    """End a fit after a number of optimiser steps; `Trainer.max_steps` cannot be set."""
    trainer.fit_loop.epoch_loop.max_steps = steps


def without_schedules(trainer: L.Trainer) -> None:
    """Take no more steps of any schedule in this fit."""
    trainer.strategy.lr_scheduler_configs = []


def training_modes(trainer: L.Trainer) -> MutableMapping[str, bool]:
    """Return which modules go back to training mode after validation; a change takes effect."""
    return trainer.fit_loop.epoch_loop.val_loop._module_mode.mode


def make_loader(trainer: L.Trainer, split: str) -> Any:
    """Return a new loader of the training or the validation data, or an empty list without data."""
    loop = trainer.fit_loop if split == "train" else trainer.fit_loop.epoch_loop.val_loop
    return loop._data_source.dataloader() if loop._data_source.is_defined() else []


def trainer_of(model: L.LightningModule) -> L.Trainer | None:
    """Return the trainer of a model; the property `trainer` raises an error if there is none."""
    return model._trainer


def dump_checkpoint(trainer: L.Trainer) -> dict[str, Any]:
    """Return what `Trainer.save_checkpoint` writes; it does not let a part of it be left out."""
    return trainer._checkpoint_connector.dump_checkpoint(weights_only=False)


def has_averaged(callback: StochasticWeightAveraging) -> bool:
    """Return whether the callback has begun to average."""
    return callback._initialized


def check_after_training(callback: EarlyStopping, check: bool) -> None:
    """Choose when early stopping looks; the monitored metric is known after it was made."""
    callback._check_on_train_epoch_end = check


class StageTrainer(L.Trainer):
    """A trainer that a subclass can do something around the loops of, once all is set up.

    It has taken Lightning's handlers of signals away by then: they end the process with exit code
    0, and talk to other processes from within the handler.
    """

    stop_asked_by: str | None = None  # class or function that set `should_stop`, if that is known

    def run_stage(self, run: Callable[[], Any]) -> Any:
        """Run the loops by calling `run`."""
        return run()

    def _run_stage(self) -> Any:
        self._signal_connector.teardown()
        return self.run_stage(super()._run_stage)


# Several processes.


def process_rank() -> int:
    """Return the rank of this process, which is known before it meets the others."""
    rank: int = rank_zero_only.rank  # type: ignore[attr-defined]
    return rank


def bound_waiting(strategy: DDPStrategy, limit: timedelta) -> None:
    """Set how long a process waits for the others; as an option, `timeout` needs the strategy."""
    strategy._timeout = limit


def backend(strategy: DDPStrategy) -> str:
    """Return the name of the backend, such as gloo, that the strategy will use."""
    return strategy._get_process_group_backend()


def started_processes(trainer: L.Trainer) -> list[Any]:
    """Return the list of processes that this one has started, if any. Lightning reads it, too."""
    return getattr(trainer.strategy.launcher, "procs", [])  # not all launchers start processes


# Metrics, and optimisers.


def count_as_updated(metric: Metric) -> None:
    """Keep torchmetrics from warning of a metric whose state was not made by an update."""
    metric._update_count = 1


def merge_state(metric: Metric, state: dict[str, Any]) -> None:
    """Add another metric's state; `merge_state` refuses what its class has not declared."""
    metric._reduce_states(state)


class ConvertedMetric(Metric):
    """A metric that has a say in how its states are cast; `set_dtype` alone casts as it says."""

    def conversion(self, fn: Convert) -> Convert:
        """Return what is applied to the states in place of `fn`."""
        return fn

    def _apply(self, fn: Convert, *args: Any, **kwargs: Any) -> Any:
        fn = fn if self._dtype_convert else self.conversion(fn)
        return super()._apply(fn, *args, **kwargs)


def convert_states(metric: Metric, fn: Convert) -> None:
    """Apply a function to all states of a metric, and to their defaults."""
    metric._apply(fn)


def unscales_itself(optimizer: Optimizer) -> bool:
    """Return whether an optimiser, a fused one, takes gradients that fp16 training has scaled."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)  # torch asks in the same way
