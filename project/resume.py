"""Which run is resumed, and whether it can be: exactly, or not at all."""

import math
from pathlib import Path
from typing import Any

from project.run import FINISHED, LAST, NEUTRAL, flatten, is_free, next_version, read_record

# Settings that can differ when a run is resumed: how long it goes on, and what changes no result.
FREE = (
    *NEUTRAL,
    "init_from",
    "early_stopping",
    "trainer.callbacks",
    "trainer.max_",
    "trainer.min_",
)
DEVICES = ("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy")
AS_LONG_AS_THE_RUN = {"OneCycleLR": "total_steps", "CosineAnnealingLR": "T_max"}


def find_unfinished(folder: Path, locked: bool) -> Path | None:
    """The newest run in `runs/<name>` that was interrupted and can be resumed.

    Args:
        folder: Of the runs of that name.
        locked: Whether this is a further process of a run, whose first one has locked it.
    """
    for version in reversed(range(next_version(folder))):
        run = folder / f"version_{version}"
        if not (run / LAST).is_file() or read_record(run)["stopped_by"] in FINISHED:
            continue
        if locked or is_free(run):
            return run
    return None


def check_resumable(checkpoint: dict[str, Any], now: dict[str, Any], finished: bool) -> str:
    """Whether a run can go on from a checkpoint with the configuration of now.

    Args:
        checkpoint: To go on from.
        now: Configuration, in plain types.
        finished: Whether the run came to its end.

    Returns:
        A sentence on what will not be exact.

    Raises:
        ValueError: If it holds weights only, the run is finished, or settings differ.
    """
    if "loops" not in checkpoint:
        raise ValueError("the checkpoint holds weights only: start a new run with --init_from FILE")
    done = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    max_epochs = now["trainer"]["max_epochs"]
    if max_epochs is not None and 0 <= max_epochs < done + finished:
        raise ValueError(
            f"the run is finished, after {done} epochs: raise --trainer.max_epochs {max_epochs}, "
            "or start a new run"
        )
    stopping = (now["early_stopping"] or {}).get("init_args", {})
    for name, state in checkpoint["callbacks"].items():
        exhausted = state.get("wait_count", 0) >= stopping.get("patience", math.inf)
        if finished and name.startswith("EarlyStopping") and exhausted:
            raise ValueError(
                f"the run is finished, stopped early after {done} epochs: raise "
                f"--early_stopping.patience {stopping['patience']}, or start a new run"
            )
    return check_same(checkpoint["config"], now) if "config" in checkpoint else ""


def check_same(saved: dict[str, Any], now: dict[str, Any]) -> str:
    """Compare the configuration of a checkpoint with the one that is to go on from it.

    Returns:
        A sentence on what will not be exact.

    Raises:
        ValueError: If the run could not go on as it was.
    """
    was, is_now = dict(flatten(saved)), dict(flatten(now))
    keys = [key for key in sorted(was | is_now) if was.get(key) != is_now.get(key)]
    # Of another class, not the arguments too.
    keys = [key for key in keys if not any(key.startswith(f"{other}.") for other in keys)]
    changed = {key: f"{key}: {was.get(key)} → {is_now.get(key)}" for key in keys}
    refused = [text for key, text in changed.items() if not key.startswith(FREE + DEVICES)]
    schedule = str(was.get("model.lr_scheduler", "")).rsplit(".", 1)[-1]
    length = f"model.lr_scheduler.{AS_LONG_AS_THE_RUN.get(schedule)}"
    if length in was and was[length] is None:
        lengths = {"trainer.max_epochs", "trainer.max_steps"} & changed.keys()
        refused += [f"{changed[key]}, for which {schedule} was made" for key in sorted(lengths)]
    if refused:
        raise ValueError(
            f"the checkpoint's run can't go on exactly with other settings ({'; '.join(refused)}): "
            "leave them as they were, or start a new run from its weights with --init_from FILE"
        )
    devices = [text for key, text in changed.items() if key.startswith(DEVICES)]
    if not devices:
        return "The run goes on exactly."
    return f"{'; '.join(devices)}: the data order stays; dropout and rounding can differ"
