"""The command line: LightningCLI with the project's defaults, links, run folder and messages."""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
)
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from project import data, models  # noqa: F401  their classes can be given by name
from project.callbacks import ProgressBar, RunRecord
from project.checkpoint import check_fits, load_checkpoint
from project.models.classifier import monitor_mode
from project.parser import Parser, UsageError, expand
from project.run import BEST, LAST, next_version, read_record, run_of, write_record


class CLI(LightningCLI):
    """`python -m project <command>`: parses, builds, runs, and says what came out."""

    def __init__(self, args: list[str]) -> None:
        self.command = args
        super().__init__(
            L.LightningModule,
            L.LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            trainer_defaults={"default_root_dir": "runs"},
            seed_everything_default=0,
            parser_class=Parser,
            parser_kwargs={"exit_on_error": False, "allow_abbrev": False},
            args=args,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        text = "Folder of the run under --trainer.default_root_dir; by default the config's name."
        parser.add_argument("--name", type=str | None, help=text)
        text = "Run folder whose config and checkpoint are used, such as runs/cifar/version_0."
        parser.add_argument("--run", type=str | None, help=text)
        text = "Metric of the best epoch, which early stopping and ReduceLROnPlateau follow too."
        parser.add_argument("--monitor", type=str, default="val/loss", help=text)
        text = "Stops when the monitored metric no longer improves; by default never."
        parser.add_argument("--early_stopping", type=EarlyStopping | None, help=text)
        parser.link_arguments("monitor", "early_stopping.init_args.monitor")
        parser.link_arguments("monitor", "early_stopping.init_args.mode", compute_fn=monitor_mode)
        parser.link_arguments("monitor", "model.init_args.monitor")
        parser.link_arguments("seed_everything", "data.init_args.seed")
        for name in ("num_classes", "class_names", "in_channels", "image_size"):
            parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        self.config = parser.parse_args(expand(self.command))

    def _parse_ckpt_path(self) -> None:
        """Keep the command line: Lightning would replace `--model.*` by what the checkpoint has."""

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        self.run_folder = Path(config.pop("run")) if config.get("run") else None
        if config.name is None:
            config.name = Path(str(config.config[0])).stem
        if self.subcommand != "fit":
            self.save_config_callback = None
            if not config.ckpt_path:
                raise UsageError(
                    f"{self.subcommand} needs trained weights: give --run FOLDER, or --ckpt_path FILE"
                )

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        config = self.config[self.subcommand]
        callbacks: list[Callback] = list(self._get(self.config_init, "trainer").callbacks or [])
        if config.trainer.enable_progress_bar is not False:
            callbacks.append(ProgressBar())
        if self.subcommand != "fit":
            return super().instantiate_trainer(callbacks=callbacks, logger=False)
        stopping = self._get(self.config_init, "early_stopping")
        callbacks += [stopping] if stopping else []
        callbacks.append(RunRecord(self._plain_config(), self.command))
        if config.trainer.enable_checkpointing is not False:
            callbacks += [
                ModelCheckpoint(
                    filename=BEST.stem,
                    monitor=config.monitor,
                    mode=monitor_mode(config.monitor),
                    enable_version_counter=False,
                ),
                # Apart from the best one, since `save_last` of a monitored one would save no other.
                ModelCheckpoint(
                    filename=LAST.stem, enable_version_counter=False, save_on_train_epoch_end=True
                ),
            ]
        if config.trainer.logger in (None, True):
            root, name = config.trainer.default_root_dir, config.name
            version = next_version(Path(root, name))
            kwargs["logger"] = [
                TensorBoardLogger(root, name, version),
                CSVLogger(root, name, version),
            ]
            callbacks.append(LearningRateMonitor())
        return super().instantiate_trainer(callbacks=callbacks, **kwargs)

    def _plain_config(self) -> dict[str, Any]:
        """The configuration as in `config.yaml`, in plain types."""
        parser = self._parser(self.subcommand)
        text = parser.dump(self.config[self.subcommand], skip_none=False)
        return yaml.safe_load(text)

    def after_instantiate_classes(self) -> None:
        path = self.config[self.subcommand].ckpt_path
        if path:
            check_fits(Path(path), load_checkpoint(Path(path)), self.model)

    def after_fit(self) -> None:
        best = getattr(self.trainer.checkpoint_callback, "best_model_path", "")
        if best:
            self.model.load_state_dict(load_checkpoint(Path(best))["state_dict"])
            if self.trainer.is_global_zero:
                print(summary(Path(best).parent.parent))

    def after_test(self) -> None:
        run = run_of(Path(self.config.test.ckpt_path))
        if run and self.trainer.is_global_zero:
            record = read_record(run)
            tested = {name: value.item() for name, value in self.trainer.callback_metrics.items()}
            write_record(run, record | {"metrics": record["metrics"] | tested})

    def predict(self, model: L.LightningModule, **kwargs: Any) -> None:
        """Write label, class and probability of each test image to `predictions.csv`."""
        batches: Any = self.trainer.predict(model, **kwargs)
        checkpoint = Path(self.config.predict.ckpt_path)
        folder = run_of(checkpoint) or checkpoint.parent
        names = self.datamodule.class_names
        best, classes = torch.cat(batches).max(1)
        _, labels, indices = self.datamodule.sets["test"]
        with (folder / "predictions.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["index", "label", "prediction", "probability"])
            rows = zip(
                indices.tolist(),
                labels[indices].tolist(),
                classes.tolist(),
                best.tolist(),
                strict=True,
            )
            writer.writerows((i, names[label], names[k], f"{p:.4f}") for i, label, k, p in rows)
        print(f"{len(classes)} predictions: {folder / 'predictions.csv'}")


def summary(run: Path) -> str:
    """What a finished run tells its user."""
    record = read_record(run)
    best = {name: value for name, value in record["metrics"].items() if name.startswith("val/")}
    return "\n".join(
        [
            f"Stopped by {record['stopped_by']} after {record['epochs']} epochs, {record['seconds']:.0f} s.",
            f"Best epoch {record['best_epoch']}: "
            + ", ".join(f"{name} {value:.4f}" for name, value in best.items())
            + ". Its weights are restored.",
            f"Run folder: {run}",
            f"Test set, once, at the end: python -m project test --run {run}",
        ]
    )


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


def console() -> None:
    """The command of the shell: `main` with errors as one sentence, or `--debug` for all."""
    debug = "--debug" in sys.argv
    try:
        main([arg for arg in sys.argv[1:] if arg != "--debug"])
    except (ValueError, OSError, MisconfigurationException) as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
