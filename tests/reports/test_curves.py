"""The curves of a run show what its files say."""

import csv
import json
from pathlib import Path

import pytest

from project.cli import main
from project.reports.curves import draw_curves, read_metrics

ARGS = ["fit", "--config", "synthetic", "--data.train_size", "64", "--data.val_size", "16"]
ARGS += ["--data.image_size", "8", "--model.width", "4", "--trainer.accelerator", "cpu"]
ARGS += ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    main([*ARGS, "--data.batch_size", "16", "--trainer.default_root_dir", str(root)])
    return root / "synthetic" / "version_0"


def test_a_finished_run_has_its_picture(run: Path) -> None:
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_lines_are_the_rows_of_the_metrics_file(run: Path) -> None:
    rows = list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))
    losses, accuracies, rates = draw_curves(run).axes
    for axes, metric in ((losses, "loss"), (accuracies, "acc")):
        for line, stage in zip(axes.lines, ("train", "val"), strict=False):
            column = f"{stage}/{metric}"
            assert list(line.get_ydata()) == [float(row[column]) for row in rows if row[column]]
            assert list(line.get_xdata()) == [1, 2, 3, 4, 5]
    best = json.loads((run / "run.json").read_text())["best_epoch"]
    assert list(losses.lines[2].get_xdata()) == [best + 1, best + 1]
    assert list(rates.lines[-1].get_ydata()) == [v for _, v in read_metrics(run)["lr"]]


def test_training_and_validation_differ_without_colours(run: Path) -> None:
    training, validation, _ = draw_curves(run).axes[0].lines
    assert training.get_linestyle() != validation.get_linestyle()
    assert training.get_marker() != validation.get_marker()
