"""Predictions, written as CSV if they form a table.

Legend: N examples, K classes.
"""

import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..callbacks.prediction_figures import SHOWN, draw_photos
from ..data import ImageDataModule
from ..engine.classification import Classification
from ..engine.datamodule import StreamDataModule
from ..engine.objective import Objective
from ..engine.photos import PhotosDataModule
from ..engine.protocols import class_names_of
from ..engine.targets import are_classes, kind
from ..reports.curves import save_figure
from ..runs.files import write_rows, write_whole
from ..runs.folder import PREDICTIONS

TOP = 5  # number of classes listed for a photo
COLUMNS = 1000  # most columns of a table; wider outputs are saved as they are
PHOTOS = "images.csv"
WHOLE = "predictions.pt"  # a list of batches, or one tensor (N, ...)


def write_outputs(
    folder: Path, batches: Sequence[Any], data: Any, objective: Objective | None = None
) -> Path:
    """Write what `predict_step` returned for each batch, in the order of the data.

    Outputs of shape (N,) or (N, K) become a table, with targets and class names if the data have
    them: `images.csv` for photos, otherwise `predictions.csv`. All others are saved as they are, in
    `predictions.pt`.

    Args:
        folder: Folder that the file is written to.
        batches: Outputs of each batch.
        data: Data module whose examples were predicted.
        objective: Objective of the network; by default it is inferred from the outputs.

    Returns:
        The path of the file.

    Raises:
        ValueError: If there are no outputs.
    """
    outputs = joined(batches)
    if outputs is None or not 1 <= outputs.ndim <= 2 or outputs[:1].numel() > COLUMNS:
        if all(batch is None for batch in batches):
            raise ValueError("nothing is written: predict_step returned nothing for any batch")
        return write_whole_outputs(folder, batches, outputs)
    names = class_names_of(data) or []
    named = outputs.ndim == 2 and len(names) == outputs.shape[1]
    classifies = named and (objective is None or isinstance(objective, Classification))
    columns = names if named else []
    if isinstance(data, PhotosDataModule):
        if classifies:
            return write_photos(folder, outputs, data)
        return write_photo_values(folder / PHOTOS, outputs, data, columns)
    path = folder / PREDICTIONS
    if isinstance(data, ImageDataModule) and classifies and are_classes(data.sets["test"][1]):
        write_predictions(path, outputs, data)
    else:
        write_table(path, outputs, _test_targets(data), columns)
    return path


def _test_targets(data: Any) -> Tensor | None:
    """Return the targets of the test examples in their order, if they are one tensor."""
    if not isinstance(data, StreamDataModule):
        return None
    _, targets, indices = data.sets["test"]
    return targets[indices] if isinstance(targets, Tensor) else None


def write_table(path: Path, outputs: Tensor, targets: Tensor | None, names: Sequence[str]) -> None:
    """Write outputs, (N,) or (N, K), as CSV, with their targets if these are of the same shape."""
    if targets is not None and outputs.ndim == targets.ndim == 1:
        write_values(path, outputs, targets)
    elif targets is not None and names and targets.shape[1:] == outputs.shape[1:]:
        write_labels(path, outputs, targets, names)
    else:
        write_columns(path, outputs, names)


def joined(batches: Sequence[Any]) -> Tensor | None:
    """Return all outputs as one tensor, (N, ...), if they are tensors that differ only in N."""
    if not batches or not all(isinstance(batch, Tensor) and batch.ndim for batch in batches):
        return None
    return torch.cat([*batches]) if len({batch.shape[1:] for batch in batches}) == 1 else None


def write_columns(path: Path, outputs: Tensor, names: Sequence[str]) -> None:
    """Write outputs, (N,) or (N, K), as CSV without targets."""
    rows = [[i, *row] for i, row in enumerate(_written(outputs))]
    write_rows(path, [["index", *_columns(outputs, names)], *rows])


def write_labels(path: Path, outputs: Tensor, targets: Tensor, names: Sequence[str]) -> None:
    """Write each test example's outputs and targets for all labels, both (N, K), as CSV."""
    header = ["index", *names, *(f"true {name}" for name in names)]
    pairs = zip(_written(outputs), _written(targets[: len(outputs)]), strict=True)
    write_rows(path, [header, *([i, *row, *truth] for i, (row, truth) in enumerate(pairs))])


def write_photo_values(
    path: Path, outputs: Tensor, data: PhotosDataModule, names: Sequence[str]
) -> Path:
    """Write outputs, (N,) or (N, K), for each photo that could be read, as CSV."""
    read = _read(data, len(outputs))
    rows = [[str(data.photos.paths[i]), *row] for i, row in enumerate(_written(outputs))]
    write_rows(path, [["path", *_columns(outputs, names)], *(rows[i] for i in read)])
    return path


def _columns(outputs: Tensor, names: Sequence[str]) -> list[str]:
    if outputs.ndim == 1:
        return ["prediction"]
    return list(names) or [f"output_{k}" for k in range(outputs.shape[1])]


def _written(values: Tensor) -> list[list[str]]:
    rows = values.reshape(len(values), -1).tolist()
    return [[f"{value:.6g}" for value in row] for row in rows]


def write_whole_outputs(folder: Path, batches: Sequence[Any], outputs: Tensor | None) -> Path:
    """Save outputs that are not a table, batch by batch or as one tensor, and say so."""
    what = "no tensors of one shape" if outputs is None else kind(outputs)
    print(f"{PREDICTIONS} is not written, since the outputs ({what}) are not a table.")
    path = folder / WHOLE
    buffer = io.BytesIO()
    torch.save(batches if outputs is None else outputs, buffer)
    write_whole(path, buffer.getvalue())
    return path


def write_predictions(path: Path, probabilities: Tensor, data: ImageDataModule) -> None:
    """Write label, class and probability of each test image as CSV, in the order of the data.

    If the images are files, the last column is the path of each one, relative to the data's root.

    Args:
        path: Path of the CSV file.
        probabilities: Probabilities of the classes, float (N, K).
        data: Data module whose test images were predicted.
    """
    _, labels, indices = data.sets["test"]
    indices = indices[: len(probabilities)]
    best, classes = probabilities.max(1)
    names, files = data.class_names, data.files("test")
    header = ["index", "label", "prediction", "probability"]
    columns = [column.tolist() for column in (indices, labels[indices], classes, best)]
    rows = [
        [i, names[label], names[k], f"{p:.4f}", *([files[i]] if files else [])]
        for i, label, k, p in zip(*columns, strict=True)
    ]
    write_rows(path, [[*header, *(["path"] if files else [])], *rows])


def write_values(path: Path, values: Tensor, targets: Tensor) -> None:
    """Write target and predicted value, both float (N,), of each test example as CSV, in order."""
    pairs = zip(targets[: len(values)].tolist(), values.tolist(), strict=True)
    rows = [[i, *(f"{value:.6g}" for value in pair)] for i, pair in enumerate(pairs)]
    write_rows(path, [["index", "target", "prediction"], *rows])


def write_photos(folder: Path, probabilities: Tensor, data: PhotosDataModule) -> Path:
    """Write `images.csv`, draw `images.png`, and name on stderr the photos that are in neither."""
    photos, names, path = data.photos, data.class_names, folder / PHOTOS
    read = _read(data, len(probabilities))
    ranked = probabilities.sort(dim=1, descending=True, stable=True)  # ties keep the class order
    best, classes = (part[:, :TOP].tolist() for part in ranked)
    suffixes = ["", *(f"_{k}" for k in range(2, len(best[0]) + 1))]
    rows: list[list[Any]] = [
        ["path", *(f"{x}{k}" for k in suffixes for x in ("class", "probability"))]
    ]
    for i in read:
        pairs = zip(classes[i], best[i], strict=True)
        rows.append([str(photos.paths[i]), *(x for k, p in pairs for x in (names[k], f"{p:.4f}"))])
    write_rows(path, rows)
    shown = read[:: math.ceil(len(read) / SHOWN)]
    said = [(names[classes[i][0]], best[i][0]) for i in shown]
    save_figure(draw_photos([photos[i] for i in shown], said, len(read)), folder / "images.png")
    return path


def _read(data: PhotosDataModule, total: int) -> list[int]:
    """Return which of the first photos could be read, and name the others on stderr."""
    photos = data.photos
    for _, reason in sorted(photos.unreadable.items()):
        print(reason, file=sys.stderr)
    read = [i for i in range(total) if i not in photos.unreadable]
    if not read:
        raise ValueError(f"none of the {len(photos)} images could be read")
    return read
