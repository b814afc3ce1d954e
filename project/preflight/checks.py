"""The list of all checks, and the callback that carries them out."""

import lightning as L
from lightning.pytorch.callbacks import Callback

from ..engine.internals import end_after
from .check import Check, Verdict
from .data_stream import DataStreamCheck
from .evaluation import EvaluationCheck
from .init_loss import InitLossCheck
from .overfit import OverfitOneBatch
from .split_overlap import SplitOverlapCheck
from .zero_input import ZeroInputCheck

CHECKS: list[type[Check]] = [
    InitLossCheck,
    OverfitOneBatch,
    ZeroInputCheck,
    DataStreamCheck,
    SplitOverlapCheck,
    EvaluationCheck,
]


class Preflight(Callback):
    """Carries out all checks at the start of a fit, which then ends without a step.

    Args:
        trained: Whether the model is trained already, so that it has no initial loss to look at.
    """

    def __init__(self, trained: bool) -> None:
        self.checks = [check for check in CHECKS if not (trained and check is InitLossCheck)]
        self.verdicts: list[Verdict] = []

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for check in self.checks:
            try:
                verdict = check().announced(trainer, pl_module)
            except Exception as error:  # from the user's code, which may fail in one check alone
                verdict = Verdict(check.__name__, False, f"{type(error).__name__}: {error}")
            self.verdicts.append(verdict)
        end_after(trainer, 0)
