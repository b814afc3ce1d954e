"""The messages to the user at the end of a run and after its test set is measured."""

import shlex
from dataclasses import replace
from pathlib import Path

from .folder import LAST, RECORD
from .names import PROGRAM
from .record import read_record, write_record


def kept(run: Path) -> str:
    """Return a sentence on what remains of a run after an error."""
    if (run / LAST).is_file():
        again = f"{PROGRAM} fit --run {shlex.quote(str(run))}"
        return f"Kept: {run}, up to its newest checkpoint. To resume it: {again}"
    if (run / RECORD).is_file():
        return f"Kept: {run}, which has no checkpoint to resume from yet."
    return "No run folder was left, since training had not begun."


def summary(run: Path, restored: bool = True) -> str:
    """Return the message to the user at the end of a run.

    Args:
        run: Path of the run folder.
        restored: Whether the weights of the best epoch were restored in the model.
    """
    record = read_record(run)
    # Metrics of single classes, such as val/recall/cat, can be many and are left to the record.
    overall = [k for k in record.metrics if k.startswith("val/") and k.count("/") == 1]
    measured = [f"{name} {record.metrics[name]:.4f}" for name in overall]
    found = f", with {', '.join(measured)}" if measured else ""
    name = shlex.quote(str(run))
    if record.best_epoch is None:
        return f"Stopped by {record.stopped_by}, without a best epoch.\nRun folder: {name}"
    return (
        f"Stopped by {record.stopped_by} after {record.epochs} epochs.\n"
        f"Best epoch: {record.best_epoch + 1} of {record.epochs}{found}."
        f"{' Its weights are restored.' if restored else ''}\n"
        f"Run folder: {name}, {record.seconds:.0f} s in all\n"
        f"Test set, once, at the end: {PROGRAM} test --run {name}"
    )


def record_test(run: Path, metrics: dict[str, float], examples: dict[str, int]) -> str:
    """Record that the test set was measured, with the metrics if they are a result of the run.

    Returns:
        A sentence on how often the test set was measured.
    """
    record = read_record(run)
    times = record.tested + 1
    metrics, examples = record.metrics | metrics, record.examples | examples
    write_record(replace(record, tested=times, metrics=metrics, examples=examples))
    if times == 1:
        return "The test set has been looked at once for this run."
    return (
        f"The test set has been looked at {times} times for this run: choices belong to "
        "validation, or it no longer says how good the run is on new images."
    )
