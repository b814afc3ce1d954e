"""Refuses a training stream that depends on the global random state."""

import lightning as L

from ..engine.internals import make_loader
from ..engine.values import Batch
from .check import Check, Verdict
from .copies import unseen
from .examples import equal


class DataStreamCheck(Check):
    """Refuses a first training batch that is another one if the global random state is."""

    def measure(self, trainer: L.Trainer, model: L.LightningModule) -> Verdict:
        if trainer.datamodule is None:  # type: ignore[attr-defined]
            return self.skipped("a loader is not made twice")
        with unseen():  # if the first draws from the random state, the second finds another one
            one, other = (next(iter(make_loader(trainer, "train"))) for _ in range(2))
        fault = (
            "two loaders of the same seed give other batches: the order or the augmentation draws "
            "from the global random state, so that no run can be repeated or resumed exactly"
        )
        return self.verdict("" if equal(one, other) else fault)

    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        return self.measure(trainer, model)
