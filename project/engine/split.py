"""Splits into training, validation and test, at random or by the content of each image.

In a split by content, an image stays in its part when other images are added or removed.

Legend: N images.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .datamodule import Split


def at_random(
    total: int,
    train_size: int | None,
    val_size: int | float,
    test_size: int | float,
    split_seed: int,
) -> dict[Split, Tensor]:
    """Return the indices of the examples of each part, int64.

    Args:
        total: Number of examples.
        train_size: Number of training examples; by default all that are in no other part.
        val_size: Number of validation examples, or their share if it is below 1.
        test_size: Number of test examples, or their share if it is below 1.
        split_seed: Random seed of the split.
    """
    val, test = _number(val_size, total), _number(test_size, total)
    train = total - val - test if train_size is None else train_size
    if train < 1 or train + val + test > total:
        sizes = [f"val_size {val}"] + ([f"test_size {test}"] if test else [])
        needed = "leaves none for training of"
        if train_size is not None:
            sizes.insert(0, f"train_size {train}")
            needed = "does not fit"
        raise ValueError(f"{' + '.join(sizes)} {needed} the {total} images that there are")
    order = torch.randperm(total, generator=torch.Generator().manual_seed(split_seed))
    parts: dict[Split, Tensor] = {"train": order[:train]}
    rest = order[train:]
    if val:
        parts["val"] = rest[:val]
    if test:
        parts["test"] = rest[val:][:test]
    return parts


def _number(size: int | float, total: int) -> int:
    if size < 0 or (size > 1 and size != int(size)):
        raise ValueError(f"size {size} is neither a number of examples nor a share below 1")
    return round(size * total) if size < 1 else int(size)


def numbers(digests: Sequence[bytes], seed: int) -> Tensor:
    """Return a number in [0, 1) for each image, float64 (N,), given by its content and the seed.

    Args:
        digests: Hashes of the images' content. Copies of an image get the same number.
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
    """Assign images to training, validation and test by their numbers.

    The test set gets the lowest numbers, validation the next ones, and training the others. The
    parts therefore have their shares up to chance, and adding, removing or renaming an image moves
    no other image. There is one exception, since no class may lack training images: if all images
    of a class would fall outside training, the one with the highest number is used for training,
    and an image added to that class later can move it back.

    Args:
        numbers: A number in [0, 1) for each image, float64 (N,).
        labels: Class of each image, int64 (N,).
        shares: Shares of validation and test, from 0 to 1.
        train_size: Number of training images; by default all that are in no other part. The image
            with the highest number of each class is taken first, then the highest of all, so that a
            smaller training set is a part of a larger one.

    Returns:
        Indices of the images of each part, int64, in descending order of their numbers.
    """
    test, val = shares.get("test", 0.0), shares.get("val", 0.0)
    if not (test >= 0 and val >= 0 and test + val < 1):
        given = " + ".join(f"{split}_size {share:g}" for split, share in shares.items())
        raise ValueError(f"{given}: shares can't be negative, and must add up to less than 1")
    order = numbers.argsort(descending=True, stable=True)
    firsts = _first_of_each(labels[order])
    # Compared by number rather than by image, so that copies of an image stay together.
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
    """Say why there are no validation images, and the share that would give one, if any."""
    found = f"none of the {total} images falls into validation by val_size {val:g}: "
    if not len(ranked):
        return f"{found}there are too few; set --data.val_size 0 to train without"
    enough = math.ceil(100 * (ranked[-1].item() - test) + 1e-6) / 100
    return f"{found}set --data.val_size {enough:g}, by which there is one, or another split_seed"


def _first_of_each(labels: Tensor) -> Tensor:
    """Return the position of the first example of each class, int64."""
    classes, inverse = labels.unique(return_inverse=True)
    places = torch.arange(len(labels))
    return places.new_full((len(classes),), len(labels)).scatter_reduce(0, inverse, places, "amin")


def _some(training: Tensor, firsts: Tensor, size: int) -> Tensor:
    """Mark the first `size` training examples, bool (N,), including at least one of each class."""
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
