"""The command line: what its commands build, run and say."""

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ProgressBar as LightningBar
from lightning.pytorch.utilities import rank_zero_info

from ..callbacks import ProgressBar
from ..engine.datamodule import StreamDataModule
from ..engine.protocols import class_names_of, own_objective
from ..engine.weights import init_from
from ..preflight.check import Verdict
from ..runs.errors import UsageError
from . import translation
from .check import CHECK_TRAINER, run_checks
from .command_line import CommandLine
from .evaluate import (
    PREDICT_TRAINER,
    loggers_of,
    print_metrics,
    record_result,
    take_weights,
    use_photos,
    write_predictions,
)
from .fit import check_resumed, print_summary, train
from .fit_trainer import fit_arguments, listed
from .limits import check_callbacks
from .lr_find import LR_FIND_TRAINER, find_range
from .lr_range import LRRange
from .plan import RunPlan, make_plan
from .trainer import Trainer

# Lightning's advertising, and a deprecation between the versions of Lightning and torch.
logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
    lambda record: "Tip:" not in record.getMessage()
)
warnings.filterwarnings("ignore", message=".*LeafSpec.*")
# `sync_dist` is not needed: torchmetrics has already reduced them over the processes.
warnings.filterwarnings("ignore", message="It is recommended to use `self.log.*sync_dist")

# What a command needs its trainer to be, whatever the options say.
TRAINER = {"check": CHECK_TRAINER, "lr_find": LR_FIND_TRAINER, "predict": PREDICT_TRAINER}


class CLI(CommandLine):
    """A command of COMMANDS: parses, builds and runs.

    Attributes:
        plan: What was decided before anything was built, such as the run folder.
        verdicts: What `check` found.
        lr_range: What `lr_find` found.
    """

    trainer: Trainer
    lr_range: LRRange

    def __init__(self, args: list[str]) -> None:
        self.plan = RunPlan()
        self.verdicts: list[Verdict] = []
        try:
            super().__init__(args)
        finally:
            self.plan.release()

    @property
    def run_folder(self) -> Path:
        """Folder of the run that `fit` has trained."""
        return self.plan.folder

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        self.plan = make_plan(str(self.subcommand), config, self.plain_config)
        if config.get("images"):
            use_photos(config, self.plan)

    def instantiate_classes(self) -> None:
        with translation.of_building():
            super().instantiate_classes()

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        options, command = self.config_init[self.subcommand], str(self.subcommand)
        trainer = options.trainer
        callbacks, loggers = listed(trainer.callbacks), []
        if trainer.logger not in (None, True, False):
            loggers = listed(trainer.logger)
        check_callbacks(callbacks)
        own_bar = any(isinstance(callback, LightningBar) for callback in callbacks)
        if trainer.enable_progress_bar is not False and not own_bar:
            callbacks.append(ProgressBar())
        if command == "fit":
            given = self.plan, options, self.command, self.model, callbacks, loggers
            return super().instantiate_trainer(**kwargs, **fit_arguments(*given))
        used = loggers_of(command, loggers)
        own = {"callbacks": callbacks, "logger": used, "enable_checkpointing": False}
        return super().instantiate_trainer(**kwargs | own | TRAINER.get(command, {}))

    def after_instantiate_classes(self) -> None:
        config, plan = self.config[self.subcommand], self.plan
        if self.trainer.strategy.root_device.type == "cpu":
            # Lightning sets it. AdamW would then load the driver in each step: 5 % of a small one.
            os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
        data, ranks = self.datamodule, self.trainer.world_size
        # Said here once, and not by each of the processes.
        if isinstance(data, StreamDataModule) and data.batch_size % ranks:
            raise UsageError(
                f"--data.batch_size {data.batch_size} is over all processes: use a multiple of "
                f"{ranks}"
            )
        names = class_names_of(self.datamodule)
        if plan.checkpoint and self.subcommand == "fit":
            check_resumed(plan, self.model, names)
        elif plan.checkpoint:
            take_weights(plan, self.model, self.datamodule, names)
            self.config_init[self.subcommand].ckpt_path = None
        elif config.init_from:
            rank_zero_info(init_from(Path(config.init_from), self.model, names))
        self.plan = replace(plan, checkpoint=None)  # which frees the memory
        if config.compile:  # in place, which keeps the names of the weights
            self.model.forward = torch.compile(self.model.forward)

    def fit(self, **kwargs: Any) -> None:
        train(self.trainer, self.plan, self.config.fit.max_wait_s, **kwargs)
        self.plan = print_summary(self.trainer, self.plan)

    def validate(self, model: L.LightningModule, verbose: bool = True, **kwargs: Any) -> None:
        results = self.trainer.validate(model, verbose=False, **kwargs)
        if verbose and self.trainer.is_global_zero:
            print_metrics(results)

    def test(self, model: L.LightningModule, verbose: bool = True, **kwargs: Any) -> None:
        results = self.trainer.test(model, verbose=False, **kwargs)
        if verbose and self.trainer.is_global_zero:
            print_metrics(results)
        record_result(self.trainer, self.plan, self.datamodule)

    def predict(self, model: L.LightningModule, **kwargs: Any) -> None:
        batches: Any = self.trainer.predict(model, **kwargs)
        if self.trainer.predict_loop.num_dataloaders > 1:  # a list for each of them
            batches = [batch for loader in batches for batch in loader]
        write_predictions(batches, self.plan, self.datamodule, own_objective(model))

    def check(self, model: L.LightningModule, datamodule: L.LightningDataModule) -> None:
        trained = bool(self.config.check.init_from)
        self.verdicts = run_checks(self.trainer, model, datamodule, self._results(), trained)

    def lr_find(self, model: L.LightningModule, datamodule: Any, **kwargs: Any) -> None:
        self.lr_range = find_range(self.trainer, model, datamodule, self._results(), **kwargs)

    def _results(self) -> Path:
        """Return the folder of all runs of this name, for results that belong to none of them."""
        return Path(self.plan.config["trainer"]["default_root_dir"], self.plan.config["name"])


def main(args: Sequence[str] | None = None) -> CLI:
    """Run a command, as `main(["fit", "--config", "fashion_mnist"])` from a notebook.

    Args:
        args: Arguments of the command line, which are those of this process by default.

    Returns:
        The command line object, with `trainer`, `model` (of the best epoch) and `datamodule`.

    Raises:
        UsageError: If the arguments can't be carried out.
    """
    return CLI(list(sys.argv[1:] if args is None else args))


def run(args: list[str]) -> int:
    """Carry out a command of the shell.

    Returns:
        Its exit code: 1 if a check failed.
    """
    with translation.of_running():
        cli = main(args)
    return 0 if all(verdict.passed for verdict in cli.verdicts) else 1
