"""Networks: one abstract `Classifier`, and one file for each architecture."""

from project.models.classifier import Classifier
from project.models.mlp import MLP
from project.models.resnet import ResNet18

__all__ = ["MLP", "Classifier", "ResNet18"]
