"""The weights that a run ends with: those of its best epoch, the same on every process."""

import shlex
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, StochasticWeightAveraging
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_info

from ..runs.folder import BEST
from ..runs.names import PROGRAM
from .checkpoint_io import load_checkpoint
from .internals import dump_checkpoint, has_averaged

DIVIDED = (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)  # no rank has a whole model
AVERAGED = BEST.with_name("averaged.ckpt")


class RestoreBest(Callback):
    """Restores the weights of the best epoch at the end of training, on all processes.

    Rank 0 alone reads the checkpoint and sends its weights, so that no other process needs to know
    the run folder or to see its disk. Two kinds of runs keep the weights that they end with, and
    say so: those whose model is divided among devices, and those of StochasticWeightAveraging,
    whose averaged weights are not in a checkpoint yet and are saved beside the best ones.

    Args:
        run: Path of the run folder.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.weights = "last weights"  # that the model has at the end, in words
        self.restored = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.run = Path(trainer.strategy.broadcast(str(self.run)))  # which rank 0 has claimed

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if _has_averaged(trainer):
            self._save_averaged(trainer)
        elif isinstance(trainer.strategy, DIVIDED):
            rank_zero_info(
                "The model is divided among devices and keeps the weights of the last epoch; "
                f"those of the best one are in {self.run / BEST}."
            )
        elif found := trainer.strategy.broadcast(self._read_best(trainer)):
            epoch, weights = found
            trainer.strategy.load_model_state_dict({"state_dict": weights})
            self.weights, self.restored = f"best epoch {epoch + 1}", True

    def _read_best(self, trainer: L.Trainer) -> tuple[int, dict[str, Any]] | None:
        """Return the epoch and the weights of the best checkpoint, on rank 0."""
        if not trainer.is_global_zero or not (self.run / BEST).is_file():
            return None
        best = load_checkpoint(self.run / BEST)
        return best["epoch"], best["state_dict"]

    def _save_averaged(self, trainer: L.Trainer) -> None:
        checkpoint = dump_checkpoint(trainer)
        checkpoint.pop("metrics", None)  # they were measured with other weights
        trainer.strategy.save_checkpoint(checkpoint, self.run / AVERAGED)
        self.weights = "averaged weights"
        path = shlex.quote(str(self.run / AVERAGED))
        rank_zero_info(
            "The model keeps the weights that StochasticWeightAveraging has averaged. They are in "
            f"{path}; to measure them: {PROGRAM} validate --run "
            f"{shlex.quote(str(self.run))} --ckpt_path {path}"
        )


def find_restored(trainer: L.Trainer) -> RestoreBest | None:
    """Return the callback that knows the weights that a run ends with, if there is one."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    return next((c for c in callbacks if isinstance(c, RestoreBest)), None)


def _has_averaged(trainer: L.Trainer) -> bool:
    """Return whether the weights have become an average, and not if the run ended before that."""
    return any(
        isinstance(c, StochasticWeightAveraging)
        and has_averaged(c)
        and trainer.current_epoch - 1 >= c.swa_end
        for c in trainer.callbacks  # type: ignore[attr-defined]
    )
