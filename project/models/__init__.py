"""Networks: abstract `Task` and `Classifier`, and one file for each architecture."""

from project.engine.task import Task
from project.models.classifier import Classifier
from project.models.fast_net import FastNet
from project.models.linear_regression import LinearRegression
from project.models.mlp import MLP
from project.models.resnet import ResNet18

__all__ = ["MLP", "Classifier", "FastNet", "LinearRegression", "ResNet18", "Task"]
