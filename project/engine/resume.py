"""Which run is resumed, and whether it can be: exactly, or not at all."""

import math
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from ..runs.folder import LAST, next_version
from ..runs.lock import is_free
from ..runs.record import FINISHED, Record, read_record
from ..runs.settings import NEUTRAL, flatten
from .pieces import pieces

# Settings that may differ when a run is resumed: its length, and what changes no result.
FREE = (*NEUTRAL, "init_from", "early_stopping", "trainer.max_", "trainer.min_")
# Settings that keep the order of the data, but may change dropout and rounding.
DEVICES = (
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy"),
    *("trainer.deterministic", "trainer.benchmark", "compile"),
)
CALLBACKS = "trainer.callbacks"
LOOKING = (  # callbacks of Lightning that change nothing
    *("DeviceStatsMonitor", "LearningRateMonitor", "ModelSummary", "RichModelSummary"),
    *("RichProgressBar", "TQDMProgressBar", "Timer"),
)
NEEDED = {"loops", "optimizer_states", "lr_schedulers"}  # in a checkpoint, to resume at all
AS_LONG_AS_THE_RUN = {"OneCycleLR": "total_steps", "CosineAnnealingLR": "T_max"}


def find_unfinished(folder: Path, locked: bool) -> Path | None:
    """Return the newest run in `runs/<name>` that was interrupted and can be resumed.

    Args:
        folder: Folder of all runs of that name.
        locked: Whether this is a further process of a run that the first process has locked.
    """
    for version in reversed(range(next_version(folder))):
        run = folder / f"version_{version}"
        if not (run / LAST).is_file():
            continue
        try:
            if read_record(run).is_finished:
                continue
        except ValueError as error:
            rank_zero_warn(f"passed over: {error}")
            continue
        if locked or is_free(run):
            return run
    return None


def check_resumable(
    checkpoint: dict[str, Any], now: dict[str, Any], record: Record | None
) -> list[str]:
    """Refuse to resume from a checkpoint if the run is finished or its settings differ.

    Args:
        checkpoint: Checkpoint to resume from.
        now: Current configuration, in plain types.
        record: Record of the run that the checkpoint belongs to; None if it starts a new run.

    Returns:
        Settings that may make the resumed run differ.

    Raises:
        ValueError: If it holds weights only, the run is finished, or settings differ.
    """
    if "loops" not in checkpoint:
        raise ValueError("the checkpoint holds weights only: start a new run with --init_from FILE")
    _check_unfinished(checkpoint, now, record)
    if "config" not in checkpoint:
        return [*_lost(checkpoint), "the checkpoint does not hold the settings of its run"]
    return [*_lost(checkpoint), *check_same(checkpoint["config"], now)]


def _check_unfinished(
    checkpoint: dict[str, Any], now: dict[str, Any], record: Record | None
) -> None:
    """Refuse a run that has nothing left to train.

    Raises:
        ValueError: If it is finished, with the setting that would let it continue.
    """
    finished = record is not None and record.is_finished
    epochs = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    done = {"max_epochs": epochs, "max_steps": checkpoint["global_step"]}
    for limit, number in done.items():
        most = now["trainer"][limit]
        if most is not None and 0 <= most < number + finished:
            what = limit.removeprefix("max_")
            raise ValueError(
                f"the run is finished, after {number} {what}: raise --trainer.{limit} {most}, "
                "or start a new run"
            )
    stopping = (now["early_stopping"] or {}).get("init_args", {})
    for name, state in checkpoint.get("callbacks", {}).items():
        exhausted = state.get("wait_count", 0) >= stopping.get("patience", math.inf)
        if finished and name.startswith("EarlyStopping") and exhausted:
            raise ValueError(
                f"the run is finished, stopped early after {epochs} epochs: raise "
                f"--early_stopping.patience {stopping['patience']}, or start a new run"
            )
    if record and finished and record.stopped_by not in FINISHED:
        raise ValueError(
            f"the run is finished, stopped by {record.stopped_by} after {epochs} epochs: start "
            "a new run from its weights with --init_from FILE"
        )


def _lost(checkpoint: dict[str, Any]) -> list[str]:
    """Name what is no longer in a checkpoint as it was saved.

    Raises:
        ValueError: If the run can't be resumed without it.
    """
    saved = checkpoint.get("live", {}).get("pieces")
    if saved is None:
        return ["the checkpoint does not say what belongs to it"]
    found = pieces(checkpoint)
    lost = sorted(name for name, digest in saved.items() if found.get(name) != digest)
    for name in (name for name in lost if name in NEEDED or name in found):
        raise ValueError(
            f"cannot resume: the checkpoint's {name} is not what was saved: start a new run from "
            "its weights with --init_from FILE"
        )
    return [f"the checkpoint has lost {', '.join(lost)}"] if lost else []


def _without_looking(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without the callbacks that only look."""
    trainer = dict(config["trainer"])
    given = trainer.get("callbacks") or []
    listed = given if isinstance(given, list) else [given]
    kept = [c for c in listed if c["class_path"].rpartition(".")[2] not in LOOKING]
    return config | {"trainer": trainer | {"callbacks": kept}}


def check_same(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Compare the configuration of a checkpoint with that of a run that resumes from it.

    Returns:
        The differences that the resumed run can have, but that may change its numbers.

    Raises:
        ValueError: If other settings differ.
    """
    was, is_now = (dict(flatten(_without_looking(config))) for config in (saved, now))
    keys = [key for key in sorted(was | is_now) if was.get(key) != is_now.get(key)]
    # If a class differs, its arguments are not listed as well.
    keys = [key for key in keys if not any(key.startswith(f"{other}.") for other in keys)]
    changed = {key: f"{key}: {was.get(key)} → {is_now.get(key)}" for key in keys}
    refused = [
        text for key, text in changed.items() if not key.startswith((*FREE, *DEVICES, CALLBACKS))
    ]
    schedule = str(was.get("model.lr_scheduler", "")).rsplit(".", 1)[-1]
    length = f"model.lr_scheduler.{AS_LONG_AS_THE_RUN.get(schedule)}"
    if length in was and was[length] is None:
        lengths = {"trainer.max_epochs", "trainer.max_steps"} & changed.keys()
        refused += [
            f"{changed[key]}, but the {schedule} schedule was built for {was.get(key)}"
            for key in sorted(lengths)
        ]
    if refused:
        raise ValueError(
            f"cannot resume: these settings differ from the checkpoint's ({'; '.join(refused)}): "
            "leave them as they were, or start a new run from its weights with --init_from FILE"
        )
    devices = [text for key, text in changed.items() if key.startswith(DEVICES)]
    if devices:
        devices[-1] += " (the data order stays; dropout and rounding can differ)"
    callbacks = [f"other {key}" for key in changed if key == CALLBACKS]
    return [*devices, *callbacks]
