"""What the layers of a network show: their mode, what is frozen, and what passes through them."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from ..engine.internals import BatchNorm, Dropout
from .copies import unseen


@dataclass(frozen=True)
class Layers:
    """What was seen of the layers, in the order in which a batch passes through them."""

    not_finite: list[str] = field(default_factory=list)  # names of those with such outputs
    dead: dict[str, float] = field(default_factory=dict)  # share of a ReLU's units that stay 0
    hidden: list[str] = field(default_factory=list)  # trainable, and not parts of the model


def look_at_layers(model: nn.Module, inputs: Any) -> Layers:
    """Pass a batch through a model in training mode, and return what its layers show.

    A `forward` that takes something else than the inputs is not looked into.
    """
    seen = Layers()
    names = {layer: name for name, layer in model.named_modules()}

    def look(layer: nn.Module, args: Any, output: Any) -> None:
        if [*layer.children()] or not isinstance(output, Tensor):
            return
        name = names.get(layer, type(layer).__name__)
        if layer not in names and any(p.requires_grad for p in layer.parameters()):
            seen.hidden.append(name)
        if not output.isfinite().all():
            seen.not_finite.append(name)
        if isinstance(layer, nn.ReLU):
            seen.dead[name] = (output <= 0).flatten(1).all(0).double().mean().item()

    with register_module_forward_hook(look), unseen(), torch.no_grad(), suppress(Exception):
        model.train()(inputs)
    return seen


def layers_in_mode(model: nn.Module, training: bool) -> list[str]:
    """Return the names of the layers in a mode, of those to which it makes a difference.

    Args:
        model: Model whose layers are looked at.
        training: Whether the mode is training or evaluation.
    """
    # A part of which everything is frozen may be in evaluation mode as a whole.
    frozen = [n for n, m in model.named_modules() if n and not training and is_frozen(m)]

    def matters(name: str, module: nn.Module) -> bool:
        if isinstance(module, BatchNorm):  # without gradients it belongs to a frozen part
            return module.weight is None or module.weight.requires_grad
        inside = any(name.startswith(f"{part}.") for part in frozen)
        return isinstance(module, Dropout) and module.p > 0 and not inside

    return [n for n, m in model.named_modules() if m.training == training and matters(n, m)]


def is_frozen(module: nn.Module) -> bool:
    """Return whether a module has parameters, and none of them is trained."""
    parameters = list(module.parameters())
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def mostly_frozen(model: nn.Module) -> bool:
    """Return whether more than half of the parameters are frozen.

    Such a network need not be able to learn a batch by heart.
    """
    total = sum(p.numel() for p in model.parameters())
    return 2 * sum(p.numel() for p in model.parameters() if not p.requires_grad) > total


def highest_dropout(model: nn.Module) -> float:
    return max((m.p for m in model.modules() if isinstance(m, Dropout)), default=0.0)


def few(names: list[str]) -> str:
    """Return the first three names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
