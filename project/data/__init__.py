"""Data modules: from files to batches of normalised images."""

from project.data.cifar10 import CIFAR10DataModule
from project.data.fashion_mnist import FashionMNISTDataModule
from project.data.image_folder import ImageFolderDataModule
from project.data.linear import LinearDataModule
from project.data.synthetic import SyntheticDataModule
from project.engine.augment import Augment
from project.engine.image_datamodule import ImageDataModule
from project.engine.loader import TensorLoader

__all__ = [
    "Augment",
    "CIFAR10DataModule",
    "FashionMNISTDataModule",
    "ImageDataModule",
    "ImageFolderDataModule",
    "LinearDataModule",
    "SyntheticDataModule",
    "TensorLoader",
]
