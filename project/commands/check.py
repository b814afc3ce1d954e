"""`check`: the verdicts of the pre-flight alone, as a table and as `check.json`."""

from pathlib import Path
from typing import Any

import lightning as L

from ..preflight.check import Verdict, describe, write_verdicts
from .trainer import Trainer

CHECK_TRAINER: dict[str, Any] = {"num_sanity_val_steps": 0, "enable_model_summary": False}


def run_checks(
    trainer: Trainer,
    model: L.LightningModule,
    data: L.LightningDataModule,
    folder: Path,
    trained: bool,
) -> list[Verdict]:
    """Print a table of the verdicts, and write it beside the runs of that name.

    Args:
        trainer: Trainer, set up.
        model: Model, which stays as it is.
        data: Data module whose examples are used.
        folder: Folder of `check.json`.
        trained: Whether the model has the weights of another run.
    """
    verdicts = trainer.check(model, data, trained)
    if trainer.is_global_zero:
        path = folder / "check.json"
        write_verdicts(path, verdicts)
        print(f"{describe(verdicts)}\nAll that was measured: {path}")
    return verdicts
