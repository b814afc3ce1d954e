"""What a model says of each example, as CSV.

Legend: N examples, K classes.
"""

import math
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from project.data import ImageDataModule
from project.data.photos import PhotosDataModule
from project.files import write_rows
from project.reports.curves import save_figure
from project.reports.predictions import SHOWN, draw_photos
from project.run import PREDICTIONS

TOP = 5  # classes of a photo


def write_outputs(folder: Path, outputs: Tensor, data: Any) -> Path:
    """Write what `predict_step` gave, (N,) or (N, K), in the order of the data's test set.

    Returns:
        The file: `images.csv` of photos, else `predictions.csv`.
    """
    if isinstance(data, PhotosDataModule):
        return write_photos(folder, outputs, data)
    path = folder / PREDICTIONS
    if outputs.ndim == 1:  # of a regression
        write_values(path, outputs, data.sets["test"][1])
    else:
        write_predictions(path, outputs, data)
    return path


def write_predictions(path: Path, probabilities: Tensor, data: ImageDataModule) -> None:
    """Write label, class and probability of each test image as CSV, in the order of the data.

    Args:
        path: Of the file.
        probabilities: Float (N, num_classes).
        data: Its test images are those that were predicted.
    """
    _, labels, indices = data.sets["test"]
    indices = indices[: len(probabilities)]
    best, classes = probabilities.max(1)
    names = data.class_names
    columns = [column.tolist() for column in (indices, labels[indices], classes, best)]
    rows = [
        [i, names[label], names[k], f"{p:.4f}"] for i, label, k, p in zip(*columns, strict=True)
    ]
    write_rows(path, [["index", "label", "prediction", "probability"], *rows])


def write_values(path: Path, values: Tensor, targets: Tensor) -> None:
    """Write target and predicted value, float (N,), of each test example as CSV, in their order."""
    pairs = zip(targets[: len(values)].tolist(), values.tolist(), strict=True)
    rows = [[i, *(f"{value:.6g}" for value in pair)] for i, pair in enumerate(pairs)]
    write_rows(path, [["index", "target", "prediction"], *rows])


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
    rows: list[list[Any]] = [
        ["path", *(f"{x}{k}" for k in suffixes for x in ("class", "probability"))]
    ]
    for i in read:
        pairs = zip(classes[i], best[i], strict=True)
        rows.append([photos.paths[i], *(x for k, p in pairs for x in (names[k], f"{p:.4f}"))])
    write_rows(path, rows)
    shown = read[:: math.ceil(len(read) / SHOWN)]
    said = [(names[classes[i][0]], best[i][0]) for i in shown]
    save_figure(draw_photos([photos[i] for i in shown], said, len(read)), folder / "images.png")
    return path
