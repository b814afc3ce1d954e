"""Networks, one per file, and the objectives that they can be trained for."""

from project.engine.objective import Objective
from project.engine.task import Task
from project.models.fast_net import FastNet
from project.models.linear_regression import LinearRegression
from project.models.mlp import MLP
from project.models.objectives import (
    BinaryCrossEntropy,
    CrossEntropy,
    FocalLoss,
    Huber,
    PixelCrossEntropy,
    SquaredError,
)
from project.models.resnet import ResNet18

__all__ = ["MLP", "FastNet", "LinearRegression", "ResNet18", "Task"]
__all__ += ["BinaryCrossEntropy", "CrossEntropy", "FocalLoss", "Huber", "Objective"]
__all__ += ["PixelCrossEntropy", "SquaredError"]
