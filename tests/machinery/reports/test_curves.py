"""The curves of a run show what its files say."""

import csv
import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from project.commands.cli import main
from project.reports.curves import draw_curves, save_figure
from project.runs.sets import read_metrics

pytestmark = pytest.mark.pictures

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
        training, validation, mark = axes.lines[:3]
        for line, stage in ((training, "train"), (validation, "val")):
            column = f"{stage}/{metric}"
            assert list(line.get_ydata()) == [float(row[column]) for row in rows if row[column]]
            assert list(line.get_xdata()) == [1, 2, 3, 4, 5]
        best = json.loads((run / "run.json").read_text())["best_epoch"]
        assert list(mark.get_xdata()) == [best + 1, best + 1]
        assert mark.get_label() == f"best epoch {best + 1}"
    assert list(rates.lines[-1].get_ydata()) == [v for _, v in read_metrics(run)["lr"]]


def test_training_and_validation_differ_without_colours(run: Path) -> None:
    training, validation = draw_curves(run).axes[0].lines[:2]
    assert training.get_linestyle() != validation.get_linestyle()
    assert training.get_marker() != validation.get_marker()


RECORD: dict[str, Any] = {
    "name": "a$\\frac$",
    "version": "version_0",
    "seed": 3,
    "best_epoch": None,
}
RECORD |= {"config_sha256": "c", "data_sha256": "d", "seconds": 1.0, "epochs": 0}
RECORD |= {"stopped_by": None, "metrics": {}}
LENGTH = 10  # optimiser steps of an epoch


def write(
    folder: Path,
    losses: list[float],
    steps: int = 0,
    first_epoch: int = 0,
    lr: bool = True,
    **record: Any,
) -> Path:
    """A running run: the validation losses of its epochs, then steps of an unfinished one."""
    rows: list[dict[str, float]] = []
    for epoch, loss in enumerate(losses, start=first_epoch):
        place = {"step": (epoch + 1) * LENGTH - 1, "epoch": epoch}
        rows += [{**place, "val/loss": loss, "val/acc": 0.5}]
        rows += [{**place, "train/loss": loss / 2, "train/acc": 0.6}]
    start = (first_epoch + len(losses)) * LENGTH
    rows += [{"step": start + k, "epoch": 0, "train/loss_step": 2.0} for k in range(steps)]
    rows += [{"step": 0, "epoch": first_epoch, "lr": 0.1}] if lr else []
    names = {name: None for row in rows for name in row}
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(names))
        writer.writeheader()
        writer.writerows(rows)
    (folder / "run.json").write_text(json.dumps(RECORD | record))
    return folder


def labels(axes: Axes) -> dict[str, list[float]]:
    """x of the lines by their label."""
    return {str(line.get_label()): list(line.get_xdata()) for line in axes.lines}


def test_before_the_first_epoch_is_finished_there_are_steps(tmp_path: Path) -> None:
    figure = draw_curves(write(tmp_path, [], steps=4))
    assert labels(figure.axes[0]) == {"training, single batches": [1, 2, 3, 4]}
    assert figure.axes[0].get_xlabel() == "optimiser steps"
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "learning rate"]


def test_one_epoch_is_a_marked_point(tmp_path: Path) -> None:
    figure = draw_curves(write(tmp_path, [1.0], steps=5))
    lines = labels(figure.axes[0])
    assert lines["training"] == lines["validation"] == [1]
    assert lines["training, single batches"] == [1.1, 1.2, 1.3, 1.4, 1.5]
    assert {line.get_marker() for line in figure.axes[0].lines[:2]} == {"o", "s"}
    assert figure.axes[0].get_xlabel() == "epochs trained"


@pytest.mark.parametrize(
    ("mode", "losses", "best"),
    [("min", [3.0, 1.0, 2.0], 2), ("max", [3.0, 1.0, 2.0], 1), ("min", [math.nan, 3.0, 2.0], 3)],
)
def test_best_so_far_is_marked_while_the_run_goes_on(
    mode: Any, losses: list[float], best: int, tmp_path: Path
) -> None:
    run = write(tmp_path, losses)
    (run / "run.json").write_text(json.dumps(RECORD | {"modes": {"val/loss": mode}}))
    figure = draw_curves(run)
    for axes in figure.axes[:2]:
        assert labels(axes)[f"best so far, after {best}"] == [best, best]
    figure = draw_curves(write(tmp_path, losses, best_epoch=0))
    assert labels(figure.axes[0])["best epoch 1"] == [1, 1]


def test_no_best_so_far_is_marked_of_a_metric_whose_direction_is_not_known(tmp_path: Path) -> None:
    run = write(tmp_path, [3.0, 1.0, 2.0])
    text = (run / "metrics.csv").read_text()
    (run / "metrics.csv").write_text(text.replace("val/acc", "val/wer"))
    assert not [name for name in labels(draw_curves(run, "val/wer").axes[0]) if "best" in name]
    (run / "run.json").write_text(json.dumps(RECORD | {"modes": {"val/wer": "min"}}))
    assert [name for name in labels(draw_curves(run, "val/wer").axes[0]) if "best so far" in name]


def test_a_run_that_starts_from_a_checkpoint_keeps_its_epochs(tmp_path: Path) -> None:
    figure = draw_curves(write(tmp_path, [2.0, 1.0], first_epoch=5))
    assert labels(figure.axes[0])["validation"] == [6, 7]


def test_losses_that_are_not_finite_are_named(tmp_path: Path) -> None:
    figure = draw_curves(write(tmp_path, [2.0, math.nan, math.inf]))
    assert "validation, not finite from 2" in labels(figure.axes[0])
    save_figure(figure, tmp_path / "a.png")
    figure = draw_curves(write(tmp_path, [math.nan]))
    assert not [name for name in labels(figure.axes[0]) if name.startswith("best")]
    save_figure(figure, tmp_path / "a.png")


@pytest.mark.parametrize(
    ("losses", "scale"),
    [([2.0, 0.05], "linear"), ([2.0, 0.01], "log"), ([2.0, 1e-4, 0.0], "linear")],
)
def test_a_loss_over_decades_is_on_a_logarithmic_axis(
    losses: list[float], scale: str, tmp_path: Path
) -> None:
    figure = draw_curves(write(tmp_path, losses))
    assert [axes.get_yscale() for axes in figure.axes] == [scale, "linear", "linear"]


def test_without_a_learning_rate_there_is_no_panel_for_it(tmp_path: Path) -> None:
    figure = draw_curves(write(tmp_path, [1.0], lr=False))
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "accuracy"]


def rename(run: Path, names: dict[str, str]) -> Path:
    """A run whose metrics have other names."""
    text = (run / "metrics.csv").read_text()
    for old, new in names.items():
        text = text.replace(old, new)
    (run / "metrics.csv").write_text(text)
    return run


@pytest.mark.parametrize(
    ("monitor", "names", "titles"),
    [
        ("val/loss", {}, ["loss", "accuracy", "learning rate"]),
        ("val/acc", {}, ["loss", "accuracy", "learning rate"]),
        ("val/wer", {"/acc": "/wer"}, ["loss", "wer", "learning rate"]),
        ("val/loss", {"/acc": "/wer"}, ["loss", "wer", "learning rate"]),
        ("val/recall/$cat_", {"/acc": "/recall/$cat_"}, ["loss", "recall/$cat_", "learning rate"]),
        ("wer", {"val/acc": "wer", "train/acc": "other"}, ["loss", "wer", "learning rate"]),
    ],
)
def test_there_is_a_panel_for_each_metric_whatever_its_name(
    monitor: str, names: dict[str, str], titles: list[str], tmp_path: Path
) -> None:
    figure = draw_curves(rename(write(tmp_path, [2.0, 1.0], best_epoch=1), names), monitor)
    assert [axes.get_ylabel() for axes in figure.axes] == titles
    for axes in figure.axes[:-1]:
        values = [line.get_ydata() for line in axes.lines]
        assert any(len(y) == 2 for y in values), "the panel is not empty"
        assert labels(axes)["best epoch 2"] == [2, 2]
    save_figure(figure, tmp_path / "a.png")


def test_the_best_epoch_is_in_its_place_without_a_training_loss(tmp_path: Path) -> None:
    """As of a LightningModule that logs no more than its validation loss."""
    run = rename(write(tmp_path, [2.0, 1.0], best_epoch=0), {"train/loss": "other"})
    lines = labels(draw_curves(run).axes[0])
    assert lines["validation"] == [1, 2]
    assert lines["best epoch 1"] == [1, 1]


@pytest.mark.parametrize("lr", [True, False])
def test_the_legend_covers_no_data(lr: bool, tmp_path: Path) -> None:
    run = write(tmp_path, [math.nan, 3.0, 2.0, 1.0], steps=9, lr=lr, best_epoch=3)
    for names in ({}, {"/acc": "/other"}):
        figure = draw_curves(rename(run, names))
        figure.draw_without_rendering()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert not any(axes.get_legend() for axes in figure.axes)
        assert not any(box.overlaps(axes.get_tightbbox()) for axes in figure.axes)
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert box.y0 >= 0


def test_a_row_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, [2.0, 1.0]) / "metrics.csv"
    path.write_text(path.read_text() + "29,2,0.1")
    assert [value for _, value in read_metrics(tmp_path)["val/loss"]] == [2.0, 1.0]


@pytest.mark.parametrize("epochs", [1, 12, 1000])
def test_nothing_is_clipped(epochs: int, tmp_path: Path) -> None:
    figure = draw_curves(write(tmp_path, [1 + 1 / (k + 1) for k in range(epochs)], steps=5))
    figure.draw_without_rendering()
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert 0 <= drawn.x0 < drawn.x1 <= width
    assert 0 <= drawn.y0 < drawn.y1 <= height
    assert figure.get_suptitle() == "a$\\frac$ version_0, seed 3"


def add(run: Path, metrics: dict[str, float]) -> Path:
    """Give each row of the epochs further metrics."""
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row |= {k: str(v) for k, v in metrics.items() if row.get(f"{k.split('/')[0]}/loss")}
    with (run / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list({name: None for row in rows for name in row}))
        writer.writeheader()
        writer.writerows(rows)
    return run


def test_the_classes_of_a_metric_share_a_panel_and_few_are_named(tmp_path: Path) -> None:
    classes = [f"$kind_{i}" for i in range(100)]
    values = {f"{s}/recall/{c}": 0.5 for s in ("train", "val") for c in classes}
    values |= {"val/recall": 0.5, "val/f1/$kind_7": 0.4, "val/f1/$kind_99": 0.6}
    run = add(write(tmp_path, [2.0, 1.0], best_epoch=1), values)
    figure = draw_curves(run, "val/recall/$kind_99")
    titles = [axes.get_ylabel() for axes in figure.axes]
    assert titles == ["loss", "recall", "accuracy", "f1", "learning rate"]
    recall, f1 = (figure.axes[titles.index(name)] for name in ("recall", "f1"))
    assert len(recall.lines) == 100 + 2, "a line for each class, validation and the best epoch"
    names = [str(line.get_label()) for line in recall.lines]
    named = [name.removeprefix("class ") for name in names if name.startswith("class ")]
    assert named == [*classes[:9], "$kind_99"], "the monitored one, and the first"
    colors = {str(line.get_label()): line.get_color() for line in recall.lines}
    for line in f1.lines[:2]:
        assert line.get_color() == colors[str(line.get_label())], "a class has one colour"
    save_figure(figure, tmp_path / "a.png")


def test_there_are_never_hundreds_of_panels(tmp_path: Path) -> None:
    run = add(write(tmp_path, [2.0, 1.0], best_epoch=1), {f"val/m{i}": 0.5 for i in range(200)})
    figure = draw_curves(run, "val/m150")
    titles = [axes.get_ylabel() for axes in figure.axes]
    assert titles == ["loss", "m150", "accuracy", *(f"m{i}" for i in range(8)), "learning rate"]
    assert figure.get_suptitle().endswith("(191 more metrics in metrics.csv)")
    figure.draw_without_rendering()
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert 0 <= drawn.x0 < drawn.x1 <= width
    assert 0 <= drawn.y0 < drawn.y1 <= height


def test_at_any_instant_there_is_a_whole_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_is_full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "new" / "a.png"
    png = save_figure(Figure(), path)
    monkeypatch.setattr(os, "fsync", disk_is_full)
    with pytest.warns(UserWarning, match="No space left on device"):
        save_figure(Figure(), path)
    assert path.read_bytes() == png


def test_a_picture_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match=r"can't write .*a\.png"):
        png = save_figure(Figure(), tmp_path / "file" / "a.png")
    assert png.startswith(b"\x89PNG")
