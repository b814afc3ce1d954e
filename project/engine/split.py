"""A split that lasts: each image is dealt out by what it holds, whatever other images there are.

Legend: N images.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .datamodule import Split


def numbers(digests: Sequence[bytes], seed: int) -> Tensor:
    """A number in [0, 1) for each image, float64 (N,), which its content and the seed alone decide.

    Args:
        digests: Hashes of the images' content; copies of an image get the same number.
        seed: Seed of the split.
    """
    key = str(seed).encode()
    drawn = (hashlib.blake2b(digest, digest_size=8, key=key).digest() for digest in digests)
    return (
        torch.tensor([int.from_bytes(x, "big") >> 11 for x in drawn], dtype=torch.float64) / 2**53
    )


def deal(
    numbers: Tensor, labels: Tensor, shares: Mapping[Split, float], train_size: int | None
) -> dict[Split, Tensor]:
    """Deal out images to training, validation and test by their numbers.

    The lowest numbers are the test's, the next ones validation's, the others training's. So the
    parts have their shares within what chance allows, and an image that is added, removed or
    renamed moves no other one. There is one exception, since no class may lack training images: if
    all images of a class would fall outside training, the one with the highest number is trained
    on, and an image added to that class later can send it back.

    Args:
        numbers: A number in [0, 1) for each image, float64 (N,).
        labels: Class of each image, int64 (N,).
        shares: Shares of validation and test.
        train_size: Number of training images, by default all that are in no other part. Those with
            the highest numbers are taken, but first the highest one of each class, so that a
            smaller training set is a part of a larger one.

    Returns:
        Indices of the images of each part, int64, the highest number first.
    """
    test, val = shares.get("test", 0.0), shares.get("val", 0.0)
    if not (test >= 0 and val >= 0 and test + val < 1):
        given = " + ".join(f"{split}_size {share:g}" for split, share in shares.items())
        raise ValueError(f"{given}: shares can't be negative, and must add up to less than 1")
    order = numbers.argsort(descending=True, stable=True)
    firsts = _first_of_each(labels[order])
    # By number and not by image, so that copies of an image stay together.
    needed = torch.isin(numbers[order], numbers[order][firsts])
    ranked = numbers[order]
    training = needed | (ranked >= test + val)
    parts: dict[Split, Tensor] = {
        "train": training,
        "val": ~training & (ranked >= test),
        "test": ~training & (ranked < test),
    }
    if val > 0 and not parts["val"].any():
        raise ValueError(_too_few(ranked[~needed & (ranked >= test)], test, val, len(labels)))
    if train_size is not None:
        parts["train"] = _some(training, firsts, train_size)
    return {split: order[chosen] for split, chosen in parts.items() if chosen.any()}


def _too_few(ranked: Tensor, test: float, val: float, total: int) -> str:
    """Why there are no validation images, and the share by which there is one, if any."""
    found = f"none of the {total} images falls into validation by val_size {val:g}: "
    if not len(ranked):
        return f"{found}there are too few; set --data.val_size 0 to train without"
    enough = math.ceil(100 * (ranked[-1].item() - test) + 1e-6) / 100
    return f"{found}set --data.val_size {enough:g}, by which there is one, or another split_seed"


def _first_of_each(labels: Tensor) -> Tensor:
    """Place of the first example of each class, int64."""
    classes, inverse = labels.unique(return_inverse=True)
    places = torch.arange(len(labels))
    return places.new_full((len(classes),), len(labels)).scatter_reduce(0, inverse, places, "amin")


def _some(training: Tensor, firsts: Tensor, size: int) -> Tensor:
    """The first `size` of the training examples, bool (N,), with one of each class among them."""
    if not len(firsts) <= size <= training.sum():
        raise ValueError(
            f"train_size {size} does not fit: there are {training.sum()} training images of "
            f"{len(firsts)} classes, each of which needs one"
        )
    chosen = torch.zeros_like(training)
    chosen[firsts] = True
    others = (training & ~chosen).nonzero().flatten()
    chosen[others[: size - len(firsts)]] = True
    return chosen
