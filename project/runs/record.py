"""The run record `run.json`: the origin of a run, how it ended, and its metrics."""

import json
import math
import re
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from .files import write_whole
from .folder import RECORD
from .names import PROGRAM
from .plain import read_json

FINISHED = ("max_epochs", "max_steps", "early_stopping")  # reasons that leave nothing to resume
ENDED = (*FINISHED, "max_time")  # reasons after which a result counts


@dataclass(frozen=True, kw_only=True)
class Record:
    """Content of `run.json` in a run folder.

    Values with a default are missing from the records of older versions.

    Args:
        run: Folder that the record was read from; it is not in the file.
        seconds: Training time of all starts together, in seconds.
        epochs: Number of trained epochs; None until the run stops.
        best_epoch: Best epoch, counted from 0.
        stopped_by: Cause of the stop: one of the run's limits, a signal, or the class of an error.
        metrics: Values at the best epoch, by name, and those of the test set once it was measured.
        examples: Number of examples of each part of the data.
        modes: Better direction of metrics, `min` or `max`, by name.
        tested: Number of times that the test set was measured.
        test_sha256: Hash of the test examples, from the first measurement on.
        ended: Whether a cause that is not in `ENDED`, but not an error either, ended the run.
        resumes: Command lines that resumed the run.
        more: Values under names that this version does not know; they are written back.
    """

    run: Path
    name: str
    version: str
    seed: int
    command: str = ""
    git_sha: str | None = None
    git_dirty: bool | None = None
    config_sha256: str
    data_sha256: str | None
    classes: list[str] = field(default_factory=list)
    examples: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    precision: str = ""
    world_size: int = 1
    seconds: float
    epochs: int | None
    best_epoch: int | None
    stopped_by: str | None
    metrics: dict[str, float]
    modes: dict[str, str] = field(default_factory=dict)
    tested: int = 0
    test_sha256: str | None = None
    ended: bool = False
    resumes: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, run: Path, content: Any) -> "Record":
        """Return the record for the content of a file.

        Args:
            run: Run folder of the file.
            content: Value of the file, which may be anything.

        Raises:
            ValueError: If a value is missing or of another type.
        """
        if not isinstance(content, dict):
            raise ValueError("it holds no run record")
        if missing := [name for name in REQUIRED if name not in content]:
            raise ValueError(f"no {', '.join(missing)}")
        known = {
            name: content[name]
            for name in TYPES
            if name in REQUIRED or content.get(name) is not None
        }
        for name, value in known.items():
            _check(name, value, TYPES[name])
        if not math.isfinite(known["seconds"]):
            raise ValueError(f"seconds is {known['seconds']}")
        more = {name: value for name, value in content.items() if name not in TYPES}
        return cls(run=run, more=more, **known)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {name: getattr(self, name) for name in TYPES} | self.more

    @property
    def is_finished(self) -> bool:
        """Whether the run reached its end, so that there is nothing to resume."""
        return self.stopped_by in FINISHED or (self.has_ended and self.stopped_by != "max_time")

    @property
    def has_ended(self) -> bool:
        """Whether the result of the run counts: it finished, or used up its time."""
        return self.stopped_by in ENDED or self.ended


TYPES = {name: kind for name, kind in get_type_hints(Record).items() if name not in ("run", "more")}
REQUIRED = [
    f.name
    for f in fields(Record)
    if f.name in TYPES and f.default is MISSING and f.default_factory is MISSING
]


def _check(name: str, value: Any, kind: Any) -> None:
    """Raise ValueError if a value of a record, or one within it, has the wrong type."""
    outer, inner = get_origin(kind), get_args(kind)
    if outer is dict and isinstance(value, dict):
        for key, item in value.items():
            _check(key, item, inner[1])
    elif outer is list and isinstance(value, list):
        for item in value:
            _check(name, item, inner[0])
    elif outer in (dict, list) or not _is_a(value, kind):
        raise ValueError(f"{name} is {str(value)[:40]!r}")


def _is_a(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):  # Python counts it as an int
        return bool in (kind, *get_args(kind))
    return isinstance(value, int | float if kind is float else kind)


def load_record(run: Path) -> Record:
    """Return the record of a run.

    Raises:
        OSError: If the file can't be read.
        ValueError: If the record is damaged.
    """
    content = read_json(run / RECORD)
    try:
        return Record.from_json(run, content)
    except ValueError as error:
        raise ValueError(f"{run / RECORD} is damaged: {error}") from error


def read_record(run: Path) -> Record:
    """Return the record of a run that a user named.

    Raises:
        ValueError: If the folder is not a run folder, or the record is damaged.
    """
    try:
        return load_record(run)
    except FileNotFoundError as error:
        listed = f"`{PROGRAM} runs` lists those that there are"
        raise ValueError(f"{run} is not a run folder, it has no {RECORD}: {listed}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{run} is not a run folder: {error}") from error


def write_record(record: Record) -> None:
    """Write a record into its run folder."""
    write_whole(record.run / RECORD, json.dumps(record.to_json(), indent=2) + "\n")


def status(record: Record, locked: bool) -> str:
    """Return the status of a run: finished, running, stopped by …, or crashed: …

    Args:
        record: Record of the run.
        locked: Whether a process is training it.
    """
    if record.is_finished:
        return "finished"
    if locked:
        return "running"
    asked = re.match("SIG|KeyboardInterrupt|max_time", record.stopped_by or "")
    return f"{'stopped by ' if asked else 'crashed: '}{record.stopped_by or 'killed'}"
