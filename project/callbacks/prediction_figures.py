"""Figures of a model's predictions for images.

Legend: N examples, K classes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix

from project.engine.image_datamodule import ImageDataModule
from project.runs.files import readable

SHOWN = 24  # most images in a figure
DIGIT = 0.64  # width of a digit as a multiple of the font size
NAME = 16  # most characters of a class name; longer names lose their middle
RIGHT = ("✓", "#0072B2", 1.0)  # sign, colour and width of the frame, in points
WRONG = ("✗", "#D55E00", 4.0)  # differs from RIGHT even without colours
SIGNS = "✓ right, ✗ wrong"
LEGEND = f"{SIGNS}: predicted class and its probability"


class Predictions(Protocol):
    """Predictions of a network for the first N validation examples, in their order."""

    @property
    def losses(self) -> Tensor:
        """The loss of each example, float32 (N,)."""

    def caption(self, i: int, class_names: Sequence[str]) -> tuple[str, bool | None]:
        """Return the prediction for an example in words, and whether it is right, if defined."""


@dataclass(frozen=True)
class ClassPredictions:
    """Predicted classes of the first N validation examples, in their order."""

    labels: Tensor  # int64 (N,), the true classes
    classes: Tensor  # int64 (N,), the predicted ones
    probabilities: Tensor  # float32 (N,), of the predicted classes
    losses: Tensor  # float32 (N,)

    def __len__(self) -> int:
        return len(self.labels)

    def caption(self, i: int, class_names: Sequence[str]) -> tuple[str, bool | None]:
        label, predicted = int(self.labels[i]), int(self.classes[i])
        text = f"{class_names[predicted]} {_percent(float(self.probabilities[i]))}"
        right = label == predicted
        return text + ("" if right else f"\ntrue: {class_names[label]}"), right


@dataclass(frozen=True)
class OtherPredictions:
    """Predictions that are not classes, as captions of the examples that are drawn."""

    losses: Tensor  # float32 (N,)
    captions: dict[int, tuple[str, bool | None]]

    def caption(self, i: int, class_names: Sequence[str]) -> tuple[str, bool | None]:
        return self.captions[i]


def spread(losses: Tensor) -> list[int]:
    """Return the indices of evenly spaced examples, which are the same for each network."""
    count = min(SHOWN, len(losses))
    return [i * len(losses) // count for i in range(count)]


def hardest(losses: Tensor) -> list[int]:
    """Return the indices of the examples with the highest loss, in descending order of loss."""
    return losses.argsort(descending=True)[:SHOWN].tolist()


def draw_grid(said: Predictions, data: ImageDataModule, title: str) -> Figure:
    """Draw some validation images with their captions; they are the same for each network."""
    shown = spread(said.losses)
    heading = f"{len(shown)} of {len(said.losses):,} validation images; {title}"
    return _draw_images(said, data, shown, heading, losses=False)


def draw_hardest(said: Predictions, data: ImageDataModule, title: str) -> Figure:
    """Draw the validation images with the highest loss, in descending order of loss."""
    shown = hardest(said.losses)
    share = said.losses[shown].sum() / said.losses.sum()
    total = len(said.losses)
    heading = f"The {len(shown)} hardest of {total:,} validation images, {share:.0%} of the loss"
    return _draw_images(said, data, shown, f"{heading}; {title}", losses=True)


def _draw_images(
    said: Predictions, data: ImageDataModule, shown: list[int], heading: str, losses: bool
) -> Figure:
    images, _, indices = data.sets["val"]
    figure, grid = _grid([images[int(indices[i])] for i in shown], 2.25 if losses else 2.1)
    names, known = short_names(data.class_names), False
    for axes, i in zip(grid, shown, strict=True):
        caption, right = said.caption(i, names)
        if right is not None:
            sign, color, width = RIGHT if right else WRONG
            caption, known = f"{sign} {caption}", True
            for spine in axes.spines.values():
                spine.set(color=color, linewidth=width)
        caption += f"\nloss {float(said.losses[i]):.2f}" if losses else ""
        axes.set_xlabel(caption.strip(), fontsize=9, parse_math=False)
    legend = LEGEND if isinstance(said, ClassPredictions) else SIGNS if known else ""
    figure.suptitle(f"{heading}\n{legend}".strip(), fontsize=11, parse_math=False)
    return figure


def draw_photos(images: Sequence[Tensor], said: Sequence[tuple[str, float]], total: int) -> Figure:
    """Draw some of a total of photos, each uint8 (C, H, W), with its class and probability."""
    figure, grid = _grid(images, height=2.2)
    for axes, name, (_, probability) in zip(
        grid, short_names(n for n, _ in said), said, strict=True
    ):
        axes.set_xlabel(f"{name}\n{_percent(probability)}", fontsize=9, parse_math=False)
    figure.suptitle(f"{len(said)} of {total:,} images: class and its probability", fontsize=11)
    return figure


def _grid(images: Sequence[Tensor], height: float) -> tuple[Figure, list[Axes]]:
    """Draw images, uint8 (C, H, W), in rows of this height in inches: in colour if C is 3, else
    channel 0.
    """
    rows = math.ceil(len(images) / 6)
    columns = math.ceil(len(images) / rows)
    figure = Figure(figsize=(max(1.75 * columns, 7), height * rows + 0.5), layout="compressed")
    figure.get_layout_engine().set(w_pad=0.07, h_pad=0.07)  # type: ignore[union-attr, call-arg]
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, image in zip(grid, images, strict=False):
        pixels = image.permute(1, 2, 0) if len(image) == 3 else image[0]
        axes.imshow(pixels.numpy(), cmap="gray", vmin=0, vmax=255)
        axes.set(xticks=[], yticks=[])
    for axes in grid[len(images) :]:
        axes.remove()
    return figure, grid[: len(images)]


def draw_confusion(said: ClassPredictions, class_names: list[str], title: str) -> Figure:
    """Draw how often each class is predicted as each: shares as shades, counts if they fit."""
    num_classes = len(class_names)
    counts = multiclass_confusion_matrix(said.classes, said.labels, num_classes)  # (K, K)
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    side = min(max(0.5 * num_classes, 3), 13)  # inches
    cell = 72 * side / num_classes  # points
    figure = Figure(figsize=(side + 2.4, side + 1.9), layout="compressed")
    axes = figure.add_subplot()
    norm = PowerNorm(0.5, vmin=0, vmax=1)  # makes a confusion of 1 % visible
    picture = axes.imshow(shares.numpy(), cmap="Blues", norm=norm)
    size = min(10.0, 0.6 * cell)
    for i, j in counts.nonzero().tolist():
        text = f"{int(counts[i, j])}"
        if size >= 5 and DIGIT * size * len(text) < 0.95 * cell:
            color = "white" if norm(float(shares[i, j])) > 0.6 else "black"
            axes.text(j, i, text, color=color, size=size, ha="center", va="center")
    every = math.ceil(7 / cell)  # names need 7 points
    ticks, names = range(0, num_classes, every), short_names(class_names)[::every]
    size = min(10.0, 0.8 * every * cell)
    level = DIGIT * size * max(map(len, names)) < cell
    axes.set_xticks(ticks, names, rotation=0 if level else 90, size=size, parse_math=False)
    axes.set_yticks(ticks, names, size=size, parse_math=False)
    axes.set(xlabel="predicted class", ylabel="true class")
    figure.colorbar(picture, label="share of the true class", shrink=0.8, aspect=30)
    accuracy = (said.classes == said.labels).float().mean()
    heading = f"{len(said):,} validation images, accuracy {accuracy:.1%}"
    figure.suptitle(f"{heading}\n{title}", fontsize=11, parse_math=False)
    return figure


def short_names(names: Iterable[str]) -> list[str]:
    """Return the names; those over 16 characters lose their middle, which tells the least."""
    keep = NAME - 7
    names = map(readable, names)
    return [n if len(n) <= NAME else f"{n[:keep]}…{n[-6:]}" for n in names]


def _percent(probability: float) -> str:
    return ">99%" if 0.995 < probability < 1 else f"{probability:.0%}"
