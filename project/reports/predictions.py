"""What a model says of each example: as a table, and in three figures.

Legend: N examples, K classes.
"""

import csv
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix

from project.data import ImageDataModule
from project.data.photos import PhotosDataModule
from project.reports.curves import save_figure

TOP = 5  # classes of a photo
SHOWN = 24  # images of a figure
DIGIT = 0.64  # width of a digit by the size of the font
NAME = 16  # characters of a class name; longer ones lose their middle
RIGHT = ("✓", "#0072B2", 1.0)  # sign, colour and width of the frame, in points
WRONG = ("✗", "#D55E00", 4.0)  # told apart without colours too


@dataclass(frozen=True)
class Predictions:
    """What a model says of the first N validation examples, in their order."""

    labels: Tensor  # int64 (N,), the true classes
    classes: Tensor  # int64 (N,), the predicted ones
    probabilities: Tensor  # float32 (N,), of the predicted classes
    losses: Tensor  # float32 (N,)

    def __len__(self) -> int:
        return len(self.labels)


def write_predictions(path: Path, probabilities: Tensor, data: ImageDataModule) -> None:
    """Write label, class and probability of each test image as CSV, in the order of the data.

    Args:
        path: Of the file.
        probabilities: Float (N, num_classes).
        data: Its test images are those that were predicted.
    """
    _, labels, indices = data.sets["test"]
    best, classes = probabilities.max(1)
    names = data.class_names
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["index", "label", "prediction", "probability"])
        columns = (indices, labels[indices], classes, best)
        for i, label, k, p in zip(*(column.tolist() for column in columns), strict=True):
            writer.writerow([i, names[label], names[k], f"{p:.4f}"])


def write_photos(folder: Path, probabilities: Tensor, data: PhotosDataModule) -> Path:
    """Write `images.csv`, draw `images.png`, and name on stderr the photos that are in neither."""
    photos, names, path = data.photos, data.class_names, folder / "images.csv"
    for _, reason in sorted(photos.unreadable.items()):
        print(reason, file=sys.stderr)
    read = [i for i in range(len(probabilities)) if i not in photos.unreadable]
    if not read:
        raise ValueError(f"none of the {len(photos)} images could be read")
    ranked = probabilities.sort(dim=1, descending=True, stable=True)  # of equals the first is first
    best, classes = (part[:, :TOP].tolist() for part in ranked)
    suffixes = ["", *(f"_{k}" for k in range(2, len(best[0]) + 1))]
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(["path", *(f"{x}{k}" for k in suffixes for x in ("class", "probability"))])
        for i in read:
            pairs = zip(classes[i], best[i], strict=True)
            writer.writerow(
                [photos.paths[i], *(x for k, p in pairs for x in (names[k], f"{p:.4f}"))]
            )
    shown = read[:: math.ceil(len(read) / SHOWN)]
    (figure, grid), short = _grid([photos[i] for i in shown], height=2.2), short_names(names)
    for axes, i in zip(grid, shown, strict=True):
        caption = f"{short[classes[i][0]]}\n{_percent(best[i][0])}"
        axes.set_xlabel(caption, fontsize=9, parse_math=False)
    figure.suptitle(f"{len(shown)} of {len(read):,} images: class and its probability", fontsize=11)
    save_figure(figure, folder / "images.png")
    return path


def write_values(path: Path, values: Tensor, targets: Tensor) -> None:
    """Write target and predicted value, float (N,), of each test example as CSV, in their order."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["index", "target", "prediction"])
        for i, pair in enumerate(zip(targets.tolist(), values.tolist(), strict=True)):
            writer.writerow([i, *(f"{value:.6g}" for value in pair)])


def draw_grid(said: Predictions, data: ImageDataModule, title: str) -> Figure:
    """Validation images at equal distances in the set: the same ones for each model."""
    count = min(SHOWN, len(said))
    shown = [i * len(said) // count for i in range(count)]
    heading = f"{count} of {len(said):,} validation images; {title}"
    return _draw_images(said, data, shown, heading, losses=False)


def draw_hardest(said: Predictions, data: ImageDataModule, title: str) -> Figure:
    """The validation images with the highest loss, the highest first."""
    shown = said.losses.argsort(descending=True)[:SHOWN].tolist()
    share = said.losses[shown].sum() / said.losses.sum()
    heading = (
        f"The {len(shown)} hardest of {len(said):,} validation images, {share:.0%} of the loss"
    )
    return _draw_images(said, data, shown, f"{heading}; {title}", losses=True)


def _draw_images(
    said: Predictions, data: ImageDataModule, shown: list[int], heading: str, losses: bool
) -> Figure:
    images, _, indices = data.sets["val"]
    figure, grid = _grid([images[int(indices[i])] for i in shown], 2.25 if losses else 2.1)
    names = short_names(data.class_names)
    for axes, i in zip(grid, shown, strict=True):
        label, predicted = int(said.labels[i]), int(said.classes[i])
        right = label == predicted
        caption = f"{names[predicted]} {_percent(float(said.probabilities[i]))}"
        sign, color, width = RIGHT if right else WRONG
        caption = f"{sign} {caption}" + ("" if right else f"\ntrue: {names[label]}")
        caption += f"\nloss {float(said.losses[i]):.2f}" if losses else ""
        axes.set_xlabel(caption, fontsize=9, parse_math=False)
        for spine in axes.spines.values():
            spine.set(color=color, linewidth=width)
    legend = "✓ right, ✗ wrong: predicted class and its probability"
    figure.suptitle(f"{heading}\n{legend}", fontsize=11, parse_math=False)
    return figure


def _grid(images: Sequence[Tensor], height: float) -> tuple[Figure, list[Axes]]:
    """Draw images, uint8 (C, H, W), of so many inches: in colour if C is 3, else channel 0."""
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


def draw_confusion(said: Predictions, class_names: list[str], title: str) -> Figure:
    """How often each class is taken for each: shares as shades, counts where they fit."""
    num_classes = len(class_names)
    counts = multiclass_confusion_matrix(said.classes, said.labels, num_classes)  # (K, K)
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    side = min(max(0.5 * num_classes, 3), 13)  # inches
    cell = 72 * side / num_classes  # points
    figure = Figure(figsize=(side + 2.4, side + 1.9), layout="compressed")
    axes = figure.add_subplot()
    norm = PowerNorm(0.5, vmin=0, vmax=1)  # so that a confusion of 1 % can be seen
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
    """Names of at most 16 characters: begin and end of a longer one tell more than its middle."""
    keep = NAME - 7
    return [n if len(n) <= NAME else f"{n[:keep]}…{n[-6:]}" for n in names]


def _percent(probability: float) -> str:
    return ">99%" if 0.995 < probability < 1 else f"{probability:.0%}"
