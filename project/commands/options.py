"""The options of a command that are arguments of no class of torch, Lightning or the user."""

from dataclasses import dataclass, field

from jsonargparse.typing import PositiveFloat
from lightning.pytorch.cli import LightningArgumentParser

from ..callbacks import Callbacks, LastCheckpoint
from ..engine.loggers import LoggerName
from ..runs.direction import Mode
from .links import add_links


@dataclass
class RunOptions:
    """The run.

    Args:
        name: Folder of the run under --trainer.default_root_dir; by default the config's name.
        run: Run folder whose config and checkpoint are used, such as runs/cifar/version_0.
        init_from: Checkpoint whose weights, and nothing else, a new run starts from.
        preflight: Whether a new run is first checked to be able to work, on copies: see `check`.
        max_wait_s: Seconds that a process waits for the others of its run before it gives up.
        compile: Whether the model is compiled in place: a minute at first, the same checkpoints.
        monitor: Metric of the best epoch, which early stopping and ReduceLROnPlateau follow too.
        monitor_mode: Whether lower or higher values of the monitored metric are better; needed
            only if neither loss or acc in its name nor torchmetrics says so.
        loggers: Loggers of the run folder; --trainer.logger adds others to them.
    """

    name: str | None = None
    run: str | None = None
    init_from: str | None = None
    preflight: bool = True
    max_wait_s: PositiveFloat = 600.0
    compile: bool = False
    monitor: str = "val/loss"
    monitor_mode: Mode | None = None
    loggers: LoggerName | list[LoggerName] = field(default_factory=lambda: ["tensorboard", "csv"])


@dataclass
class PredictOptions:
    """The predictions.

    Args:
        images: Folder of images to classify, without the data of --data (batch_size is used).
    """

    images: str | None = None


def add_options(parser: LightningArgumentParser, command: str | None) -> None:
    """Add the options, and link the arguments of classes that follow from others."""
    parser.add_class_arguments(RunOptions, None)
    if command == "predict":
        parser.add_class_arguments(PredictOptions, None)
    parser.add_class_arguments(LastCheckpoint, "checkpoint", skip={"path"})
    parser.add_class_arguments(Callbacks, None)
    add_links(parser)
