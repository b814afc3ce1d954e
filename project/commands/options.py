"""The options of the commands that are not of a class: of a run, and of what goes with it."""

from jsonargparse.typing import PositiveFloat
from lightning.pytorch.cli import LightningArgumentParser

from ..callbacks import EarlyStopping, LastCheckpoint, PredictionGrid
from ..runs.direction import Mode
from .links import add_links


def add_options(parser: LightningArgumentParser, command: str | None) -> None:
    """Add them, and link the arguments of classes that follow from others."""
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
    if command == "predict":
        text = "Folder of images to classify, without the data of --data (batch_size is used)."
        parser.add_argument("--images", type=str | None, help=text)
    parser.add_class_arguments(LastCheckpoint, "checkpoint", skip={"path"})
    parser.add_class_arguments(PredictionGrid, "pictures")
    text = "Metric of the best epoch, which early stopping and ReduceLROnPlateau follow too."
    parser.add_argument("--monitor", type=str, default="val/loss", help=text)
    text = (
        "Whether lower or higher values of it are better, if loss, acc and torchmetrics don't say."
    )
    parser.add_argument("--monitor_mode", type=Mode | None, help=text)
    text = "Stops when the monitored metric no longer improves; by default never."
    parser.add_argument("--early_stopping", type=EarlyStopping | None, help=text)
    add_links(parser)
