"""The run record: what is read from `run.json`, refused in it, and how a run stands by it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from project.runs.direction import recorded_mode
from project.runs.record import Record, read_record, status, write_record
from tests.machinery.support.runs import OLDEST


def make(**changed: Any) -> Record:
    return Record.from_json(Path("a/version_0"), OLDEST | changed)


def test_a_record_of_an_older_version_is_read_and_keeps_what_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(OLDEST | {"note": [1], "run": "x", "more": 2}))
    record = read_record(tmp_path)
    assert (record.run, record.seed, record.tested, record.modes) == (tmp_path, 3, 0, {})
    write_record(replace(record, tested=1))
    written = json.loads((tmp_path / "run.json").read_text())
    assert written.items() >= (OLDEST | {"note": [1], "run": "x", "more": 2, "tested": 1}).items()
    assert read_record(tmp_path) == replace(record, tested=1)


def test_values_that_are_not_set_are_the_defaults() -> None:
    assert make(classes=None, modes=None, ended=None) == make()


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"seed": "3"}, "seed is '3'"),
        ({"seed": True}, "seed is 'True'"),
        ({"name": None}, "name is 'None'"),
        ({"epochs": 1.5}, "epochs is '1.5'"),
        ({"seconds": float("inf")}, "seconds is inf"),
        ({"metrics": [1]}, r"metrics is '\[1\]'"),
        ({"metrics": {"val/acc": "high"}}, "val/acc is 'high'"),
        ({"examples": {"val": 1.5}}, "val is '1.5'"),
        ({"resumes": [None]}, "resumes is 'None'"),
        ({"ended": 1}, "ended is '1'"),
        ({"git_dirty": "yes"}, "git_dirty is 'yes'"),
    ],
)
def test_a_value_of_another_type_is_named(changed: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=f"^{fault}$"):
        make(**changed)


def test_what_is_not_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run folder, it has no run.json"):
        read_record(tmp_path)
    for text, fault in {
        "[]": "it holds no run record",
        '{"name": "a"}': "no version, seed",
    }.items():
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ValueError, match=f"run.json is damaged: {fault}"):
            read_record(tmp_path)


@pytest.mark.parametrize(
    ("stopped_by", "locked", "word"),
    [
        ("max_epochs", True, "finished"),
        ("early_stopping", False, "finished"),
        (None, True, "running"),
        (None, False, "crashed: killed"),
        ("max_time", False, "stopped by max_time"),
        ("max_time", True, "running"),
        ("SIGTERM", False, "stopped by SIGTERM"),
        ("ValueError", False, "crashed: ValueError"),
    ],
)
def test_how_a_run_stands(stopped_by: str | None, locked: bool, word: str) -> None:
    assert status(make(stopped_by=stopped_by), locked) == word
    assert status(make(stopped_by="OwnCallback", ended=True), locked) == "finished"


def test_the_direction_of_a_metric_holds_for_each_of_its_classes() -> None:
    records = [make(modes={"val/recall": "max", "val/f1": "max", "val/f1/odd": "min"})]
    assert recorded_mode("val/recall/cat", records) == "max"
    assert recorded_mode("test/recall/a/b", records) == "max"
    assert recorded_mode("val/f1/odd", records) == "min"
    assert recorded_mode("val/error/cat", records) is None
    disagreeing = [*records, make(modes={"test/recall": "min"})]
    assert recorded_mode("val/recall/cat", disagreeing) is None
