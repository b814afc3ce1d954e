"""Which run is resumed, and whether it can be: exactly, or not at all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from project.run import LAST, next_version, read_record

FINISHED = ("max_epochs", "max_steps", "early_stopping")
# Settings that do not change what a step computes, or only how long a run goes on.
FREE = (
    *("name", "run", "ckpt_path", "init_from", "weights_only", "early_stopping", "checkpoint"),
    *("data.root", "data.num_workers", "data.memory_budget"),
    *("trainer.default_root_dir", "trainer.logger", "trainer.callbacks", "trainer.profiler"),
    *("trainer.max_", "trainer.min_", "trainer.enable_", "trainer.num_sanity_val_steps"),
)
DEVICES = ("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy")
AS_LONG_AS_THE_RUN = {"OneCycleLR": "total_steps", "CosineAnnealingLR": "T_max"}


def find_unfinished(folder: Path) -> Path | None:
    """The newest run in `runs/<name>` that was interrupted and can be resumed."""
    for version in reversed(range(next_version(folder))):
        run = folder / f"version_{version}"
        if (run / LAST).is_file() and read_record(run)["stopped_by"] not in FINISHED:
            return run
    return None


def check_same(saved: dict[str, Any], now: dict[str, Any]) -> str:
    """Compare the configuration of a checkpoint with the one that is to go on from it.

    Returns:
        A sentence on what will not be exact.

    Raises:
        ValueError: If the run could not go on as it was.
    """
    was, is_now = dict(_flat(saved)), dict(_flat(now))
    keys = [key for key in sorted(was | is_now) if was.get(key) != is_now.get(key)]
    changed = {key: f"{key}: {was.get(key)} → {is_now.get(key)}" for key in keys}
    refused = [text for key, text in changed.items() if not key.startswith(FREE + DEVICES)]
    schedule = str(was.get("model.lr_scheduler", "")).rsplit(".", 1)[-1]
    length = f"model.lr_scheduler.{AS_LONG_AS_THE_RUN.get(schedule)}"
    if "trainer.max_epochs" in changed and length in was and was[length] is None:
        refused.append(f"{changed['trainer.max_epochs']}, for which {schedule} was made")
    if refused:
        raise ValueError(
            f"the checkpoint's run can't go on exactly with other settings ({'; '.join(refused)}): "
            "leave them as they were, or start a new run from its weights with --init_from FILE"
        )
    devices = [text for key, text in changed.items() if key.startswith(DEVICES)]
    if not devices:
        return "The run goes on exactly."
    return f"{'; '.join(devices)}: the data order stays; dropout and rounding can differ"


def _flat(config: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their names on the command line, as `model.optimizer.lr`."""
    if not isinstance(config, dict):
        yield key, config
        return
    for name, value in config.items():
        if name in ("class_path", "init_args"):
            yield from _flat(value, key)
        else:
            yield from _flat(value, f"{key}.{name}".lstrip("."))
