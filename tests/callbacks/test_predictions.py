"""The figures of predictions show the images, classes and counts that they were given."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from torch import Tensor
from torch.utils.data import Dataset

from project.callbacks.prediction_figures import (
    RIGHT,
    WRONG,
    ClassPredictions,
    draw_confusion,
    draw_grid,
    draw_hardest,
    short_names,
)
from project.commands.predict import write_predictions
from project.data import ImageDataModule
from project.engine.datamodule import Split
from project.engine.values import Images

LONG = ["american_pit_bull_terrier", "staffordshire_bull_terrier", "west $\\frac highland$"]


class Lazy(Dataset[Tensor]):
    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index]


class Blocks(ImageDataModule):
    """An image of one value for each example; validation examples come class by class."""

    def __init__(
        self,
        size: int,
        names: list[str],
        channels: int = 1,
        image_size: int = 8,
        lazy: bool = False,
    ) -> None:
        super().__init__(batch_size=2)
        self.size, self.lazy = size, lazy
        self.class_names, self.in_channels, self.image_size = names, channels, image_size

    def load(self, split: Split) -> tuple[Images, Tensor]:
        values = torch.arange(self.size, dtype=torch.uint8).view(-1, 1, 1, 1)
        images = values.expand(-1, self.in_channels, self.image_size, self.image_size)
        labels = torch.arange(self.size) * len(self.class_names) // self.size
        return Lazy(images) if self.lazy else images, labels


def make(
    size: int, names: list[str] | None = None, **kwargs: int
) -> tuple[ClassPredictions, ImageDataModule]:
    """Return predictions of which every third is wrong, with losses that rise with the index."""
    data = Blocks(size, names or ["cat", "dog", "owl"], **kwargs)
    data.setup("fit")
    labels = data.sets["val"][1]
    classes = (labels + (torch.arange(size) % 3 == 0)) % data.num_classes
    said = ClassPredictions(labels, classes, torch.linspace(0, 1, size), torch.linspace(0, 5, size))
    return said, data


def captions(figure: Figure) -> list[str]:
    return [axes.get_xlabel() for axes in figure.axes]


def shown(axes: Axes) -> np.ndarray:
    pixels = axes.images[0].get_array()
    assert pixels is not None
    return np.asarray(pixels)


@pytest.mark.parametrize(("channels", "lazy"), [(1, False), (3, False), (2, False), (3, True)])
def test_images_are_those_of_the_validation_set_as_they_are(channels: int, lazy: bool) -> None:
    figure = draw_grid(*make(9, channels=channels, lazy=lazy), "")
    shape = (8, 8, 3) if channels == 3 else (8, 8)
    assert len(figure.axes) == 9
    for i, axes in enumerate(figure.axes):
        assert np.array_equal(shown(axes), np.full(shape, i, dtype=np.uint8))
        assert axes.images[0].get_clim() == (0, 255)  # and not stretched to its own range


def test_captions_tell_right_from_wrong_without_colours() -> None:
    figure = draw_grid(*make(4, ["cat", "dog"]), "best epoch 3")
    assert captions(figure) == [
        "✗ dog 0%\ntrue: cat",
        "✓ cat 33%",
        "✓ dog 67%",
        "✗ cat 100%\ntrue: dog",
    ]
    widths = [axes.spines["left"].get_linewidth() for axes in figure.axes]
    assert widths == [WRONG[2], RIGHT[2], RIGHT[2], WRONG[2]]
    assert WRONG[2] > 2 * RIGHT[2]
    assert "best epoch 3" in figure.get_suptitle()


def test_grid_has_all_classes_of_sorted_examples_and_the_same_ones_each_time() -> None:
    said, data = make(200, ["a", "b", "c", "d", "e"])
    first = draw_grid(said, data, "")
    values = [int(shown(axes).flat[0]) for axes in first.axes]
    assert len(set(values)) == 24
    assert {int(said.labels[i]) for i in values} == {0, 1, 2, 3, 4}
    other = ClassPredictions(
        said.labels, said.classes.flip(0), said.probabilities, said.losses.flip(0)
    )
    assert values == [int(shown(axes).flat[0]) for axes in draw_grid(other, data, "").axes]


def test_hardest_have_the_highest_losses_in_order() -> None:
    said, data = make(100)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    said = replace(said, losses=said.losses[order])
    figure = draw_hardest(said, data, "")
    values = [int(shown(axes).flat[0]) for axes in figure.axes]
    assert values == sorted(range(100), key=lambda i: -said.losses[i])[:24]
    losses = [float(caption.split("loss ")[1]) for caption in captions(figure)]
    assert losses == pytest.approx(said.losses[values].tolist(), abs=0.005)
    share = said.losses[values].sum() / said.losses.sum()
    assert f"{share:.0%} of the loss" in figure.get_suptitle()


def test_nearly_certain_is_not_called_certain() -> None:
    said, data = make(3)
    said = ClassPredictions(
        said.labels, said.labels, torch.tensor([0.994, 0.996, 1.0]), said.losses
    )
    assert captions(draw_grid(said, data, "")) == ["✓ cat 99%", "✓ dog >99%", "✓ owl 100%"]


def test_losses_that_are_not_finite_are_drawn() -> None:
    said, data = make(5)
    said.losses[2], said.probabilities[2] = torch.nan, torch.nan
    assert "nan" in captions(draw_hardest(said, data, ""))[0]


def test_confusion_shows_shares_of_the_true_class_and_counts() -> None:
    pairs = [(0, 0)] * 6 + [(0, 2)] * 2 + [(2, 1)] * 3 + [(2, 2)] * 12  # none of class 1
    labels, classes = torch.tensor(pairs).T
    rest = torch.ones(len(pairs))
    figure = draw_confusion(
        ClassPredictions(labels, classes, rest, rest), ["cat", "dog", "owl"], ""
    )
    axes = figure.axes[0]
    shares = [[0.75, 0, 0.25], [0, 0, 0], [0, 0.2, 0.8]]
    assert shown(axes) == pytest.approx(np.array(shares))
    texts = {text.get_position(): text.get_text() for text in axes.texts}  # (column, row)
    assert texts == {(0, 0): "6", (2, 0): "2", (1, 2): "3", (2, 2): "12"}
    assert [text.get_text() for text in axes.get_yticklabels()] == ["cat", "dog", "owl"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["cat", "dog", "owl"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
    assert f"23 validation images, accuracy {18 / 23:.1%}" in figure.get_suptitle()


@pytest.mark.parametrize("num_classes", [2, 10, 50, 100, 250])
def test_counts_and_names_of_the_confusion_fit(num_classes: int) -> None:
    labels = torch.arange(num_classes).repeat(150)
    labels[0] = 1
    classes = labels.clone()
    classes[:num_classes] = 0
    rest = torch.ones(len(labels))
    said = ClassPredictions(labels, classes, rest, rest)
    figure = draw_confusion(said, (LONG * num_classes)[:num_classes], "best epoch 3")
    assert_nothing_is_clipped(figure)
    axes = figure.axes[0]
    cell = axes.transData.transform([(0, 0), (1, 1)])
    width, height = np.abs(cell[1] - cell[0])
    for text in axes.texts:
        extent = text.get_window_extent()
        assert extent.width < width
        assert extent.height < 1.5 * height  # of the line; digits are lower
    assert bool(axes.texts) == (num_classes <= 100)
    for labels_of_axis in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert_apart(labels_of_axis)
        assert labels_of_axis[0].get_fontsize() >= 5  # points


@pytest.mark.parametrize("size", [1, 2, 5, 7, 13, 24, 30])
@pytest.mark.parametrize("draw", [draw_grid, draw_hardest])
def test_captions_fit_beside_each_other(size: int, draw: type) -> None:
    figure = draw(*make(size, LONG, image_size=28), "best epoch 1234")
    assert len(figure.axes) == min(size, 24)
    assert_nothing_is_clipped(figure)
    assert_apart([axes.xaxis.label for axes in figure.axes])
    rows = {round(axes.get_position().y1, 3) for axes in figure.axes}
    assert len(rows) == -(-len(figure.axes) // 6)


def assert_nothing_is_clipped(figure: Figure) -> None:
    figure.draw_without_rendering()
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert 0 <= drawn.x0 < drawn.x1 <= width
    assert 0 <= drawn.y0 < drawn.y1 <= height


def assert_apart(texts: list[Text]) -> None:
    extents = [text.get_window_extent() for text in texts]
    for i, one in enumerate(extents):
        assert not any(one.overlaps(other) for other in extents[:i]), texts[i]


def test_long_names_stay_distinct() -> None:
    names = ["cat", "n02099601_golden_retriever", "n02099601_golden_retriever_2"]
    short = short_names(names)
    assert short[0] == "cat"
    assert max(map(len, short)) <= 16
    assert len(set(short)) == 3


def test_table_has_a_line_for_each_test_image(tmp_path: Path) -> None:
    _, data = make(4, ["cat", "dog"])
    data.setup("test")
    probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.0, 1.0]])
    write_predictions(tmp_path / "a.csv", probabilities, data)
    assert list(csv.reader((tmp_path / "a.csv").read_text().splitlines())) == [
        ["index", "label", "prediction", "probability"],
        ["0", "cat", "cat", "0.9000"],
        ["1", "cat", "dog", "0.8000"],
        ["2", "dog", "cat", "0.6000"],
        ["3", "dog", "dog", "1.0000"],
    ]
