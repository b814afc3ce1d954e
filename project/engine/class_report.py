"""What to say about training classes of unequal size."""

from collections.abc import Sequence

from torch import Tensor

UNEQUAL = 1.5  # times; ten equal classes of 50 images stay below it if a random fifth is cut off


def unequal_classes(
    train: Tensor, val: Tensor | None, class_names: Sequence[str], balanced: bool
) -> str:
    """Return how unequal the training classes are and what to do about it, or nothing.

    Args:
        train: Classes of the training examples, int64 (N,).
        val: Classes of the validation examples, int64 (N,), if there are any.
        class_names: Names of the classes.
        balanced: Whether the training draws all classes equally often.
    """
    counts = train.bincount(minlength=len(class_names))[: len(class_names)]
    few, many = int(counts.argmin()), int(counts.argmax())
    if counts[many] <= UNEQUAL * counts[few]:
        return ""
    split, labels = ("train", train) if val is None else ("val", val)
    constant = (labels == many).double().mean().item()
    most, least = class_names[many], class_names[few]
    images = "image" if counts[many] == 1 else "images"
    return (
        f"Unequal classes: {counts[many]} training {images} of {most}, {counts[few]} of "
        f"{least}. Always predicting {most} would score a {split}/acc of {constant:.3f}.\n"
        + _advice(int((counts == 0).sum()), len(counts), balanced)
    )


def _advice(lacking: int, classes: int, balanced: bool) -> str:
    if lacking:
        return (
            f"{lacking} of {classes} classes have no training image at all: the network can't "
            "learn them, whatever the sampling."
        )
    if balanced:
        return "All of them are drawn equally often, as --data.sampling class_balanced says."
    return "To train on all of them equally often: --data.sampling class_balanced"
