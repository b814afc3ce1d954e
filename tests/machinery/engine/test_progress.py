"""The output of a run in a terminal: one bar, whole names, and a table of what is trained."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import lightning as L
import pytest
import torch

from project.engine.progress import LayerTable, ProgressBar
from project.models import MLP

ROOT = Path(__file__).parents[3]
FIT = ["-m", "project", "fit", "--config", "synthetic", "--model", "MLP", "--preflight", "false"]
FIT += ["--data.train_size", "64", "--data.val_size", "32", "--data.image_size", "8"]
FIT += ["--data.batch_size", "16", "--trainer.max_epochs", "3", "--trainer.accelerator", "cpu"]


def in_a_terminal(columns: int, args: list[str]) -> list[str]:
    """Return the lines that are left on the screen of a real process."""
    pid, terminal = pty.fork()
    if not pid:
        os.environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TERM": "xterm"}
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        os.execv(sys.executable, [sys.executable, *args])
    output = b""
    while True:
        try:
            output += os.read(terminal, 65536)
        except OSError:  # the process has ended
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, output.decode()
    return screen(output.decode(), columns)


def screen(text: str, columns: int) -> list[str]:
    """Return what a terminal shows for a text with the few control sequences that rich uses."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|[^\x1b]", text):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part == "\x1b[1A":
            row -= 1
        elif not part.startswith("\x1b"):
            if column == columns:
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + 1 :]
            column += 1
    return lines


@pytest.mark.parametrize("columns", [80, 120])
def test_one_bar_is_left_with_all_names_whole(columns: int) -> None:
    lines = in_a_terminal(columns, FIT)
    text = "\n".join(lines)
    bars = [i for i, line in enumerate(lines) if line.startswith("Epoch ")]
    assert len(bars) == 1, text
    assert lines[bars[0]].startswith("Epoch 3 of 3 ")
    assert "4/4" in lines[bars[0]]
    assert re.match(r"train/loss_step: \S+  val/loss: \S+  val/acc: \S+", lines[bars[0] + 1]), text
    stopped = [i for i, line in enumerate(lines) if line.startswith("`Trainer.fit` stopped")]
    assert stopped, text
    assert stopped[0] < bars[0]
    assert "LossAndAccuracy" not in text
    assert "FLOPs" not in text


def test_the_range_test_counts_epochs_from_one_and_has_no_last_one() -> None:
    bar = ProgressBar()
    bar._trainer = L.Trainer(
        accelerator="cpu", max_epochs=-1, logger=False, enable_checkpointing=False
    )
    assert bar._get_train_description(7) == "Epoch 8"
    bar._trainer.fit_loop.max_epochs = 9
    assert bar._get_train_description(7) == "Epoch 8 of 9"


def test_the_table_is_of_what_has_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    model = MLP([8], in_channels=3, image_size=8)
    model.layers[1].requires_grad_(False)
    table = LayerTable(max_depth=2)
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    table.on_fit_start(trainer, model)
    lines = capsys.readouterr().out.splitlines()
    names = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert names == ["layers", "layers.1", "layers.2", "layers.5"]
    assert lines[-1].startswith("1.7 K parameters, 1.5 K of them frozen, ")
    model.example_input_array = torch.zeros(1, 3, 8, 8)
    table.on_fit_start(trainer, model)
    assert "FLOPs" in capsys.readouterr().out
