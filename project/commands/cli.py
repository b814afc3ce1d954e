"""The command line: LightningCLI with the project's defaults, links, run folder and messages."""

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from filelock import BaseFileLock
from jsonargparse import Namespace
from lightning.fabric.plugins.environments import (  # type: ignore[attr-defined]
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Callback,
    LearningRateFinder,
    ModelSummary,
)
from lightning.pytorch.callbacks import ProgressBar as LightningBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_info

from .. import data, models  # noqa: F401  their classes can be given by name
from ..callbacks import ProgressBar, RNGState, run_callbacks
from ..engine.checkpoint_io import AtomicCheckpointIO, load_checkpoint
from ..engine.exact import ResumeCheck
from ..engine.failures import claim, user_error
from ..engine.image_datamodule import ImageDataModule
from ..engine.image_files import MAX_MEGAPIXELS, DamagedImageError
from ..engine.live import LiveState
from ..engine.loggers import is_rank_zero, run_loggers
from ..engine.monitored import model_modes, monitor_mode
from ..engine.photos import PhotosDataModule, preprocessing, stored_preprocessing
from ..engine.processes import SameStart, end_children, join, lost, misplaced
from ..engine.progress import LayerTable
from ..engine.restore_best import find_restored
from ..engine.restoring import from_checkpoint
from ..engine.resume import check_resumable, find_unfinished
from ..engine.weights import check_fits, check_same_classes, init_from, take_classes
from ..engine.workers import lost_reader
from ..preflight.check import Verdict, describe, write_verdicts
from ..reports.tables import Scale, table
from ..runs.errors import UsageError
from ..runs.folder import (
    LAST,
    RECORD,
    absent,
    claim_run,
    kept,
    lock_run,
    read_record,
    release_run,
    run_of,
    summary,
)
from ..runs.names import PROGRAM
from ..runs.plain import load_yaml
from .errors import explain
from .limits import check_limits
from .options import add_options
from .outcome import keep_test, not_of_the_run, remember
from .parser import HelpFormatter, Parser
from .predict import write_outputs
from .sources import check_sections, expand, locate, only_config
from .switches import dropped_settings
from .table import OWN_MAIN, TEXTS, take_apart
from .trainer import Trainer

# Advertising, and a deprecation between the versions of Lightning and torch.
logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
    lambda record: "Tip:" not in record.getMessage()
)
warnings.filterwarnings("ignore", message=".*LeafSpec.*")
# The metrics are: torchmetrics has already reduced them over the processes.
warnings.filterwarnings("ignore", message="It is recommended to use `self.log.*sync_dist")


WITH_RUN = ("validate", "test", "predict")
USAGE = f"{PROGRAM} {{}} [--config FILE] [--OPTION VALUE …]"
DESCRIPTION = f"""Train and test image classifiers, and compare what came out.

    {PROGRAM} fit --config synthetic
    {PROGRAM} fit --help                    the options of a command
    {PROGRAM} fit --model.help ResNet18     those of a class

Configs are taken first, in their order, then options; later wins. What is wrong with them is one
sentence (--debug shows where it was found); an error in code of yours shows its traceback."""

TRAINER: dict[str, dict[str, Any]] = {  # what a command needs its trainer to be
    "check": {"num_sanity_val_steps": 0, "enable_model_summary": False},
    "lr_find": {"num_sanity_val_steps": 0, "enable_model_summary": False}
    | {"limit_val_batches": 0, "max_epochs": -1, "accumulate_grad_batches": 1},
    "predict": {"devices": 1, "num_nodes": 1, "strategy": "auto"},  # one process writes one file
}


class CLI(LightningCLI):
    """A command of COMMANDS: parses, builds, runs, and says what came out."""

    def __init__(self, args: list[str]) -> None:
        self.command = args
        self.run_folder = Path()
        self.lock: BaseFileLock | None = None
        self.of_a_run = False  # whether --run was given
        self.doubts: list[str] = []  # whether a resume is exact
        self.made: list[Path] | None = None  # folders around the one of a new run
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
                    "prog": PROGRAM,
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
        if self.made is not None:
            release_run(self.run_folder, self.made)

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        # Without the switch that would let a checkpoint run code when it is loaded.
        without = {"weights_only", "return_predictions"}
        commands = {k: v | without for k, v in LightningCLI.subcommands().items()}
        commands |= {name: {"model", "datamodule", "trained"} for name in ("check", "lr_find")}
        named = commands.keys() & self.command[:1]  # the parsers of the others would go unused
        return {name: commands[name] for name in named or commands}

    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        super()._add_subcommands(parser, **kwargs)
        commands: Any = parser._subcommands_action
        for name in OWN_MAIN if {"-h", "--help"} & set(self.command[:1]) else ():
            commands.add_subcommand(name, Parser(), help="")
        for action in commands._choices_actions:
            action.help = text = TEXTS[action.dest]
            given = "--run runs/cifar/version_0" if action.dest in WITH_RUN else "--config cifar"
            example = f"{PROGRAM} {action.dest} {given}"
            commands.choices[action.dest].description = f"{text}\n\n    {example}"

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        add_options(parser, next(iter(self.command), None))

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        expanded = expand(self.command)
        try:
            with only_config(expanded):
                self.config = parser.parse_args(expanded)
        except UsageError as error:
            raise UsageError(locate(str(error), expanded[1:])) from error
        self.given = take_apart(expanded[1:])
        if self.given.configs:
            known = {action.dest.split(".")[0] for action in self._parser(expanded[0])._actions}
            check_sections(self.given.configs, known)

    def _parse_ckpt_path(self) -> None:
        """Keep the command line: Lightning would replace `--model.*` by what the checkpoint has."""

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        run = config.pop("run")
        self.of_a_run = bool(run)
        if config.name is None:
            config.name = Path(str(config.config[0])).stem if config.config else "run"
        plain = config.as_dict()
        check_limits(plain)
        options = {name for name, _ in self.given.settings}
        for sentence in dropped_settings(map(Path, self.given.configs), options, plain):
            rank_zero_info(sentence)
        if self.subcommand == "fit":
            self._choose_run(config, Path(run) if run else None)
        elif self.subcommand in WITH_RUN and not config.ckpt_path:
            raise UsageError(
                f"{self.subcommand} needs trained weights: --run FOLDER or --ckpt_path FILE"
            )
        path = config.get("ckpt_path")
        self.checkpoint = load_checkpoint(Path(path)) if path else None
        if self.checkpoint and config.get("images"):
            given = config.data.init_args
            batch_size = given.get("batch_size", 128)
            megapixels = given.get("max_megapixels", MAX_MEGAPIXELS)
            facts = preprocessing(Path(path), self.checkpoint)
            config.data = PhotosDataModule(Path(config.images), facts, batch_size, megapixels)
        if self.checkpoint and self.subcommand == "fit":
            now = self._plain_config()
            with from_checkpoint(path, restores=True):
                self.doubts = check_resumable(self.checkpoint, now, self.record)

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
        self.record = read_record(run) if run else {}
        # Not known here to the other processes: rank 0 tells them the folder that it has claimed.
        self.run_folder = run or folder / "version_of_rank_0"
        if is_rank_zero() and not config.trainer.fast_dev_run:
            if run is None:
                around = absent(folder)
                self.run_folder, self.made = claim_run(folder), around
            self.lock = lock_run(self.run_folder)
            if self.lock is None:
                raise UsageError(f"another process is training {self.run_folder}: let it finish")

    def _plain_config(self) -> dict[str, Any]:
        """The configuration in plain types, as in `config.yaml`."""
        command = str(self.subcommand)
        text = self._parser(command).dump(self.config[command], skip_unset=False)
        config: dict[str, Any] = load_yaml(text)
        return config

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except ValueError as error:
            if "Does not validate" not in str(error) or user_error(error):
                raise
            raise UsageError(explain(str(error), ())) from error

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        trainer = self._get(self.config_init, "trainer")
        callbacks: list[Callback] = _listed(trainer.callbacks)
        own_bar = any(isinstance(callback, LightningBar) for callback in callbacks)
        if trainer.enable_progress_bar is not False and not own_bar:
            callbacks.append(ProgressBar())
        refuse_finders(callbacks)
        loggers = [] if trainer.logger in (None, True, False) else _listed(trainer.logger)
        if self.subcommand == "fit":
            kwargs |= self._of_run(trainer, callbacks, loggers)
        else:
            kwargs |= {"logger": self._of_evaluation(loggers), "enable_checkpointing": False}
        kwargs = {"callbacks": callbacks} | kwargs | TRAINER.get(str(self.subcommand), {})
        if self.subcommand == "lr_find":
            self.model.lr_scheduler, self.model.warmup_steps = None, 0
            self.model.reference_batch_size = None  # what is found is for the batch size of now
        if trainer.accumulate_grad_batches < 1:
            raise UsageError("--trainer.accumulate_grad_batches must be 1 or more")
        if trainer.limit_train_batches == 0 and self.subcommand == "fit":
            raise UsageError(
                "--trainer.limit_train_batches 0 leaves nothing to train: leave it out"
            )
        try:
            return super().instantiate_trainer(**kwargs)
        except TypeError as error:  # Lightning's, on the CPU
            if "`devices`" not in str(error):
                raise
            raise UsageError(f"--trainer.devices: {error}") from error

    def _of_evaluation(self, loggers: list[Logger]) -> list[Logger]:
        """The loggers of a command that has no run folder: those that were named, if it logs."""
        if self.subcommand in ("validate", "test"):
            return loggers
        if loggers:
            rank_zero_info(f"{self.subcommand} logs nothing: --trainer.logger is not used.")
        return []

    def _of_run(
        self, trainer: Namespace, callbacks: list[Callback], loggers: list[Logger]
    ) -> dict[str, Any]:
        """Callbacks, plugins and loggers of `fit`."""
        step = self.checkpoint["global_step"] if self.checkpoint else 0
        names = ("early_stopping", "checkpoint", "pictures")
        given = (self._get(self.config_init, name) for name in names)
        config = self._plain_config()
        mode = monitor_mode(config["monitor"], config["monitor_mode"], self.model)
        modes = {f"val/{k}": v for k, v in model_modes(self.model).items()}
        modes[config["monitor"]] = mode
        own = run_callbacks(self.run_folder, config, self.command, modes, *given)
        same = SameStart(f"at step {step} of {self.run_folder.name}" if self.checkpoint else "anew")
        plugins = [*_listed(trainer.plugins), AtomicCheckpointIO()]
        if not TorchElasticEnvironment.detect() and SLURMEnvironment.detect():
            # Lightning's own requeue saves in the middle of a step.
            plugins.append(SLURMEnvironment(auto_requeue=False))
        state = [RNGState(), LiveState()]
        check = ResumeCheck(self.doubts)
        made: dict[str, Any] = {"callbacks": [*state, *callbacks, same, check, *own]}
        made["plugins"] = plugins
        tables = [callback for callback in callbacks if isinstance(callback, ModelSummary)]
        if trainer.enable_model_summary is not False and not tables:
            made["callbacks"].append(LayerTable())
            made["enable_model_summary"] = False  # Lightning's own
        if trainer.logger is not False:
            made["logger"] = [*run_loggers(self.run_folder, step), *loggers]
        return made

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
        names = getattr(self.datamodule, "class_names", None)
        if self.checkpoint:
            self._take_checkpoint(Path(config.ckpt_path), self.checkpoint, names)
        elif config.init_from:
            rank_zero_info(init_from(Path(config.init_from), self.model, names))
        self.checkpoint = None  # free the memory
        if config.compile:  # in place, which keeps the names of the weights
            self.model.forward = torch.compile(self.model.forward)

    def _take_checkpoint(
        self, path: Path, checkpoint: dict[str, Any], names: list[str] | None
    ) -> None:
        """Compare a checkpoint with the data and the model, and load it unless `fit` does."""
        fits = self.subcommand == "fit"  # which restores more than the weights
        if fits:
            check_same_classes(path, checkpoint, names)
        elif note := take_classes(path, checkpoint, self.model, names):
            rank_zero_info(note)
        way_out = "Leave out the options that change the model" if self.of_a_run else ""
        check_fits(path, checkpoint, self.model, way_out)
        if not fits:
            self.model.load_state_dict(checkpoint["state_dict"])
            facts = stored_preprocessing(checkpoint)
            if facts and isinstance(self.datamodule, ImageDataModule):
                # As it was trained; the training images need not be read for it.
                self.datamodule.statistics = (facts["mean"], facts["std"])
            self.config_init[self.subcommand].ckpt_path = None

    def fit(self, model: L.LightningModule, **kwargs: Any) -> None:
        join(self.trainer.strategy, self.config.fit.max_wait_s)
        try:
            with from_checkpoint(self.config.fit.ckpt_path):
                self.trainer.fit(model, **kwargs | {"weights_only": True})
        except DamagedImageError as error:  # of data that are read as they are needed
            end_children(self.trainer)
            raise DamagedImageError(f"{error}: {self._way_on()}") from None
        except BaseException as error:
            if isinstance(error, Exception) and is_rank_zero():
                error.add_note(kept(self.run_folder))
                claim(error)  # before its children, which look for it
            end_children(self.trainer)
            raise

    def _way_on(self) -> str:
        """What to do once an image that could be read at the start can be read no longer."""
        if (self.run_folder / LAST).is_file():
            again = f"{PROGRAM} fit --run {shlex.quote(str(self.run_folder))}"
            return f"put it back as it was, then resume the run with {again}"
        return "put it back as it was or remove it, and start again; nothing was saved so far"

    def test(self, model: L.LightningModule, **kwargs: Any) -> None:
        self._measure(self.trainer.test, model, **kwargs)

    def validate(self, model: L.LightningModule, **kwargs: Any) -> None:
        self._measure(self.trainer.validate, model, **kwargs)

    def _measure(self, measure: Any, model: Any, verbose: bool = True, **kwargs: Any) -> None:
        """Print the metrics, to the digits of all other tables."""
        results = measure(model, verbose=False, **kwargs)
        if verbose and self.trainer.is_global_zero:
            rows = [(k, Scale(k, 1e-3).value(v)) for found in results for k, v in found.items()]
            print(table([("metric", "value"), *rows]))

    def after_fit(self) -> None:
        end = find_restored(self.trainer)
        self.run_folder = end.run if end else self.run_folder  # as rank 0 has told
        if self.trainer.is_global_zero and (self.run_folder / RECORD).is_file():
            print(summary(self.run_folder, restored=bool(end and end.restored)))

    def _not_of_the_run(self, run: Path, limit: int | float | None) -> str:
        checkpoint = Path(self.config[self.subcommand].ckpt_path)
        return not_of_the_run(run, checkpoint, self._plain_config(), limit, self.datamodule)

    def after_test(self) -> None:
        config = self.config.test
        run = run_of(Path(config.ckpt_path))
        if not run or not self.trainer.is_global_zero:
            return
        other = self._not_of_the_run(run, config.trainer.limit_test_batches)
        metrics = {name: value.item() for name, value in self.trainer.callback_metrics.items()}
        print(keep_test(run, other, metrics, self.datamodule))

    def lr_find(self, model: L.LightningModule, **kwargs: Any) -> None:
        """Print both suggestions, and write them with a figure beside the runs of that name."""
        assert isinstance(self.trainer, Trainer)
        self.lr_range = self.trainer.lr_find(model, **kwargs)
        config = self.config.lr_find
        folder = Path(config.trainer.default_root_dir, config.name)
        if self.trainer.is_global_zero:
            self.lr_range.save(folder)
            reference = config.model.init_args.get("reference_batch_size")
            size = getattr(self.datamodule, "batch_size", None)
            factor = size / reference if size and reference else None
            print(self.lr_range.describe(factor))
            print(f"Figure and numbers: {folder}/lr_find.png and .json")

    def check(self, model: L.LightningModule, **kwargs: Any) -> None:
        """Print a table of the verdicts, and write it beside the runs of that name."""
        assert isinstance(self.trainer, Trainer)
        config = self.config.check
        self.verdicts = self.trainer.check(model, **kwargs, trained=bool(config.init_from))
        path = Path(config.trainer.default_root_dir, config.name, "check.json")
        if self.trainer.is_global_zero:
            write_verdicts(path, self.verdicts)
            print(f"{describe(self.verdicts)}\nAll that was measured: {path}")

    def predict(self, model: L.LightningModule, **kwargs: Any) -> None:
        """Write what is predicted for each test example, or for each of the images."""
        batches: Any = self.trainer.predict(model, **kwargs)
        if self.trainer.predict_loop.num_dataloaders > 1:  # a list for each of them
            batches = [batch for loader in batches for batch in loader]
        config = self.config.predict
        checkpoint = Path(config.ckpt_path)
        run = run_of(checkpoint)
        folder = run or checkpoint.parent
        if run and not config.images:
            if other := self._not_of_the_run(run, config.trainer.limit_predict_batches):
                # What `compare` reads in the run folder is of its best epoch on its own data.
                folder = checkpoint.parent
                print(f"Not the run's own predictions, since {other}.")
            else:
                remember(run, self.datamodule)
        print(f"Predictions: {write_outputs(folder, batches, self.datamodule)}")


def refuse_finders(callbacks: Iterable[Callback]) -> None:
    """Refuse callbacks that train with other settings than those that the config records."""
    for callback in callbacks:
        name = type(callback).__name__
        if isinstance(callback, BatchSizeFinder):
            raise UsageError(
                f"{name} would train with another batch size than the one that the config records: "
                "try sizes with --data.batch_size and --trainer.max_steps 10, and set the one found"
            )
        if isinstance(callback, LearningRateFinder):
            raise UsageError(
                f"{name} would train with another learning rate than the one that the config "
                f"records: run `{PROGRAM} lr_find`, and set --model.optimizer.lr"
            )


def _listed(one_or_more: Any) -> list[Any]:
    return one_or_more if isinstance(one_or_more, list) else list(filter(None, [one_or_more]))


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
        Its exit code: 1 if a check failed.
    """
    try:
        cli = main(args)
    except DamagedImageError as error:  # which a DataLoader's worker may have raised
        raise ValueError(str(error)) from None
    except MisconfigurationException as error:
        if user_error(error):
            raise
        raise ValueError(str(error)) from error
    except RuntimeError as error:
        if sentence := lost(error) or misplaced(error) or lost_reader(error):
            raise ValueError(sentence) from error
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise ValueError(f"--compile true: {str(error).splitlines()[0]}") from error
        if "without overflow" in str(error) and not user_error(error):
            raise ValueError(
                "a number is too large for the weights' precision: lower --model.optimizer.lr, or "
                "set --trainer.precision 16-mixed instead of 16-true"
            ) from error
        raise
    return 0 if all(verdict.passed for verdict in cli.verdicts) else 1
