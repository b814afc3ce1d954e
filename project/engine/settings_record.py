"""The settings of a run, in every logger that shows them."""

from pathlib import Path
from typing import Any

import lightning as L
import yaml
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger

from ..runs.settings import flatten
from .harmless import Harmless
from .loggers import ContinuingCSVLogger, tensorboards
from .run_record import find_record
from .saving import BestCheckpoint


class SettingsRecord(Harmless, Callback):
    """Gives the settings of a run to its loggers.

    TensorBoard shows the configuration as text, and the settings beside the best metrics of the run
    at its end. Other loggers get the settings at the start of training, by their names on the
    command line. `metrics.csv` has `config.yaml` beside it.

    Args:
        config: Configuration of the run, in plain types.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for logger in trainer.loggers if trainer.is_global_zero else []:
            with self.harmless(f"the settings in {type(logger).__name__}"):
                if isinstance(logger, TensorBoardLogger):
                    self._write_text(logger, trainer.global_step)
                elif not isinstance(logger, ContinuingCSVLogger):
                    logger.log_hyperparams(self._settings())

    def _write_text(self, logger: TensorBoardLogger, step: int) -> None:
        text = f"```yaml\n{yaml.safe_dump(self.config, sort_keys=False)}```"
        writer = logger.experiment
        if len(list(Path(logger.log_dir).glob("events.*"))) == 1:  # else resumed: it is there
            writer.add_text("config", text, step)

    def _settings(self) -> dict[str, Any]:
        """Return the settings by their names on the command line, without those not set."""
        return {name: value for name, value in flatten(self.config) if value is not None}

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        saves = [c for c in trainer.checkpoint_callbacks if isinstance(c, BestCheckpoint)]
        if not trainer.is_global_zero or not saves or not Path(saves[0].best_model_path).is_file():
            return
        record = find_record(trainer)
        known: Any = {saves[0].monitor: saves[0].best_model_score}
        known = record.record.metrics if record and record.record else known
        metrics = {f"best/{name}": float(value) for name, value in known.items()}
        # TensorBoard would show true and false as 1 and 0.
        settings = {k: str(v) if isinstance(v, bool) else v for k, v in self._settings().items()}
        for logger in tensorboards(trainer):
            # A resumed run replaces what there is from the step after the last one on.
            with self.harmless("the settings and best metrics in TensorBoard"):
                logger.log_hyperparams(settings, metrics, trainer.global_step)
