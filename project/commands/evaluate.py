"""`validate`, `test` and `predict`: the weights of a checkpoint, and what comes out of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from jsonargparse import Namespace
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_info

from ..engine.image_datamodule import ImageDataModule
from ..engine.image_files import MAX_MEGAPIXELS
from ..engine.objective import Objective
from ..engine.photos import PhotosDataModule, preprocessing, stored_preprocessing
from ..engine.weights import check_fits, take_classes
from ..reports.tables import Scale, table
from ..runs.folder import run_of
from .outcome import keep_test, not_of_the_run, remember
from .plan import RunPlan
from .predict import write_outputs

# One process writes one file.
PREDICT_TRAINER: dict[str, Any] = {"devices": 1, "num_nodes": 1, "strategy": "auto"}


def loggers_of(command: str, named: list[Logger]) -> list[Logger]:
    """Return the loggers of a command other than `fit`: those that were named, if it logs."""
    if command in ("validate", "test"):
        return named
    if named:
        rank_zero_info(f"{command} logs nothing: --trainer.logger is not used.")
    return []


def use_photos(config: Namespace, plan: RunPlan) -> None:
    """Let `predict --images` take the images of a folder in place of the data."""
    assert plan.checkpoint is not None
    assert plan.checkpoint_path is not None
    given = config.data.init_args
    config.data = PhotosDataModule(
        Path(config.images),
        preprocessing(plan.checkpoint_path, plan.checkpoint),
        given.get("batch_size", 128),
        given.get("max_megapixels", MAX_MEGAPIXELS),
    )


def take_weights(
    plan: RunPlan, model: L.LightningModule, data: L.LightningDataModule, names: list[str] | None
) -> None:
    """Load the weights of the checkpoint, and the preprocessing that they were trained with.

    Args:
        plan: Plan with the checkpoint.
        model: Model that gets the weights.
        data: Data module that gets mean and standard deviation.
        names: Class names of the data, if they have any.

    Raises:
        ValueError: If the checkpoint does not fit the data or the model.
    """
    assert plan.checkpoint is not None
    assert plan.checkpoint_path is not None
    if note := take_classes(plan.checkpoint_path, plan.checkpoint, model, names):
        rank_zero_info(note)
    check_fits(plan.checkpoint_path, plan.checkpoint, model, plan.way_out)
    model.load_state_dict(plan.checkpoint["state_dict"])
    facts = stored_preprocessing(plan.checkpoint)
    if facts and isinstance(data, ImageDataModule):
        # The training images need not be read for them.
        data.statistics = (facts["mean"], facts["std"])


def print_metrics(results: Sequence[Any]) -> None:
    """Print the metrics of each data loader, with as many digits as all other tables have."""
    rows = [(k, Scale(k, 1e-3).value(v)) for found in results for k, v in found.items()]
    print(table([("metric", "value"), *rows]))


def record_result(trainer: L.Trainer, plan: RunPlan, data: Any) -> None:
    """Write the result of a test into the run record, or say why it is not the run's own."""
    assert plan.checkpoint_path is not None
    run = run_of(plan.checkpoint_path)
    if run and trainer.is_global_zero:
        limit = plan.config["trainer"]["limit_test_batches"]
        other = not_of_the_run(run, plan.checkpoint_path, plan.config, limit, data)
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        print(keep_test(run, other, metrics, data))


def write_predictions(
    batches: list[Any], plan: RunPlan, data: Any, objective: Objective | None
) -> None:
    """Write what is predicted for each test example, or for each of the images.

    Args:
        batches: Outputs of each batch, in the order of the data.
        plan: Plan with the path of the checkpoint.
        data: Data module of the examples.
        objective: What the network was trained for, if it says so.
    """
    assert plan.checkpoint_path is not None
    run = run_of(plan.checkpoint_path)
    folder = run or plan.checkpoint_path.parent
    if run and not plan.config["images"]:
        limit = plan.config["trainer"]["limit_predict_batches"]
        if other := not_of_the_run(run, plan.checkpoint_path, plan.config, limit, data):
            # `compare` takes what lies in the run folder for the best epoch on the run's own data.
            folder = plan.checkpoint_path.parent
            print(f"Not the run's own predictions, since {other}.")
        else:
            remember(run, data)
    print(f"Predictions: {write_outputs(folder, batches, data, objective)}")
