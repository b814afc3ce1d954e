"""The command line: LightningCLI with the project's defaults, links, run folder and messages."""

import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from filelock import BaseFileLock
from jsonargparse import Namespace
from jsonargparse.typing import PositiveFloat
from lightning.fabric.plugins.environments import (  # type: ignore[attr-defined]
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, RichProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.exceptions import SIGTERMException

from project import data, models  # noqa: F401  their classes can be given by name
from project.callbacks import (
    CurvesMonitor,
    EarlyStopping,
    FiniteCheck,
    InitLossCheck,
    LastCheckpoint,
    MonitorCheck,
    OverfitOneBatch,
    PredictionGrid,
    ProgressBar,
    RNGState,
    RunRecord,
    StepMonitor,
    TensorBoardRecord,
    run_checkpoints,
)
from project.callbacks.checks import Verdict, describe, write_verdicts
from project.checkpoint import AtomicCheckpointIO, check_fits, init_from, load_checkpoint
from project.loggers import is_rank_zero, run_loggers
from project.parser import HelpFormatter, Parser, expand, explain
from project.processes import SameStart, end_children, join, lost
from project.reports.predictions import write_predictions, write_values
from project.resume import FINISHED, check_resumable, find_unfinished, same_data
from project.run import (
    BEST,
    CONFIG,
    LAST,
    RECORD,
    claim_run,
    lock_run,
    monitor_mode,
    next_version,
    read_record,
    release_run,
    run_of,
    summary,
    times_tested,
    write_record,
)
from project.trainer import Trainer, skip_empty_hooks
from project.usage import TEXTS, WITHOUT_TORCH, UsageError

# Advertising, and a deprecation between the versions of Lightning and torch.
logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
    lambda record: "Tip:" not in record.getMessage()
)
warnings.filterwarnings("ignore", message=".*LeafSpec.*")
# The metrics are: torchmetrics has already reduced them over the processes.
warnings.filterwarnings("ignore", message="It is recommended to use `self.log.*sync_dist")


WITH_RUN = ("validate", "test", "predict")
USAGE = "python -m project {} [--config FILE] [--OPTION VALUE …]"
DESCRIPTION = """Train and test image classifiers, and compare what came out.

    python -m project fit --config synthetic
    python -m project fit --help                    the options of a command
    python -m project fit --model.help ResNet18     those of a class

An error is one sentence; add --debug for where it came from."""


class CLI(LightningCLI):
    """`python -m project <command>`: parses, builds, runs, and says what came out."""

    def __init__(self, args: list[str]) -> None:
        self.command = args
        self.run_folder = Path()
        self.lock: BaseFileLock | None = None
        self.verdicts: list[Verdict] = []
        try:
            super().__init__(
                L.LightningModule,
                L.LightningDataModule,
                subclass_mode_model=True,
                subclass_mode_data=True,
                trainer_class=Trainer,
                trainer_defaults={"default_root_dir": "runs", "devices": 1},
                seed_everything_default=0,
                parser_class=Parser,
                parser_kwargs={
                    "prog": "python -m project",
                    "description": DESCRIPTION,
                    "formatter_class": HelpFormatter,
                    "exit_on_error": False,
                    "allow_abbrev": False,
                    **{name: {"usage": USAGE.format(name)} for name in self.subcommands()},
                },
                args=args,
                save_config_callback=None,  # RunRecord does it
                auto_configure_optimizers=False,
                load_from_checkpoint_support=False,
            )
        finally:
            self._release()

    def _release(self) -> None:
        if self.lock is not None:
            self.lock.release()
            release_run(self.run_folder)

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        # Without the switch that would let a checkpoint run code when it is loaded.
        without = {"weights_only", "return_predictions"}
        commands = {k: v | without for k, v in LightningCLI.subcommands().items()}
        commands |= {name: {"model", "datamodule"} for name in ("check", "lr_find")}
        named = commands.keys() & self.command[:1]  # the parsers of the others would go unused
        return {name: commands[name] for name in named or commands}

    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        super()._add_subcommands(parser, **kwargs)
        commands = parser._subcommands_action
        assert commands is not None
        for name in WITHOUT_TORCH if {"-h", "--help"} & set(self.command[:1]) else ():
            commands.add_subcommand(name, Parser(), help="")
        for action in commands._choices_actions:
            action.help = text = TEXTS[action.dest]
            given = "--run runs/cifar/version_0" if action.dest in WITH_RUN else "--config cifar"
            example = f"python -m project {action.dest} {given}"
            commands.choices[action.dest].description = f"{text}\n\n    {example}"

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        text = "Folder of the run under --trainer.default_root_dir; by default the config's name."
        parser.add_argument("--name", type=str | None, help=text)
        text = "Run folder whose config and checkpoint are used, such as runs/cifar/version_0."
        parser.add_argument("--run", type=str | None, help=text)
        text = "Checkpoint whose weights, and nothing else, a new run starts from."
        parser.add_argument("--init_from", type=str | None, help=text)
        text = "Whether a new run is first checked to be able to work, on copies: see `check`."
        parser.add_argument("--preflight", type=bool, default=True, help=text)
        text = "Seconds that a process waits for the others of its run before it gives up."
        parser.add_argument("--max_wait_s", type=PositiveFloat, default=600.0, help=text)
        text = "Whether the model is compiled in place: a minute at first, the same checkpoints."
        parser.add_argument("--compile", type=bool, default=False, help=text)
        parser.add_class_arguments(LastCheckpoint, "checkpoint", skip={"path"})
        parser.add_class_arguments(PredictionGrid, "pictures")
        text = "Metric of the best epoch, which early stopping and ReduceLROnPlateau follow too."
        parser.add_argument("--monitor", type=str, default="val/loss", help=text)
        text = "Stops when the monitored metric no longer improves; by default never."
        parser.add_argument("--early_stopping", type=EarlyStopping | None, help=text)
        parser.link_arguments("monitor", "early_stopping.init_args.monitor")
        parser.link_arguments("monitor", "early_stopping.init_args.mode", compute_fn=monitor_mode)
        parser.link_arguments("monitor", "model.init_args.monitor")
        parser.link_arguments("seed_everything", "data.init_args.seed")
        for name in ("num_classes", "class_names", "in_channels", "image_size", "num_features"):
            parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        self.config = parser.parse_args(expand(self.command))

    def _parse_ckpt_path(self) -> None:
        """Keep the command line: Lightning would replace `--model.*` by what the checkpoint has."""

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        run = config.pop("run")
        if config.name is None:
            config.name = Path(str(config.config[0])).stem if config.config else "run"
        if self.subcommand == "fit":
            self._choose_run(config, Path(run) if run else None)
        elif self.subcommand in WITH_RUN and not config.ckpt_path:
            raise UsageError(
                f"{self.subcommand} needs trained weights: --run FOLDER or --ckpt_path FILE"
            )
        path = config.get("ckpt_path")
        self.checkpoint = load_checkpoint(Path(path)) if path else None
        if self.checkpoint and self.subcommand == "fit":
            rank_zero_info(check_resumable(self.checkpoint, self._plain_config(), self.finished))

    def _choose_run(self, config: Namespace, run: Path | None) -> None:
        """The folder to train in: that of the run to resume, or a new one."""
        folder = Path(config.trainer.default_root_dir, config.name)
        if config.ckpt_path == "last":
            run = find_unfinished(folder, locked=not is_rank_zero())
            config.ckpt_path = str(run / LAST) if run else None
            found = f"Resuming {run}." if run else f"No run in {folder} to resume: starting one."
            rank_zero_info(found)
        elif config.ckpt_path and run is None and Path(config.ckpt_path).name == LAST.name:
            run = run_of(Path(config.ckpt_path))  # others start a new run
        record = read_record(run) if run else {}
        self.finished = record.get("stopped_by") in FINISHED
        self.run_folder = run or folder / f"version_{next_version(folder)}"
        if is_rank_zero() and not config.trainer.fast_dev_run:
            self.run_folder = run or claim_run(folder)
            self.lock = lock_run(self.run_folder)
            if self.lock is None:
                raise UsageError(f"another process is training {self.run_folder}: let it finish")

    def _plain_config(self) -> dict[str, Any]:
        """The configuration in plain types, as in `config.yaml`."""
        command = str(self.subcommand)
        text = self._parser(command).dump(self.config[command], skip_unset=False)
        config: dict[str, Any] = yaml.safe_load(text)
        return config

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except ValueError as error:
            if "Does not validate" not in str(error):
                raise
            raise UsageError(explain(str(error), ())) from error

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        trainer = self._get(self.config_init, "trainer")
        own = trainer.callbacks or []
        callbacks: list[Callback] = own if isinstance(own, list) else [own]
        own_bar = any(isinstance(callback, RichProgressBar) for callback in callbacks)
        if trainer.enable_progress_bar is not False and not own_bar:
            callbacks.append(ProgressBar())
        if self.subcommand == "fit":
            callbacks = [RNGState(), *callbacks, *self._run_callbacks(trainer)]
            plugins = trainer.plugins or []
            plugins = plugins if isinstance(plugins, list) else [plugins]
            kwargs["plugins"] = [*plugins, AtomicCheckpointIO()]
            if not TorchElasticEnvironment.detect() and SLURMEnvironment.detect():
                # Lightning's own requeue saves in the middle of a step.
                kwargs["plugins"].append(SLURMEnvironment(auto_requeue=False))
            if trainer.logger in (None, True):
                step = self.checkpoint["global_step"] if self.checkpoint else 0
                kwargs["logger"] = run_loggers(self.run_folder, step)
        else:
            kwargs |= {"logger": False, "enable_checkpointing": False}
        if self.subcommand == "check":
            kwargs |= {"num_sanity_val_steps": 0, "enable_model_summary": False}
        if self.subcommand == "lr_find":
            off = ("limit_val_batches", "num_sanity_val_steps", "enable_model_summary")
            kwargs |= {"max_epochs": -1, "accumulate_grad_batches": 1} | dict.fromkeys(off, 0)
            self.model.lr_scheduler, self.model.warmup_steps = None, 0
            self.model.reference_batch_size = None  # what is found is for the batch size of now
        if self.subcommand == "predict":  # one process writes one file
            kwargs |= {"devices": 1, "num_nodes": 1, "strategy": "auto"}
        if trainer.accumulate_grad_batches < 1:
            raise UsageError("--trainer.accumulate_grad_batches must be 1 or more")
        try:
            made = super().instantiate_trainer(callbacks=callbacks, **kwargs)
        except TypeError as error:  # Lightning's, on the CPU
            if "`devices`" not in str(error):
                raise
            raise UsageError(f"--trainer.devices: {error}") from error
        skip_empty_hooks(made.callbacks)  # type: ignore[attr-defined]
        return made

    def _run_callbacks(self, trainer: Namespace) -> list[Callback]:
        stopping, last = (self._get(self.config_init, k) for k in ("early_stopping", "checkpoint"))
        monitor = self.config.fit.monitor
        start = f"at step {self.checkpoint['global_step']}" if self.checkpoint else "anew"
        callbacks: list[Callback] = [SameStart(start), MonitorCheck(monitor)]
        callbacks += [stopping] if stopping else []
        callbacks.append(FiniteCheck())
        if trainer.logger is not False:
            callbacks += [LearningRateMonitor(), StepMonitor()]
        if trainer.fast_dev_run:
            return callbacks
        if self.config.fit.preflight:
            callbacks += (
                [OverfitOneBatch()]
                if self.config.fit.init_from
                else [InitLossCheck(), OverfitOneBatch()]
            )
        config = self._plain_config()
        callbacks += [RunRecord(self.run_folder, config, self.command), TensorBoardRecord(config)]
        callbacks += [CurvesMonitor(), self._get(self.config_init, "pictures")]
        if trainer.enable_checkpointing is not False:
            callbacks += run_checkpoints(self.run_folder, monitor, last)
        return callbacks

    def after_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        if self.trainer.strategy.root_device.type == "cpu":
            # Lightning sets it, and AdamW then loads the driver anew at each step, for 0.1 ms.
            os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
        batch_size, ranks = getattr(self.datamodule, "batch_size", 0), self.trainer.world_size
        if batch_size % ranks:  # said here once, and not by each of the processes
            raise UsageError(
                f"--data.batch_size {batch_size} is over all processes: use a multiple of {ranks}"
            )
        if self.checkpoint:
            check_fits(Path(config.ckpt_path), self.checkpoint, self.model)
            if self.subcommand != "fit":  # which restores more than the weights
                self.model.load_state_dict(self.checkpoint["state_dict"])
                self.config_init[self.subcommand].ckpt_path = None
        elif self.subcommand == "fit" and config.init_from:
            rank_zero_info(init_from(Path(config.init_from), self.model))
        self.checkpoint = None  # free the memory
        if config.compile:  # in place, which keeps the names of the weights
            self.model.forward = torch.compile(self.model.forward)

    def fit(self, model: L.LightningModule, **kwargs: Any) -> None:
        join(self.trainer.strategy, self.config.fit.max_wait_s)
        try:
            self.trainer.fit(model, **kwargs | {"weights_only": True})
        except BaseException:
            end_children(self.trainer)
            raise

    def after_fit(self) -> None:
        if self.trainer.is_global_zero and (self.run_folder / RECORD).is_file():
            print(summary(self.run_folder))

    def after_test(self) -> None:
        config = self.config.test
        run = run_of(Path(config.ckpt_path))
        if not run or not self.trainer.is_global_zero:
            return
        record, trainer = read_record(run), config.trainer
        record["tested"] = record.get("tested", 0) + 1
        limit = trainer.limit_test_batches  # 1 is one batch, 1.0 all of them
        whole = (limit is None or repr(limit) == "1.0") and not trainer.fast_dev_run
        same = same_data(yaml.safe_load((run / CONFIG).read_text()), self._plain_config())
        if not whole or not same or Path(config.ckpt_path).name != BEST.name:
            print(
                f"Not the best checkpoint on the run's whole test set: {run}/{RECORD} has no result"
            )
        else:
            tested = {name: value.item() for name, value in self.trainer.callback_metrics.items()}
            record["metrics"] |= tested
            if "test" in (sets := getattr(self.datamodule, "sets", {})):
                record["examples"] |= {"test": len(sets["test"][2])}
        write_record(run, record)
        print(times_tested(record))

    def lr_find(self, model: L.LightningModule, **kwargs: Any) -> None:
        """Print both suggestions, and write them with a figure beside the runs of that name."""
        assert isinstance(self.trainer, Trainer)
        self.lr_range = self.trainer.lr_find(model, **kwargs)
        config = self.config.lr_find
        folder = Path(config.trainer.default_root_dir, config.name)
        if self.trainer.is_global_zero:
            self.lr_range.save(folder)
            print(f"{self.lr_range}\nFigure and numbers: {folder}/lr_find.png and .json")

    def check(self, model: L.LightningModule, **kwargs: Any) -> None:
        """Print a table of the verdicts, and write it beside the runs of that name."""
        assert isinstance(self.trainer, Trainer)
        self.verdicts = self.trainer.check(model, **kwargs)
        config = self.config.check
        path = Path(config.trainer.default_root_dir, config.name, "check.json")
        if self.trainer.is_global_zero:
            write_verdicts(path, self.verdicts)
            print(f"{describe(self.verdicts)}\nAll that was measured: {path}")

    def predict(self, model: L.LightningModule, **kwargs: Any) -> None:
        """Write label, class and probability of each test image to `predictions.csv`."""
        batches: Any = self.trainer.predict(model, **kwargs)
        checkpoint = Path(self.config.predict.ckpt_path)
        folder = run_of(checkpoint) or checkpoint.parent
        path = folder / "predictions.csv"
        outputs = torch.cat(batches)
        if outputs.ndim == 1:  # of a regression
            write_values(path, outputs, self.datamodule.sets["test"][1])
        else:
            write_predictions(path, outputs, self.datamodule)
        print(f"Predictions: {path}")


def main(args: Sequence[str] | None = None) -> CLI:
    """Run a command, as `main(["fit", "--config", "fashion_mnist"])` from a notebook.

    Args:
        args: The arguments of the command line, which are the default.

    Returns:
        The command line object, with `trainer`, `model` (of the best epoch) and `datamodule`.

    Raises:
        UsageError: If the arguments can't be carried out.
    """
    return CLI(list(sys.argv[1:] if args is None else args))


def run(args: list[str]) -> int:
    """Carry out a command of the shell.

    Returns:
        Its exit code: 1 if a check failed, 128 + n if signal n has stopped it.
    """
    try:
        cli = main(args)
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error
    except RuntimeError as error:
        if sentence := lost(error):
            raise ValueError(sentence) from error
        raise
    except SystemExit as stop:  # Lightning exits with 1 at Ctrl-C and with 0 at SIGTERM
        if isinstance(stop.__context__, KeyboardInterrupt):
            return 128 + signal.SIGINT
        if isinstance(stop, SIGTERMException):
            return 128 + signal.SIGTERM
        raise
    return 0 if all(verdict.passed for verdict in cli.verdicts) else 1
