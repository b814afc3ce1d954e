"""The decision whether a resumed run is promised to continue exactly, and if not, why not."""

from collections.abc import Iterator
from typing import Any

import lightning as L
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info
from torch.optim.lr_scheduler import ReduceLROnPlateau

from .datamodule import StreamDataModule
from .resume import LOOKING
from .task import Task

# Lightning's callbacks that were tested to resume exactly, both within an epoch and at its end.
KNOWN = (
    *("DeviceStatsMonitor", "LearningRateMonitor", "ModelCheckpoint", "ModelSummary"),
    *("RichModelSummary", "RichProgressBar", "Timer", "EarlyStopping"),
    *("GradientAccumulationScheduler", "BackboneFinetuning"),
    *("EMAWeightAveraging", "WeightAveraging"),
)
OWN = (
    *("BestCheckpoint", "CurvesMonitor", "EarlyStopping", "FiniteCheck", "InitLossCheck"),
    *("LastCheckpoint", "LiveState", "MonitorCheck", "OverfitOneBatch", "PlateauStepper"),
    *("PredictionGrid", "ProgressBar", "RNGState", "RestoreBest", "ResumeCheck", "RunRecord"),
    *("SameStart", "StepMonitor", "StorableCheck", "SettingsRecord"),
    *("WeightHistogramMonitor",),
)
PACKAGE = __name__.partition(".")[0]
SWAPPING = (  # hooks that run between the start of validation and a save during it
    *("on_validation_start", "on_validation_epoch_start"),
    *("on_validation_batch_start", "on_validation_batch_end"),
)


def is_known(callback: Callback) -> bool:
    """Return whether a callback resumes exactly: it is tested, restores a state, or has none."""
    kind = type(callback)
    if _is_own(kind) or _is_lightnings(kind):
        return _is_own(kind) or kind.__name__ in KNOWN
    if kind.state_dict is not Callback.state_dict:
        return kind.load_state_dict is not Callback.load_state_dict
    # Lightning sets the model's `log` and `log_dict` on every callback, so they are not state.
    return not {k for k, v in vars(callback).items() if v is not None} - {"log", "log_dict"}


def _is_own(kind: type[Callback]) -> bool:
    return kind.__module__.partition(".")[0] == PACKAGE and kind.__name__ in OWN


def _is_lightnings(kind: type[Callback]) -> bool:
    return getattr(lightning_callbacks, kind.__name__, None) is kind


def may_swap(trainer: L.Trainer) -> bool:
    """Return whether something may hold other weights in the model while it is validated."""
    kinds = {type(callback) for callback in trainer.callbacks}  # type: ignore[attr-defined]
    harmless = {k for k in kinds if _is_own(k) or (_is_lightnings(k) and k.__name__ in KNOWN)}
    harmless -= {lightning_callbacks.WeightAveraging, lightning_callbacks.EMAWeightAveraging}
    pairs: list[tuple[type, type]] = [(kind, Callback) for kind in kinds - harmless]
    pairs.append((type(trainer.lightning_module), Task))
    return any(
        getattr(kind, hook) is not getattr(base, hook) for kind, base in pairs for hook in SWAPPING
    )


class ResumeCheck(Callback):
    """Refuses a checkpoint that does not fit the run, and says whether the resume is exact.

    Args:
        doubts: Reasons, already known when the run starts, why the resumed run may differ.
    """

    def __init__(self, doubts: list[str]) -> None:
        self.doubts = doubts
        self._checkpoint: dict[str, Any] | None = None

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._checkpoint = checkpoint

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._checkpoint is None:
            return
        checkpoint, self._checkpoint = self._checkpoint, None
        check_optimizers(trainer, checkpoint)
        check_callbacks(trainer, checkpoint)
        doubts = [*self.doubts, *_doubts(trainer, pl_module, checkpoint)]
        if doubts:
            why = "; ".join(doubts)
            rank_zero_info(f"The resumed run may differ from an uninterrupted one: {why}.")
        else:
            rank_zero_info("Resuming exactly where the run stopped.")


def check_optimizers(trainer: L.Trainer, checkpoint: dict[str, Any]) -> None:
    """Refuse a checkpoint whose optimisers have other parameters than those of the run.

    Raises:
        ValueError: If the number of optimisers, or of their parameters, differs.
    """
    saved = [_sizes(state["param_groups"]) for state in checkpoint["optimizer_states"]]
    wanted = [_sizes(optimizer.param_groups) for optimizer in trainer.optimizers]
    if saved != wanted:
        raise ValueError(
            f"cannot resume: the checkpoint's optimisers have groups of {saved} parameters, and "
            f"the run's have {wanted}: start a new run from its weights with --init_from FILE"
        )


def _sizes(groups: list[dict[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


def check_callbacks(trainer: L.Trainer, checkpoint: dict[str, Any]) -> None:
    """Refuse to resume without a callback that has a state in the checkpoint.

    Raises:
        ValueError: If the missing callback does more than observe the run.
    """
    present = {type(c).__name__ for c in trainer.callbacks}  # type: ignore[attr-defined]
    for key in checkpoint.get("callbacks", {}):
        name = key.partition("{")[0]
        if name not in present.union(LOOKING, OWN):
            raise ValueError(
                f"cannot resume without the callback {name}, whose state the checkpoint holds: "
                "give --trainer.callbacks as before, or start a new run from its weights with "
                "--init_from FILE"
            )


def _doubts(
    trainer: L.Trainer, model: L.LightningModule, checkpoint: dict[str, Any]
) -> Iterator[str]:
    loop = checkpoint["loops"]["fit_loop"]
    counted = loop["epoch_progress"]["current"]
    within = counted["processed"] != counted["ready"]
    if not within and not loop["epoch_loop.batch_progress"]["is_last_batch"]:
        yield "the run ended within an epoch, and now starts the next one"
    states = checkpoint.get("callbacks", {}).get("RNGState", {}).get("ranks", [])
    if len(states) != trainer.world_size:
        yield f"the checkpoint holds the random state of {len(states)} processes"
    data = trainer.datamodule  # type: ignore[attr-defined]
    position = checkpoint.get(type(data).__qualname__, {})
    if not isinstance(data, StreamDataModule):
        yield f"{type(data).__name__} does not keep its place in the data"
    elif not {"position", "sha256"} <= position.keys():
        yield "the checkpoint does not hold the place in the data"
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if not is_known(callback):
            yield f"the callback {type(callback).__name__} is not known to resume exactly"
    name, kind = type(model).__name__, type(model)
    plateau = any(
        isinstance(config.scheduler, ReduceLROnPlateau) for config in trainer.lr_scheduler_configs
    )
    if not isinstance(model, Task) and (within or plateau):
        yield f"{name} is not a Task, which keeps metrics and the plateau schedule"
    elif isinstance(model, Task) and "ranks" not in checkpoint.get("train_metrics", {}):
        yield "the checkpoint does not hold the training metrics of its epoch"
    if within and kind.on_train_batch_end is not L.LightningModule.on_train_batch_end:
        yield f"{name}.on_train_batch_end is called after the save within an epoch"
