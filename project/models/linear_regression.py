"""Linear regression: the smallest network, and an example of one that does not classify."""

from typing import Any

from torch import Tensor, nn

from project.engine.task import Task
from project.models.objectives import SquaredError


class LinearRegression(Task):
    """Linear function of the features, fitted by least squares.

    Args:
        num_features: Number of features of an example; the command line takes it from the data.
        kwargs: Options that every network has.
    """

    default_objective = SquaredError

    def __init__(self, num_features: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.linear = nn.Linear(num_features, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs).flatten()  # (N, num_features) -> (N,)
