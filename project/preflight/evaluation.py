"""Refuses a validation whose numbers depend on chance or on how examples are batched."""

import math
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import LambdaCallback
from torch.utils.data import DataLoader

from ..engine.batch_size import batch_size_of
from ..engine.values import Batch, first
from .check import Check, Verdict
from .copies import bare_trainer, copy_of, unseen
from .examples import apply
from .layers import few, layers_in_mode


class EvaluationCheck(Check):
    """Refuses a validation that gives other numbers the second time or in uneven batches."""

    split = "val"
    examples = 128

    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        third = max(1, (batch_size_of(batch[0]) or 0) // 3)
        head = tuple(first(values, third) for values in batch)
        tail = tuple(apply(lambda t: t[third:], values) for values in batch)
        twin = copy_of(model)
        training: list[str] = []

        def watch(trainer: L.Trainer, twin: L.LightningModule, *_: Any) -> None:
            training[:] = layers_in_mode(twin, training=True)

        watcher = LambdaCallback(on_validation_batch_end=watch)
        uneven = [part for part in (head, tail) if batch_size_of(part[0])]
        batchings: Any = ([batch], [batch], uneven)
        with unseen():
            once, again, in_parts = (
                bare_trainer(trainer, callbacks=[watcher]).validate(
                    twin, DataLoader(batches, batch_size=None), verbose=False
                )[0]
                for batches in batchings
            )
        numbers = {name: [once[name], again[name], in_parts[name]] for name in once}
        return self.verdict(_why(training, numbers), **numbers)


def _why(training: list[str], numbers: dict[str, list[float]]) -> str:
    if training:
        return (
            f"{few(training)} is in training mode during validation: dropout is on and "
            "BatchNorm learns from it; something calls train()"
        )
    for name, (once, again, in_parts) in numbers.items():
        if math.isnan(once) and math.isnan(again):  # as that of a class without examples
            continue
        if once != again:
            return f"{name} is {once:.6g} and then {again:.6g}: it draws random numbers"
        if abs(in_parts - once) > 1e-4 * max(1.0, abs(once)):
            return (
                f"{name} is {once:.6g} in one batch and {in_parts:.6g} in two uneven ones: it "
                "is averaged over batches and not over examples"
            )
    return ""
