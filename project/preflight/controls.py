"""Controls: checks of what a run should not depend on."""

import math
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, LambdaCallback
from torch.utils.data import DataLoader

from ..engine.image_datamodule import ImageDataModule
from ..engine.internals import end_after, make_loader
from ..engine.values import Batch
from .check import Check, OverfitOneBatch, Verdict
from .init_loss import InitLossCheck, label_entropy
from .rehearsal import (
    bare_trainer,
    copy_of,
    few,
    layers_in_mode,
    mostly_frozen,
    rehearse,
    unseen,
)


class ZeroInputCheck(Check):
    """Images of zeros must train worse than real ones, and no better than the labels' entropy.

    That is the lowest cross-entropy of outputs that know how frequent each class is, and no more.
    """

    examples = 32
    num_steps = 50
    budget_s = 30.0

    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        images, labels = batch
        seen, _ = rehearse(trainer, model, batch, self.num_steps, budget_s=self.budget_s / 2)
        zeros = (torch.zeros_like(images), labels)
        steps = max(len(seen.losses), 1)  # the same for both
        seen_of_zeros, _ = rehearse(trainer, model, zeros, steps)
        loss, loss_of_zeros = seen.cross_entropy, seen_of_zeros.cross_entropy
        entropy = label_entropy(labels)
        fault = note = ""
        if loss_of_zeros < 0.8 * entropy:
            fault = (
                f"images of zeros train to a loss of {loss_of_zeros:.3g}, where the entropy of the "
                f"labels is {entropy:.3g}: labels are learnt from something else than images"
            )
        elif math.inf > loss >= loss_of_zeros:
            fault = f"images train no better than zeros ({loss:.3g} and {loss_of_zeros:.3g})"
            if seen.out_of_time or mostly_frozen(model):
                fault, note = "", f"not found out: in {steps} steps, {fault}"
        verdict = self.verdict(fault, loss=loss, loss_of_zeros=loss_of_zeros, entropy=entropy)
        verdict.diagnosis = fault or note
        return verdict


class EvaluationCheck(Check):
    """Validation must give the same numbers twice, and however the examples are batched."""

    split = "val"
    examples = 128

    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        images, labels = batch
        third = max(1, len(labels) // 3)
        uneven = [(images[:third], labels[:third]), (images[third:], labels[third:])]
        twin = copy_of(model)
        training: list[str] = []

        def watch(trainer: L.Trainer, twin: L.LightningModule, *_: Any) -> None:
            training[:] = layers_in_mode(twin, training=True)

        watcher = LambdaCallback(on_validation_batch_end=watch)
        batchings: Any = ([batch], [batch], uneven)
        with unseen():
            once, again, in_parts = (
                bare_trainer(trainer, callbacks=[watcher]).validate(
                    twin, DataLoader(batches, batch_size=None), verbose=False
                )[0]
                for batches in batchings
            )
        numbers = {name: [once[name], again[name], in_parts[name]] for name in once}
        return self.verdict(self._why(training, numbers), **numbers)

    @staticmethod
    def _why(training: list[str], numbers: dict[str, list[float]]) -> str:
        if training:
            return (
                f"{few(training)} is in training mode during validation: dropout is on and "
                "BatchNorm learns from it; something calls train()"
            )
        for name, (once, again, in_parts) in numbers.items():
            if once != again:
                return f"{name} is {once:.6g} and then {again:.6g}: it draws random numbers"
            if abs(in_parts - once) > 1e-4 * max(1.0, abs(once)):
                return (
                    f"{name} is {once:.6g} in one batch and {in_parts:.6g} in two uneven ones: it "
                    "is averaged over batches and not over examples"
                )
        return ""


class DataStreamCheck(Check):
    """The first training batch must be the same twice, whatever the global random state is."""

    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        if trainer.datamodule is None:  # type: ignore[attr-defined]
            return self.skipped("a loader is not made twice")
        with unseen():  # if the first draws from the random state, the second finds another one
            one, other = (next(iter(make_loader(trainer, "train"))) for _ in range(2))
        same = all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        fault = (
            "two loaders of the same seed give other batches: the order or the augmentation draws "
            "from the global random state, so that no run can be repeated or resumed exactly"
        )
        return self.verdict("" if same else fault)


class SplitOverlapCheck(Check):
    """Training and validation must not share examples, by the hash of their content."""

    split = "val"

    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, ImageDataModule):
            return self.skipped("the data are no ImageDataModule")
        place = {digest: i for i, digest in enumerate(data.digests("train"))}
        val = data.digests("val")
        shared = [(place[digest], i) for i, digest in enumerate(val) if digest in place]
        fault = (
            f"{len(shared)} of the {len(val)} validation examples are training examples too, so "
            "that their metrics say nothing about new images: see the split, or remove what is "
            f"there twice (training and validation example, from 0: {shared[:3]})"
        )
        return self.verdict(fault if shared else "", validation=len(val), shared=len(shared))


CHECKS: list[type[Check]] = [InitLossCheck, OverfitOneBatch, ZeroInputCheck]
CHECKS += [DataStreamCheck, SplitOverlapCheck, EvaluationCheck]


class Preflight(Callback):
    """Carries out all checks at the start of a fit, which then ends without a step."""

    def __init__(self, trained: bool) -> None:
        self.checks = [check for check in CHECKS if not (trained and check is InitLossCheck)]
        self.verdicts: list[Verdict] = []

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for check in self.checks:
            try:
                verdict = check().announced(trainer, pl_module)
            except Exception as error:  # of the user's code, which may fail in one check alone
                verdict = Verdict(check.__name__, False, f"{type(error).__name__}: {error}")
            self.verdicts.append(verdict)
        end_after(trainer, 0)
