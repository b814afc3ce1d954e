"""What the machinery expects of networks and of data."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class ClassLogits(Protocol):
    """A network whose outputs (N, num_classes) are logits, trained by cross-entropy."""

    num_classes: int
    label_smoothing: float
