"""What a model says of each example."""

import csv
from pathlib import Path

from torch import Tensor

from project.data import ImageDataModule


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
