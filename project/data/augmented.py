"""Image data modules whose training images `Augment` changes at random."""

import copy
from typing import Any

from project.data.augment import Augment
from project.engine.image_datamodule import ImageDataModule
from project.engine.transforms import BatchTransform


class AugmentedImageDataModule(ImageDataModule):
    """Images that are changed at random in training: the base of every data set here.

    Args:
        augment: Random changes of training images; validation and test images are never changed.
        kwargs: Further options of every image data module.
    """

    def __init__(self, *, augment: Augment | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.augment = augment

    def pixel_transform(self) -> BatchTransform | None:
        if self.augment is None:
            return None
        augment = copy.copy(self.augment)
        augment.fill = self.statistics[0]
        return augment
