"""One config, several seeds: who is started, resumed, waited for, stopped and reported."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from project.commands import jobs
from project.commands.device_shares import environment, visible_gpus
from project.commands.job import Job, Status
from project.commands.seed_noise import main, parse_seeds
from project.commands.table import take_apart
from project.commands.variants import parse_sweep, variant_names
from project.runs.errors import UsageError
from project.runs.lock import lock_run
from project.runs.record import read_record, write_record

ROOT = Path(__file__).parents[3]
STUB = ROOT / "tests/machinery/support/stub_fit.py"
RUNS = Path("runs/synthetic")
stubbed = pytest.mark.usefixtures("_stub")
posix = pytest.mark.skipif(os.name != "posix", reason="signals and shell scripts of POSIX")


@pytest.fixture
def _stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m project fit` without training."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 3\nexec "{sys.executable}" "{STUB}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), path]))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(jobs, "POLL_S", 0.02)


def records() -> list[dict[str, Any]]:
    paths = sorted(Path().glob("runs/*/version_*/run.json"))
    return [json.loads(path.read_text()) for path in paths]


def when(condition: Callable[[], bool], action: Callable[[], object]) -> threading.Thread:
    """Do something beside the test, as soon as something is so."""

    def wait() -> None:
        deadline = time.monotonic() + 60
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        action()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def trained() -> int:
    return len([record for record in records() if record["stopped_by"] is None])


# Which runs


@posix
@stubbed
def test_each_seed_has_its_run_and_none_is_trained_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "2"]) == 0
    before = records()
    assert sorted(record["seed"] for record in before) == [0, 1]
    said = capsys.readouterr().out
    assert "synthetic, seed 1: finished: best epoch 1, val/loss 0.1900, val/acc 0.8100, 1 s" in said
    assert "# synthetic: val/acc 80.50 ± 0.71 % (2 seeds)" in said
    assert main(["--seeds=0,1,5"]) == 0
    assert [r for r in records() if r["seed"] < 2] == before
    assert "seed 1: reused: best epoch 1" in capsys.readouterr().out
    report = json.loads((RUNS / "seed_noise.json").read_text())
    assert report["seeds"] == [0, 1, 5]
    assert not list(RUNS.glob(".seed*"))


@posix
@stubbed
def test_runs_of_other_configs_are_neither_taken_nor_reported() -> None:
    assert main(["--seeds", "2", "--lr", "0.001"]) == 0
    assert main(["--seeds", "2", "--lr", "0.002"]) == 0
    assert len(records()) == 4
    report = json.loads((RUNS / "seed_noise.json").read_text())
    assert report["values"] == pytest.approx([0.82, 0.83])
    assert [line.split(": ")[1] for line in report["left_out"]] == ["another config"] * 2


@posix
@stubbed
def test_failed_seed_is_named_loses_no_other_and_is_tried_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "3", "--fail", "1"]) == 1
    out, err = capsys.readouterr()
    log = RUNS / "seed_1.log"
    expected = f"synthetic, seed 1: failed: error: no luck today ({log})"
    assert expected in out
    assert f"error: {expected}" in err
    assert "(2 seeds)" in out
    assert "version_1 (seed 1): not finished" in out
    assert main(["--seeds", "3"]) == 0
    assert "(3 seeds)" in capsys.readouterr().out
    assert len(records()) == 4


@posix
@stubbed
def test_killed_training_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    thread = when(lambda: trained() == 1, lambda: os.kill(records()[0]["pid"], signal.SIGKILL))
    assert main(["--seeds", "1", "--seconds", "30"]) == 1
    thread.join()
    expected = f"error: synthetic, seed 0: failed: killed by SIGKILL ({RUNS / 'seed_0.log'})"
    assert expected in capsys.readouterr().err


@posix
@stubbed
def test_training_that_leaves_no_run_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--fast_dev_run"]) == 1
    assert "seed 0: failed: no finished run of this config" in capsys.readouterr().err


@posix
@stubbed
def test_what_fit_refuses_is_said_once_and_nothing_is_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UsageError, match=r"^unknown option --typo$"):
        main(["--seeds", "3", "--typo"])
    assert capsys.readouterr() == ("", "")
    assert not Path("runs").exists()


@posix
@stubbed
def test_jobs_run_side_by_side_and_share_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert main(["--seeds", "4", "--jobs", "3", "--seconds", "0.5"]) == 0
    spans = sorted((record["began"], record["ended_at"]) for record in records())
    together = [sum(a <= begin < b for a, b in spans) for begin, _ in spans]
    assert max(together) == 3
    assert {record["threads"] for record in records()} == {"2"}


@posix
@stubbed
def test_a_run_of_another_process_is_waited_for() -> None:
    assert main(["--seeds", "2"]) == 0
    theirs = RUNS / "version_0"
    ended = read_record(theirs)
    write_record(replace(ended, stopped_by=None))
    lock = lock_run(theirs)
    assert lock is not None
    begin = time.monotonic()
    timer = threading.Timer(0.5, write_record, [ended])
    timer.start()
    assert main(["--seeds", "2"]) == 0
    assert time.monotonic() - begin > 0.4
    timer.join()
    lock.release()
    assert len(records()) == 2


@posix
@stubbed
def test_a_seed_of_another_runner_is_left_to_it() -> None:
    RUNS.mkdir(parents=True)
    lock = FileLock(RUNS / ".seed_0.lock", thread_local=False)
    lock.acquire()
    thread = when(lambda: len(records()) == 1, lock.release)
    assert main(["--seeds", "2"]) == 0
    thread.join()
    assert [record["seed"] for record in records()] == [1, 0], "the other seed went first"


# Signals


@posix
@stubbed
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_the_children_which_are_resumed_by_the_same_command(
    signum: int, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--seeds", "3", "--jobs", "2", "--seconds", "30"]
    handler = signal.getsignal(signum)
    thread = when(lambda: trained() == 2, lambda: os.kill(os.getpid(), signum))
    assert main(args) == 128 + signum
    thread.join()
    assert signal.getsignal(signum) == handler
    stopped = records()
    assert [r["stopped_by"] for r in stopped] == [signal.Signals(signum).name] * 2
    for record in stopped:
        with pytest.raises(ProcessLookupError):
            os.kill(record["pid"], 0)
    said = capsys.readouterr().out
    assert said.count("interrupted") == 2, "the third never started"
    assert "To continue: python -m project seed_noise --seeds 3 --jobs 2 --seconds 30\n" in said
    assert main(["--seeds", "2"]) == 0
    assert [record["resumed"] for record in records()] == [True, True]
    assert sorted(record["seed"] for record in records()) == [0, 1]


@posix
@stubbed
def test_no_child_outlives_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(job: Job, status: Status) -> None:
        if job.seed == 1:
            while not trained():
                time.sleep(0.01)
            raise OSError("the terminal is gone")

    monkeypatch.setattr("project.commands.seed_noise.show", fail)
    with pytest.raises(OSError, match="gone"):
        main(["--seeds", "3", "--jobs", "2", "--seconds", "30"])
    (record,) = records()
    assert record["stopped_by"] == "SIGTERM"
    with pytest.raises(ProcessLookupError):
        os.kill(record["pid"], 0)


# Sweeps


@posix
@stubbed
def test_sweep_trains_each_value_and_sorts_them(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--sweep", "lr=0.001,0.004", "--seeds", "2", "--name", "mlp"]
    assert main(args) == 0
    names = {"mlp-lr=0.001", "mlp-lr=0.004"}
    assert {record["name"] for record in records()} == names
    assert {path.name for path in Path("runs").glob("mlp*")} == names | {
        f"mlp-lr.{kind}" for kind in ("md", "json", "png")
    }
    said = capsys.readouterr().out
    assert said.index("| lr=0.004") < said.index("| lr=0.001")
    report = json.loads(Path("runs/mlp-lr=0.001/seed_noise.json").read_text())
    assert report["variants"] == 2


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=1e-3,2e-3", ["1e-3", "2e-3"]),
        ("--a.b=[32,16],[64],null", ["[32,16]", "[64]", "null"]),
        ("a.b={x: 1, y: 2},torch.optim.SGD", ["{x: 1, y: 2}", "torch.optim.SGD"]),
    ],
)
def test_values_of_a_sweep(text: str, values: list[str]) -> None:
    assert parse_sweep(text) == [("a.b", value) for value in values]


@pytest.mark.parametrize("text", ["a", "a=1", "=1,2", "a=1,,2", "a=1,"])
def test_what_is_no_sweep_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="takes an option and two values or more"):
        parse_sweep(text)


def test_names_of_variants_are_fit_for_folders_and_never_shared() -> None:
    names = variant_names(["model.hidden_sizes=[32, 16],[64]", "model.optimizer=SGD,a/b.C"])
    assert list(names) == [
        f"hidden_sizes={sizes}-optimizer={optimizer}"
        for sizes in ("_32,_16_", "_64_")
        for optimizer in ("SGD", "a_b.C")
    ]
    assert names["hidden_sizes=_64_-optimizer=SGD"] == [
        "--model.hidden_sizes=[64]",
        "--model.optimizer=SGD",
    ]
    with pytest.raises(UsageError, match="two variants of the sweep would have the folder"):
        variant_names(["a=[1],{1}"])


# Options


def test_seeds_are_a_number_or_a_list() -> None:
    assert parse_seeds("3") == [0, 1, 2]
    assert parse_seeds("3,7,3") == [3, 7]
    assert parse_seeds("3,") == [3]
    for wrong in ("", "a", "-1", "1.5", ","):
        with pytest.raises(UsageError, match="--seeds takes a number"):
            parse_seeds(wrong)


@pytest.mark.parametrize("args", [["--seed_everything", "3"], ["--run=x"], ["--jobs", "0"]])
def test_options_that_it_sets_by_itself_or_that_make_no_sense(args: list[str]) -> None:
    with pytest.raises(UsageError, match=f"leave out {args[0].split('=')[0]}|must be 1 or more"):
        main(args)


def test_name_is_that_of_the_first_config() -> None:
    presets = ["--config", "configs/cifar.yaml", "--config", "presets/bf16"]
    assert take_apart(presets).name == "cifar"
    assert take_apart(["--x", "1", "-c=mine/a.b.yaml"]).name == "a.b"
    assert take_apart(["--x", "1"]).name == "synthetic"
    assert take_apart(["--model", "MLP", "--data=SyntheticDataModule"]).name == "run"


def test_share_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environment(0, 1, [], 1) == {}
    assert environment(1, 3, ["0"], 1) == {"OMP_NUM_THREADS": "2"}
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    four = ["0", "1", "2", "GPU-x"]
    seen = [environment(slot, 3, four, 1)["CUDA_VISIBLE_DEVICES"] for slot in range(6)]
    assert seen == ["0", "1", "2", "GPU-x", "0", "1"]
    pairs = [environment(slot, 3, four, 2)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert pairs == ["0,1", "2,GPU-x", "0,1"]
    assert environment(0, 3, four, 4) == environment(0, 3, four, None) == {}


def test_gpus_that_are_hidden_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert visible_gpus() == ["3", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []


# With real trainings

TINY = ["--config", "synthetic", "--data.train_size", "64", "--data.val_size", "32"]
TINY += ["--data.image_size", "8", "--data.batch_size", "16", "--model.width", "4"]
TINY += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]


def seed_noise(*args: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "project", "seed_noise", *TINY, *args],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@posix
@pytest.mark.slow
def test_real_runs_are_stopped_resumed_and_reported() -> None:
    args = ["--seeds", "2", "--trainer.max_epochs", "60"]
    process = seed_noise(*args)
    saved = RUNS / "version_0/checkpoints/last.ckpt"
    when(saved.exists, process.terminate).join()
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (143, ""), out
    assert [record["stopped_by"] for record in records()] == ["SIGTERM"]
    process = seed_noise(*args)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, ""), out
    found = records()
    assert [(r["seed"], r["stopped_by"], r["epochs"]) for r in found] == [
        (seed, "max_epochs", 60) for seed in (0, 1)
    ]
    assert found[0]["config_sha256"] == found[1]["config_sha256"]
    assert "fit --run" in found[0]["resumes"][-1]
    report = json.loads((RUNS / "seed_noise.json").read_text())
    assert report["values"] == [record["metrics"]["val/acc"] for record in found]
    assert report["left_out"] == []
