"""Refuses a split whose parts share examples."""

import lightning as L

from ..engine.datamodule import StreamDataModule
from ..engine.values import Batch
from .check import Check, Verdict


class SplitOverlapCheck(Check):
    """Refuses validation examples that are training examples too, by the hash of their inputs."""

    split = "val"

    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, StreamDataModule):
            return self.skipped("the data module is not a StreamDataModule")
        place = {digest: i for i, digest in enumerate(data.digests("train"))}
        val = data.digests("val")
        shared = [(place[digest], i) for i, digest in enumerate(val) if digest in place]
        fault = (
            f"{len(shared)} of the {len(val)} validation examples are training examples too, so "
            "that their metrics say nothing about new ones: see the split, or remove what is "
            f"there twice (training and validation example, from 0: {shared[:3]})"
        )
        return self.verdict(fault if shared else "", validation=len(val), shared=len(shared))
