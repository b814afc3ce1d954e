"""A multi-layer perceptron for small grey images."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

from torch import Tensor, nn

from project.engine.task import Task

NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, "none": nn.Identity}


class MLP(Task):
    """784-256-128-10 with batch normalisation, ReLU and dropout: 235,914 parameters.

    Args:
        hidden_sizes: Number of units of each hidden layer.
        dropout: Share of the units that are dropped in training after each hidden layer.
        norm: Normalisation before each ReLU, over the batch or over the layer.
        in_channels: Number of channels of an image; the command line takes it from the data.
        image_size: Height and width of an image, in pixels; the command line takes it from the
            data.
        num_classes: Number of outputs; the command line takes it from the data.
        kwargs: Options that every network has.
    """

    def __init__(
        self,
        hidden_sizes: Sequence[int] = (256, 128),
        dropout: float = 0.3,
        norm: Literal["batch", "layer", "none"] = "batch",
        in_channels: int = 1,
        image_size: int = 28,
        num_classes: int = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not 0 <= dropout < 1 or min(hidden_sizes, default=1) < 1:
            raise ValueError(f"dropout {dropout} must be from 0 to below 1, hidden_sizes positive")
        self.num_classes = num_classes
        sizes = [in_channels * image_size**2, *hidden_sizes]
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), NORMS[norm](fan_out), nn.ReLU()]
            layers += [nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], num_classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)  # (N, C, H, W) -> (N, num_classes)
