"""Exact resume with real processes, real signals, and other folders, settings and ranks."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_resume import compare, curves

from project.commands.cli import main
from project.engine.checkpoint_io import load_checkpoint
from project.engine.saving import Interrupted
from project.models import Task

ROOT = Path(__file__).parents[3]
COMMON = ["--data.train_size", "104", "--data.val_size", "24", "--data.test_size", "0"]
COMMON += ["--data.image_size", "8", "--data.batch_size", "8", "--data.augment", '{"crop": 2}']
COMMON += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
COMMON += ["--trainer.enable_model_summary", "false", "--trainer.log_every_n_steps", "5"]
MLP = ["fit", "--config", "synthetic", "--model", "MLP", "--model.hidden_sizes", "[32, 16]"]
MLP += [*COMMON, "--early_stopping.patience", "50"]  # 13 steps an epoch, dropout
LONG = [*MLP, "--trainer.max_epochs", "40"]
SHORT = [*MLP, "--trainer.max_epochs", "3", "--preflight", "false"]
DDP = [*LONG, "--trainer.strategy", "ddp", "--trainer.devices", "2"]
NEVER_BETTER = ["--model.norm", "none", "--model.optimizer", "SGD", "--model.optimizer.lr", "0"]
NEVER_BETTER += ["--preflight", "false"]  # which would refuse it
RUN = Path("runs/synthetic/version_0")
LAST = RUN / "checkpoints/last.ckpt"


class Process:
    """`python -m project …`, in a process group of its own."""

    def __init__(self, args: list[str], folder: Path, code: str = "") -> None:
        # One thread, since the tests run side by side with others, and DDP sets one too.
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.log = folder / "log.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *(["-c", code] if code else ["-m", "project"]), *args],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def until(self, condition: Callable[[], bool]) -> "Process":
        """Wait for something that the process does."""
        deadline = time.monotonic() + 120
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.005)
        return self

    def send(self, signum: int) -> "Process":
        """Signal the whole group, as a terminal, a scheduler and a container do."""
        os.killpg(self.process.pid, signum)
        return self

    def is_gone(self) -> bool:
        """Return whether no process of the group is left."""
        try:
            self.send(0)
        except ProcessLookupError:
            return True
        return False

    def end(self, timeout: float = 120) -> tuple[int, str]:
        """Exit code and output."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            raise AssertionError(f"still running: {self.log.read_text()}") from None
        return code, self.log.read_text()


def saved_since(path: Path) -> Callable[[], bool]:
    """Return a function that tells whether a file has been replaced since this call."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    return lambda: path.exists() and path.stat().st_mtime_ns != before


def finish(args: list[str], folder: Path) -> str:
    code, output = Process(args, folder).end()
    assert code == 0, output
    return output


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the uninterrupted run of LONG."""
    folder = tmp_path_factory.mktemp("twin")
    finish(LONG, folder)
    return folder / RUN


@pytest.fixture(scope="module")
def ddp_twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the uninterrupted run of DDP."""
    folder = tmp_path_factory.mktemp("ddp_twin")
    finish(DDP, folder)
    return folder / RUN


# Signals


def stop(process: Process, signum: int, timeout: float) -> str:
    """Interrupt, and check what the user is told; the command to continue."""
    start = time.monotonic()
    code, output = process.send(signum).end(timeout)
    assert code == 128 + signum, output
    assert time.monotonic() - start < timeout
    assert "Traceback" not in output, output
    (command,) = re.findall(r"Saved after step \d+. To continue: (.*)", output)
    return str(command)


@pytest.mark.slow
def test_sigterm_and_ctrl_c(twin: Path, tmp_path: Path) -> None:
    again = [*LONG, "--ckpt_path", "last"]
    process = Process(again, tmp_path).until(saved_since(tmp_path / LAST))
    command = stop(process, signal.SIGTERM, 5)
    assert command == f"python -m project fit --run {RUN}"
    process = Process(again, tmp_path).until(saved_since(tmp_path / LAST))
    assert stop(process, signal.SIGINT, 5) == command
    assert json.loads((tmp_path / RUN / "run.json").read_text())["stopped_by"] == "SIGINT"
    finish(command.split()[3:], tmp_path)
    compare(twin, tmp_path / RUN)


def test_a_second_ctrl_c_leaves_at_once(tmp_path: Path) -> None:
    slow = ["fit", "--config", "synthetic", *COMMON, "--model.width", "64"]
    slow += ["--data.image_size", "32", "--data.train_size", "2000", "--data.batch_size", "1000"]
    slow += ["--trainer.num_sanity_val_steps", "0", "--preflight", "false"]
    process = Process(slow, tmp_path).until((tmp_path / RUN / "run.json").exists)
    time.sleep(1)  # in the first step, which takes many seconds
    process.send(signal.SIGINT).until(lambda: "Ctrl-C again" in process.log.read_text())
    # Ended by the signal itself, for which a shell says 130.
    assert process.send(signal.SIGINT).end(5)[0] in (130, -signal.SIGINT)
    assert not (tmp_path / LAST).exists()


@pytest.mark.slow
def test_kill_9(twin: Path, tmp_path: Path) -> None:
    """At random moments; the twin has other, or no, intervals between checkpoints."""
    again = [*LONG, "--ckpt_path", "last", "--checkpoint.every_n_steps", "4"]
    rng, steps = random.Random(0), []
    for _ in range(4):
        process = Process(again, tmp_path).until(saved_since(tmp_path / LAST))
        time.sleep(0.5 * rng.random())
        assert process.send(signal.SIGKILL).end()[0] == -signal.SIGKILL
        steps.append(load_checkpoint(tmp_path / LAST)["global_step"])
    assert steps == sorted(set(steps))
    assert any(step % 13 for step in steps), "no save within an epoch"
    finish(again, tmp_path)
    compare(twin, tmp_path / RUN)
    assert {path.name for path in (tmp_path / LAST.parent).iterdir()} == {"last.ckpt", "best.ckpt"}


# In this process, where only the moment of the signal matters


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Steps at which the process gets SIGTERM."""
    steps: list[int] = []

    def on_train_batch_start(self: Task, *_: Any) -> None:
        if self.global_step in steps:
            steps.remove(self.global_step)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Task, "on_train_batch_start", on_train_batch_start)
    yield steps
    assert not steps, "a signal was not sent"


@pytest.fixture
def interrupted(interrupt: list[int]) -> Path:
    """A run of SHORT, stopped in its third epoch."""
    interrupt.append(30)
    with pytest.raises(Interrupted):
        main(SHORT)
    return RUN


@pytest.fixture(scope="module")
def short_twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the uninterrupted run of SHORT."""
    root = tmp_path_factory.mktemp("short_twin")
    main([*SHORT, "--trainer.default_root_dir", str(root)])
    return root / "synthetic" / "version_0"


def test_two_runs_of_a_seed_are_identical(short_twin: Path) -> None:
    main(SHORT)
    compare(short_twin, RUN)


def test_deterministic_mode_gives_the_same_on_a_cpu(
    short_twin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # restored in the end
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    try:
        main([*SHORT, "--config", "presets/deterministic"])
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.backends.cudnn.benchmark
    compare(short_twin, RUN)


def test_a_finished_run_is_not_resumed(
    exit_code: Callable[[list[str]], int], caplog: pytest.LogCaptureFixture
) -> None:
    again = [*SHORT, "--ckpt_path", "last"]
    for version in range(2):
        assert exit_code(again) == 0
        assert "No run in runs/synthetic to resume: starting one." in caplog.text
        caplog.clear()
        record = json.loads(Path(f"runs/synthetic/version_{version}/run.json").read_text())
        assert (record["epochs"], record["stopped_by"]) == (3, "max_epochs")


def test_moved_and_resumed_from_another_folder(
    interrupted: Path, short_twin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("elsewhere").mkdir()
    shutil.move(interrupted, "elsewhere/moved")
    shutil.rmtree("runs")
    monkeypatch.chdir("elsewhere")
    main(["fit", "--run", "moved"])
    compare(short_twin, Path("moved"))
    assert not Path("runs").exists()
    assert not Path("../runs").exists()


@pytest.mark.parametrize("given", [".", "absolute", "version_0"])
def test_the_run_folder_by_other_names(
    given: str, interrupted: Path, short_twin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed = interrupted.resolve()
    monkeypatch.chdir(resumed if given == "." else resumed.parent)
    main(["fit", "--run", str(resumed) if given == "absolute" else given])
    compare(short_twin, resumed)


def test_the_best_score_is_not_forgotten(interrupt: list[int]) -> None:
    """When no epoch after the interruption is better."""
    interrupt.append(20)
    args = [*SHORT, *NEVER_BETTER]
    with pytest.raises(Interrupted):
        main(args)
    before = load_checkpoint(RUN / "checkpoints/best.ckpt")
    main([*args, "--ckpt_path", "last"])
    record = json.loads((RUN / "run.json").read_text())
    assert (record["epochs"], record["best_epoch"], before["epoch"]) == (3, 0, 0)
    assert record["metrics"] == before["metrics"]


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each tag, as TensorBoard shows them."""
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }


def test_tensorboard_has_each_step_once(short_twin: Path, interrupt: list[int]) -> None:
    """Also those that were written after the checkpoint that a killed run resumes from."""
    interrupt[:] = [8, 21, 30]
    again = [*SHORT, "--ckpt_path", "last"]
    with pytest.raises(Interrupted):
        main(again)
    early = load_checkpoint(LAST)
    with pytest.raises(Interrupted):
        main(again)
    torch.save(early, LAST)  # as if what came after it had been killed
    interrupt.append(21)
    for _ in range(2):
        with pytest.raises(Interrupted):
            main(again)
    main(again)
    found, expected = events(RUN), events(short_twin)
    speeds = [tags.pop("images_per_s") for tags in (found, expected)]  # no two runs have them alike
    assert [step for step, _ in speeds[0]] == [step for step, _ in speeds[1]]
    assert {"val/loss", "val/acc", "train/loss", "train/loss_step"} <= found.keys()
    assert found == expected
    for tag, points in found.items():
        steps = [step for step, _ in points]
        assert tag == "epoch" or steps == sorted(set(steps)), tag  # two rows of a step have one
    assert curves(RUN) == curves(short_twin)


def test_config_of_the_first_start_stays(interrupted: Path) -> None:
    first = (interrupted / "config.yaml").read_text()
    main(["fit", "--run", str(interrupted), "--trainer.max_epochs", "4"])
    assert (interrupted / "config.yaml").read_text() == first
    resumed = yaml.safe_load((interrupted / "config.resume_1.yaml").read_text())
    assert resumed["trainer"]["max_epochs"] == 4
    assert yaml.safe_load(first)["trainer"]["max_epochs"] == 3


DIFFERENCES: dict[str, tuple[list[str], str]] = {
    "width": (["--model.hidden_sizes", "[32, 8]"], r"model.hidden_sizes: \[32, 16\] → \[32, 8\]"),
    "lr": (["--model.optimizer.lr", "0.5"], "model.optimizer.lr: 0.001 → 0.5"),
    "optimizer": (
        ["--model.optimizer", "SGD"],
        r"model.optimizer: torch.optim.AdamW → torch.optim.SGD\)",
    ),
    "batch size": (["--data.batch_size", "4"], "data.batch_size: 8 → 4"),
    "seed": (["--seed_everything", "5"], "seed_everything: 0 → 5"),
    "precision": (["--trainer.precision", "bf16-mixed"], "trainer.precision: .* → bf16-mixed"),
    "data": (
        ["--data", "FashionMNISTDataModule"],
        r"data: project.data.SyntheticDataModule → project.data.FashionMNISTDataModule\)",
    ),
    "several": (
        ["--data.batch_size", "4", "--seed_everything", "5"],
        "data.batch_size: 8 → 4; seed_everything: 0 → 5",
    ),
}


def test_other_settings_are_refused(
    interrupted: Path, exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in interrupted.rglob("*") if path.is_file()}
    for options, sentence in DIFFERENCES.values():
        assert exit_code([*SHORT, *options, "--ckpt_path", "last"]) == 1
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert re.search(sentence, error), error
        assert "--init_from" in error
    after = {path: path.read_bytes() for path in interrupted.rglob("*") if path.is_file()}
    assert after == before


def test_other_data_of_the_same_class_are_refused(
    interrupted: Path,
    monkeypatch: pytest.MonkeyPatch,
    exit_code: Callable[[list[str]], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    from project.data import synthetic

    def other(size: int, image_size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = stripes(size, image_size, seed)
        images[0, 0, 0, 0] ^= 1
        return images, labels

    stripes = synthetic.stripes
    monkeypatch.setattr(synthetic, "stripes", other)
    assert exit_code(["fit", "--run", str(interrupted)]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "holds other training or validation examples than those of the checkpoint" in error


@pytest.mark.parametrize("schedule", ["ConstantLR", "StepLR"])
def test_a_finished_run_can_go_on(schedule: str) -> None:
    args = [*MLP, "--model.lr_scheduler", schedule]
    if schedule == "StepLR":
        args += ["--model.lr_scheduler.step_size", "1"]
    main([*args, "--trainer.max_epochs", "2", "--trainer.default_root_dir", "resumed"])
    resumed = Path("resumed/synthetic/version_0")
    main(["fit", "--run", str(resumed), "--trainer.max_epochs", "4"])
    main([*args, "--trainer.max_epochs", "4"])
    compare(RUN, resumed)


@pytest.mark.parametrize("schedule", ["OneCycleLR", "CosineAnnealingLR"])
def test_a_schedule_of_the_runs_length_can_not_be_longer(
    schedule: str, exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*MLP, "--model.lr_scheduler", schedule, "--trainer.max_epochs", "1"])
    assert exit_code(["fit", "--run", str(RUN), "--trainer.max_epochs", "2"]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"trainer.max_epochs: 1 → 2, but the {schedule} schedule was built for 1" in error


def test_more_patience_after_early_stopping() -> None:
    args = [*MLP, *NEVER_BETTER, "--trainer.max_epochs", "5", "--early_stopping.patience"]
    main([*args, "1"])
    record = json.loads((RUN / "run.json").read_text())
    assert (record["epochs"], record["stopped_by"]) == (2, "early_stopping")
    with pytest.raises(ValueError, match="the run is finished, stopped early after 2 epochs"):
        main(["fit", "--run", str(RUN)])
    main(["fit", "--run", str(RUN), "--early_stopping.patience", "3"])
    record = json.loads((RUN / "run.json").read_text())
    assert (record["epochs"], record["stopped_by"]) == (4, "early_stopping")
    main(["fit", "--run", str(RUN), "--early_stopping.patience", "9"])
    record = json.loads((RUN / "run.json").read_text())
    assert (record["epochs"], record["stopped_by"]) == (5, "max_epochs")


# Two processes


@pytest.mark.slow
def test_ddp_interrupted_and_killed(ddp_twin: Path, tmp_path: Path) -> None:
    again = [*DDP, "--ckpt_path", "last", "--checkpoint.every_n_minutes", "0.001"]
    process = Process(again, tmp_path).until(saved_since(tmp_path / LAST))
    stop(process, signal.SIGTERM, 20)
    time.sleep(2)
    assert process.is_gone()
    shutil.copytree(tmp_path / "runs", tmp_path / "one" / "runs")
    process = Process(again, tmp_path).until(saved_since(tmp_path / LAST))
    process.send(signal.SIGKILL).end()
    finish(again, tmp_path)
    compare(ddp_twin, tmp_path / RUN)

    output = finish([*LONG, "--ckpt_path", "last"], tmp_path / "one")  # one process goes on
    assert "trainer.devices: 2 → 1" in output
    assert "the data order stays" in output
    record = json.loads((tmp_path / "one" / RUN / "run.json").read_text())
    assert (record["epochs"], record["world_size"]) == (40, 1)


@pytest.mark.slow
def test_ddp_signal_to_the_first_process_alone(tmp_path: Path) -> None:
    """As `docker stop` does: the others hear of it from the first."""
    process = Process(DDP, tmp_path).until(saved_since(tmp_path / LAST))
    os.kill(process.process.pid, signal.SIGTERM)
    code, output = process.end(20)
    assert (code, "Traceback" in output) == (143, False), output
    time.sleep(2)
    assert process.is_gone()


def test_ddp_ranks_draw_other_dropout_masks(ddp_twin: Path) -> None:
    first, second = load_checkpoint(ddp_twin / "checkpoints/last.ckpt")["callbacks"]["RNGState"][
        "ranks"
    ]
    assert not torch.equal(first["torch"], second["torch"])


@pytest.mark.slow
def test_ddp_twice_is_identical_with_and_without_checks(ddp_twin: Path, tmp_path: Path) -> None:
    finish([*DDP, "--preflight", "false"], tmp_path)
    compare(ddp_twin, tmp_path / RUN)
