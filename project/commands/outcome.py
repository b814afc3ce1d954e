"""Decides whether the outcome of `test` or `predict` is the run's own result, and keeps it.

A result is the run's own if it was measured with the best checkpoint on the whole test set of the
data that the run was trained on. The data may be in another folder by now.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L

from ..engine.datamodule import StreamDataModule
from ..engine.resume import FREE
from ..runs.folder import BEST, read_config
from ..runs.record import read_record, write_record
from ..runs.settings import flatten
from ..runs.summary import record_test


def not_of_the_run(
    run: Path, checkpoint: Path, config: dict[str, Any], limit: int | float | None, data: Any
) -> str:
    """Return why a result is not the run's own, or an empty string if it is.

    Args:
        run: Run folder.
        checkpoint: Path of the checkpoint that was measured.
        config: Configuration of this command, in plain types.
        limit: Number of the batches that were measured, or their share if it is a float.
        data: Data module, after `setup`.
    """
    whole = limit is None or (isinstance(limit, float) and limit == 1)  # the int 1 is one batch
    if not whole or config["trainer"]["fast_dev_run"] or checkpoint.name != BEST.name:
        return "it is not of the best checkpoint on the whole test set"
    then, now = (dict(flatten(c["data"], "data")) for c in (read_config(run), config))
    changed = [k for k in sorted(then | now) if then.get(k) != now.get(k)]
    if settings := [
        f"{k}: {then.get(k)} → {now.get(k)}" for k in changed if not k.startswith(FREE)
    ]:
        return f"the data are set up differently ({'; '.join(settings)})"
    record = read_record(run)
    if not isinstance(data, StreamDataModule):
        return "--data.root differs from the run's" if "data.root" in changed else ""
    if record.test_sha256 is not None:
        return "" if data.hash_of("test") == record.test_sha256 else "the test examples differ"
    same = data.sha256 == record.data_sha256
    return "" if same else "the training or validation examples differ"


def keep_test(run: Path, other: str, metrics: dict[str, float], data: L.LightningDataModule) -> str:
    """Write the metrics of a test into the run record if they are the run's own.

    Args:
        run: Run folder.
        other: Reason why they are not the run's own, from `not_of_the_run`.
        metrics: Value of each metric, by name.
        data: Data module that was tested on.

    Returns:
        A sentence that says what was done.
    """
    if other:
        return f"Not the run's own result, since {other}: {run}/run.json has no result of this."
    sizes = {}
    if isinstance(data, StreamDataModule):
        remember(run, data)
        sizes = {"test": len(data.sets["test"][2])}
    return record_test(run, metrics, sizes)


def remember(run: Path, data: Any) -> None:
    """Write the hash of the test examples into the run record, to recognise them later."""
    record = read_record(run)
    if isinstance(data, StreamDataModule) and record.test_sha256 is None:
        write_record(replace(record, test_sha256=data.hash_of("test")))
