"""Refuses a split whose parts share examples."""

import lightning as L

from ..engine.datamodule import StreamDataModule
from ..engine.values import Batch
from .check import Check, Verdict
from .examples import are_images


class SplitOverlapCheck(Check):
    """Refuses validation images that are training images too, by a hash of their content.

    Other inputs, such as short texts or rows of a table, may be equal by nature: of those, it says
    how many there are, and passes.
    """

    split = "val"

    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, StreamDataModule):
            return self.skipped("the data module is not a StreamDataModule")
        place = {digest: i for i, digest in enumerate(data.digests("train"))}
        val = data.digests("val")
        shared = [(place[digest], i) for i, digest in enumerate(val) if digest in place]
        found = (
            f"{len(shared)} of the {len(val)} validation examples are training examples too, so "
            "that their metrics say nothing about new ones: see the split, or remove what is "
            f"there twice (training and validation example, from 0: {shared[:3]})"
        )
        fault, note = (found, "") if are_images(batch[0]) else ("", found)
        if not shared:
            fault = note = ""
        return self.verdict(fault, note, validation=len(val), shared=len(shared))
