"""The table of all runs: with records by hand, and with a run that is really killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from project.commands.cli import main as cli
from project.commands.runs import main
from project.runs.errors import UsageError
from project.runs.lock import is_free, lock_run
from project.runs.overview import look
from tests.machinery.support.runs import write_runs

ROOT = Path(__file__).parents[3]
FIT = ["fit", "--config", "synthetic", "--data.train_size", "48", "--data.val_size", "20"]
FIT += ["--data.image_size", "8", "--data.batch_size", "16", "--model.width", "4"]
FIT += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
FIT += ["--trainer.enable_model_summary", "false", "--preflight", "false"]


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(list(args)) == 0
    return capsys.readouterr().out


def records(capsys: pytest.CaptureFixture[str], *args: str) -> list[dict[str, Any]]:
    return list(json.loads(printed(capsys, *args, "--json")))


def statuses(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, str]:
    return {row["run"]: row["status"] for row in records(capsys, *args)}


def make_resumable(run: str) -> None:
    """Give a run something that looks like a whole checkpoint."""
    (Path(run) / "checkpoints").mkdir()
    with zipfile.ZipFile(f"{run}/checkpoints/last.ckpt", "w") as file:
        file.writestr("data.pkl", "x" * 1000)


def test_a_run_is_followed_from_its_start_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run = Path("runs/synthetic/version_0")
    args = [*FIT, "--model.lr_scheduler", "null", "--trainer.max_epochs", "100000"]
    process = subprocess.Popen([sys.executable, "-m", "project", *args], env=environment)
    seen = [""]
    try:
        while not (run / "checkpoints/last.ckpt").is_file() or not look(run).metrics:
            assert process.poll() is None
            if run.is_dir() and (status := look(run).status) != seen[-1]:
                seen.append(status)
            time.sleep(0.01)
        now = look(run)
        assert not now.resumable
        assert now.record is not None
        assert now.record.epochs
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert [word for word in seen[1:] if "No such file" not in word] == ["starting", "running"]
    (row,) = records(capsys)
    assert (row["status"], row["resumable"], row["monitor"]) == (
        "crashed: killed",
        True,
        "val/loss",
    )
    rows = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
    losses = [line[rows[0].index("val/loss")] for line in rows[1:]]
    assert row["metrics"]["val/loss"] == min(float(loss) for loss in losses if loss)

    command = printed(capsys).splitlines()[-1].split("python -m project ")[1].split()
    cli([*command, "--trainer.max_epochs", str(row["epochs"] + 1)])
    capsys.readouterr()
    (row,) = records(capsys)
    assert (row["status"], row["resumable"]) == ("finished", False)
    assert row["metrics"] == json.loads((run / "run.json").read_text())["metrics"]
    assert "To continue" not in printed(capsys)


def test_how_runs_have_ended(capsys: pytest.CaptureFixture[str]) -> None:
    ends = ["max_epochs", "early_stopping", "SIGTERM", "max_time", "OutOfMemoryError", None]
    for seed, end in enumerate(ends):
        write_runs(Path("runs/a"), [0.5], first_seed=seed, stopped_by=end)
        make_resumable(f"runs/a/version_{seed}")
    Path("runs/a/version_4/checkpoints/last.ckpt").write_bytes(b"PK cut off")
    found = {row["version"]: (row["status"], row["resumable"]) for row in records(capsys)}
    assert found == {
        "version_0": ("finished", False),
        "version_1": ("finished", False),
        "version_2": ("stopped by SIGTERM", True),
        "version_3": ("stopped by max_time", True),
        "version_4": ("crashed: OutOfMemoryError", False),
        "version_5": ("crashed: killed", True),
    }


def test_what_is_no_whole_run_is_listed_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(Path("runs/a"), [0.5, 0.6])
    texts = {"3": "", "4": "[]", "5": '{"seed": 1, "epochs": 2}', "6": b"\xff\xfe"}
    whole = json.loads(Path("runs/a/version_0/run.json").read_text())
    texts |= {"7": json.dumps(whole | {"metrics": [1]}), "8": json.dumps(whole)}
    texts |= {"9": json.dumps(whole | {"seconds": "long"})}
    for name, text in texts.items():
        run = Path(f"runs/a/version_{name}")
        run.mkdir()
        (run / "run.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        if name != "8":
            (run / "config.yaml").write_text("monitor: val/loss\n")
    Path("runs/lightning_logs/version_0").mkdir(parents=True)
    Path("runs/lightning_logs/version_0/hparams.yaml").write_text("{}")
    Path("runs/a/version_10/run.json").mkdir(parents=True)  # can't be read, even by root
    Path("runs/notes").mkdir()
    before = sorted(Path().rglob("*"))
    found = statuses(capsys)
    broken = {run for run, status in found.items() if status.startswith("broken: ")}
    assert broken == {f"runs/a/version_{name}" for name in [*texts, 10]} | {
        "runs/lightning_logs/version_0"
    }
    assert found["runs/a/version_5"] == (
        "broken: run.json is damaged: no name, version, config_sha256, data_sha256, seconds, "
        "best_epoch, stopped_by, metrics"
    )
    assert found["runs/a/version_8"] == "broken: config.yaml: No such file or directory"
    assert found["runs/lightning_logs/version_0"] == "broken: run.json: No such file or directory"
    lines = printed(capsys).splitlines()
    assert len({len(line) for line in lines}) == 1, "one table"
    assert len(lines) == 2 + len(found)
    printed(capsys, "--sort", "val/acc")
    assert sorted(Path().rglob("*")) == before, "nothing is left behind"


def test_a_look_does_not_take_a_run_from_who_starts_it() -> None:
    write_runs(Path("a"), [0.5], stopped_by=None)
    run = Path("a/version_0")
    assert look(run).status == "crashed: killed"
    assert not (run / ".lock").exists()
    mine = lock_run(run)
    assert mine is not None
    assert not is_free(run)
    assert look(run).status == "running"
    with pytest.raises(TimeoutError):
        FileLock(run / ".lock").acquire(timeout=0)  # still held
    mine.release()
    fcntl = pytest.importorskip("fcntl")  # Windows has none
    looking = (run / ".lock").open()
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert is_free(run), "two can look"
    threading.Timer(0.05, looking.close).start()
    mine = lock_run(run)
    assert mine is not None, "and who starts the run waits for them"
    mine.release()


def test_the_best_or_newest_is_first_and_what_has_no_value_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_runs(Path("runs/b"), [0.7, 0.9, 0.8], metrics={"test/acc": 0.5})
    write_runs(Path("runs/a"), [0.6], first_seed=10)
    write_runs(Path("runs/a"), [float("nan")], first_seed=2)
    os.utime("runs/b/version_1/config.yaml", (2e9, 2e9))
    Path("runs/a/version_0").mkdir()

    def order(key: str) -> list[str]:
        return [row["run"].removeprefix("runs/") for row in records(capsys, "--sort", key)]

    assert order("val/acc")[:4] == ["b/version_1", "b/version_2", "b/version_0", "a/version_10"]
    assert set(order("val/acc")[4:]) == {"a/version_0", "a/version_2"}
    assert order("val/loss")[:2] == ["b/version_1", "b/version_2"]
    assert order("when")[0] == "b/version_1"
    assert [row["run"] for row in records(capsys, "runs/a")] == [
        *("runs/a/version_0", "runs/a/version_2", "runs/a/version_10"),
    ]
    header, _, *rows = printed(capsys, "--sort", "test/acc", "runs/b").splitlines()
    columns = "run val/loss test/acc epochs when status"
    assert header.replace("|", " ").split() == columns.split()
    assert "| 0.3000   | 50.00 %  | 3      | 2" in rows[0]
    header = printed(capsys, "--all", "runs/b").splitlines()[0]
    columns = "run val/loss val/acc test/acc seed epochs seconds when status"
    assert header.replace("|", " ").split() == columns.split()
    with pytest.raises(UsageError, match=r"--sort val/ac: no run has it; there are .*val/acc"):
        main(["--sort", "val/ac"])


@pytest.mark.parametrize(("mode", "first"), [("min", 0), ("max", 2), (None, 0)])
def test_a_metric_is_sorted_by_the_recorded_direction_or_by_none(
    mode: str | None, first: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):
        modes = {"modes": {"val/wer": mode}} if mode else {}
        write_runs(
            Path("runs/a"), [0.5], first_seed=seed, metrics={"val/wer": 0.1 + seed / 10}, **modes
        )
    assert records(capsys, "--sort", "val/wer")[0]["version"] == f"version_{first}"
    unknown = "No run says whether a lower or a higher val/wer is better" in printed(
        capsys, "--sort", "val/wer"
    )
    assert unknown == (mode is None)


def test_folders_that_hold_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="there is no folder runs: "):
        main([])
    Path("runs").mkdir()
    assert printed(capsys) == "No runs in runs.\n"
    assert records(capsys, "--sort", "val/acc") == []


def test_a_thousand_runs_take_less_than_a_second_and_a_reader_can_leave() -> None:
    write_runs(Path("runs/a"), [0.5] * 1000)
    command = [sys.executable, "-m", "project", "runs"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    begin = time.monotonic()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline().startswith(b"| run ")
        assert time.monotonic() - begin < 2  # 0.3 s; others may keep the cores busy
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("sort", [[], ["--sort", "val/acc"], ["--sort", "seed"]])
def test_the_table_fits_a_terminal(
    width: int, sort: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {f"val/metric_number_{i}": i / 10 for i in range(12)} | {"test/loss": 0.1}
    write_runs(Path("runs/a"), [0.5, 0.6], metrics=many)
    write_runs(Path("runs") / "_".join(["long"] * 20), [0.7], stopped_by="OutOfMemoryError")
    write_runs(Path("runs/b"), [0.8], metrics=many)
    config = Path("runs/b/version_0/config.yaml")
    config.write_text(config.read_text().replace("val/loss", "val/metric_number_11"))
    Path("runs/c/version_0").mkdir(parents=True)
    (Path("runs/c/version_0") / "run.json").write_text("{}")
    monkeypatch.setenv("COLUMNS", str(width))
    header, _, *rows = printed(capsys, *sort).splitlines()
    assert {len(line) for line in [header, *rows]} <= set(range(width + 1))
    names = header.replace("|", " ").split()
    wanted = {"run", "status", sort[1] if "val/acc" in sort else "val/loss"}
    assert wanted <= set(names)
    assert names[1] in ("val/loss", "val/acc")
    assert any("runs/a/version_0 " in row for row in rows), "short names are whole"
    assert any("…" in row and "version_0" in row for row in rows)
    assert max(map(len, printed(capsys, "--all").splitlines())) > 200
