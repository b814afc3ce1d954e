"""Comparison of a checkpoint with a model and its data: tensors by shape, classes by name."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..runs.classes import difference, positions, same_names, saved_classes
from .checkpoint_io import load_checkpoint
from .protocols import HasObjective

LISTED = 6  # most names in a message; the others are only counted


def check_fits(path: Path, checkpoint: dict[str, Any], model: nn.Module, way_out: str = "") -> None:
    """Refuse a checkpoint of another model, judged by the names and shapes of its tensors.

    Args:
        path: Path of the checkpoint.
        checkpoint: Content of the checkpoint.
        model: Model that the weights will be loaded into.
        way_out: Advice for the error message; by default, to use the config of the checkpoint's
            run.
    """
    if differing := _differing(checkpoint, model):
        name = differing[0]
        saved, wanted = checkpoint["state_dict"].get(name), model.state_dict().get(name)
        old, new = map(_form, (saved, wanted))
        raise ValueError(
            f"{path} holds another model than {type(model).__name__}: {len(differing)} tensors "
            f"differ, such as {name}, {old} in the file and {new} in the model. "
            f"{way_out or 'Use the config of its run: --run FOLDER'}"
        )


def take_classes(
    path: Path, checkpoint: dict[str, Any], model: nn.Module, names: list[str] | None
) -> str:
    """Check that a checkpoint has the classes of the data, before it is measured on them.

    If only the order of the classes differs, the outputs of the classifier are reordered.

    Args:
        path: Path of the checkpoint.
        checkpoint: Content of the checkpoint.
        model: Model that the weights will be loaded into.
        names: Names of the data's classes, in the order of their labels; None if they have none.

    Returns:
        A sentence that says what differed, or an empty string.

    Raises:
        ValueError: If the names differ.
    """
    saved = saved_classes(checkpoint)
    if names is None:
        return ""
    if saved is None:
        return f"{path} has no class names: whether its classes are those of the data is not known."
    differs = difference(saved, names)
    if differs and same_names(saved, names) and _has_outputs(model, len(names)):
        order = torch.tensor(positions(saved, names))
        model.register_forward_hook(partial(_reorder, order))
        return f"The data's classes are in another order than the checkpoint's ({differs}): mapped."
    if differs:
        raise ValueError(
            f"the data have other classes than {path} was trained on ({differs}): give it the data "
            "that it was trained on with --data.root, or start a new run with --init_from"
        )
    return ""


def _has_outputs(model: nn.Module, number: int) -> bool:
    """Return whether a network has an output for each class."""
    return isinstance(model, HasObjective) and model.num_classes == number


def _reorder(order: Tensor, model: nn.Module, args: Any, outputs: Tensor) -> Tensor:
    return outputs[:, order.to(outputs.device)]


def check_same_classes(path: Path, checkpoint: dict[str, Any], names: list[str] | None) -> None:
    """Refuse to resume a run on data whose classes have other names, or another order."""
    saved = saved_classes(checkpoint)
    if saved and names and (differs := difference(saved, names)):
        raise ValueError(
            f"can't resume from {path}: its run had other classes ({differs}). Restore their "
            "names, or start a new run from its weights with --init_from"
        )


def init_from(path: Path, model: nn.Module, names: list[str] | None = None) -> str:
    """Load all weights of the same name and shape from a checkpoint, for a new training run.

    The last layer is loaded only if its classes are those of the data, and its rows are put into
    their order.

    Args:
        path: Path of the checkpoint.
        model: Model, freshly initialised.
        names: Names of the data's classes, in the order of their labels; None if they have none.

    Returns:
        A sentence that says what was loaded.
    """
    checkpoint = load_checkpoint(path)
    fresh, saved = set(_differing(checkpoint, model)), saved_classes(checkpoint)
    weights, note = checkpoint["state_dict"], ""
    if names and saved is None:
        note = ". It has no class names: the last layer may be of other classes"
    elif names and saved and (differs := difference(saved, names)):
        head = _head(model, len(names))
        if not head and len(saved) == len(names):
            raise ValueError(
                f"{path} was trained on other classes ({differs}), and {type(model).__name__} has "
                f"no layer of {len(names)} outputs that could be initialised for the new ones"
            )
        if same_names(saved, names):
            rows = positions(saved, names)
            weights |= {name: weights[name][rows] for name in head - fresh}
            note = f". The rows of {_listed(head)} follow the new order of the classes"
        else:
            fresh |= head
            note = f". The classes differ ({differs}), so that the last layer is new"
    taken = {k: v for k, v in weights.items() if k not in fresh}
    if not taken:
        raise ValueError(f"{path} has no tensor in common with {type(model).__name__}")
    model.load_state_dict(taken, strict=False)
    rest = f"; initialised anew: {_listed(fresh)}" if fresh else ""
    return f"{len(taken)} tensors from {path}{rest}{note}"


def _head(model: nn.Module, num_classes: int) -> set[str]:
    """Return the names of the parameters of the last layer that has an output for each class."""
    for name, module in reversed(list(model.named_modules())):
        own = dict(module.named_parameters(prefix=name, recurse=False)).items()
        if any(p.ndim > 1 for _, p in own) and all(p.shape[:1] == (num_classes,) for _, p in own):
            return {key for key, _ in own}
    return set()


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    if len(ordered) <= LISTED:
        return ", ".join(ordered)
    return f"{len(ordered)} tensors, from {ordered[0]} to {ordered[-1]}"


def _form(tensor: Tensor | None) -> str:
    """Return a tensor's shape, marked if it is complex: a copy would keep only the real part."""
    if tensor is None:
        return "absent"
    return f"{'complex ' if tensor.is_complex() else ''}{tuple(tensor.shape)}"


def _differing(checkpoint: dict[str, Any], model: nn.Module) -> list[str]:
    saved = {name: _form(tensor) for name, tensor in checkpoint["state_dict"].items()}
    wanted = {name: _form(tensor) for name, tensor in model.state_dict().items()}
    return sorted(name for name in saved | wanted if saved.get(name) != wanted.get(name))
