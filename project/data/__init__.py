"""Data modules: from files to batches of inputs and targets."""

from project.data.augment import Augment
from project.data.augmented import AugmentedImageDataModule
from project.data.cifar10 import CIFAR10DataModule
from project.data.fashion_mnist import FashionMNISTDataModule
from project.data.image_folder import ImageFolderDataModule
from project.data.linear import LinearDataModule
from project.data.synthetic import SyntheticDataModule
from project.engine.datamodule import StreamDataModule
from project.engine.image_datamodule import ImageDataModule
from project.engine.loader import TensorLoader
from project.engine.transforms import BatchTransform, Compose, Normalize

__all__ = [
    "Augment",
    "AugmentedImageDataModule",
    "BatchTransform",
    "CIFAR10DataModule",
    "Compose",
    "FashionMNISTDataModule",
    "ImageDataModule",
    "ImageFolderDataModule",
    "LinearDataModule",
    "Normalize",
    "StreamDataModule",
    "SyntheticDataModule",
    "TensorLoader",
]
