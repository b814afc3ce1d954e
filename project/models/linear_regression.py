"""Linear regression: the smallest task, and an example of one that is no classification."""

from typing import Any

from torch import Tensor, nn
from torchmetrics import MeanSquaredError, Metric

from project.engine.task import Task


class LinearRegression(Task):
    """Linear function of the features, fitted by least squares.

    Args:
        num_features: Numbers that an example has; the command line takes it from the data.
        kwargs: As for every task.
    """

    metric = MeanSquaredError

    def __init__(self, num_features: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.linear = nn.Linear(num_features, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs).flatten()  # (N, num_features) -> (N,)

    def measure(self, metrics: Metric, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs = self(inputs)
        metrics.update(outputs.detach(), targets)
        return nn.functional.mse_loss(outputs, targets)
