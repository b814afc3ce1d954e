"""Any logger that is added gets the metrics, the settings and the pictures that it accepts."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning.pytorch.loggers import CometLogger, CSVLogger, Logger, MLFlowLogger
from PIL import Image

from project.commands.cli import main
from project.engine.loggers import log_figure

FIT = ["fit", "--config", "synthetic", "--data.train_size", "48", "--data.val_size", "20"]
FIT += ["--data.test_size", "0", "--data.image_size", "8", "--data.batch_size", "16"]
FIT += ["--model.width", "4", "--trainer.accelerator", "cpu", "--preflight", "false"]
FIT += ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
FIT += ["--trainer.log_every_n_steps", "1", "--trainer.max_epochs", "2"]
RED = np.full((4, 6, 3), (255, 0, 0), np.uint8)


def png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(RED).save(file, "png")
    return file.getvalue()


class Recorder(Logger):
    """Keeps what it is given, as a logger that sends it somewhere."""

    name, version = "recorder", 0
    made: list["Recorder"] = []

    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[tuple[set[str], int | None]] = []
        self.settings: list[dict[str, Any]] = []
        self.images: list[tuple[str, tuple[int, int], int | None]] = []
        self.made.append(self)

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.metrics.append((set(metrics), step))

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self.settings.append(dict(params))


class WithImages(Recorder):
    """Has WandbLogger's method for images."""

    def log_image(self, key: str, images: list[Any], step: int | None = None) -> None:
        self.images += [(key, image.size, step) for image in images]


class Experiment:
    """What MLflow and Comet take images with."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def log_image(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append((args, kwargs))


class FakeMLflow(MLFlowLogger):
    run_id, experiment = "abc", Experiment()

    def __init__(self) -> None:
        pass


class FakeComet(CometLogger):
    experiment = Experiment()

    def __init__(self) -> None:
        pass


def test_a_figure_is_shown_as_each_logger_takes_it() -> None:
    named = WithImages()
    log_figure(named, "val/predictions", png(), 7)
    assert named.images == [("val/predictions", (6, 4), 7)]
    log_figure(FakeMLflow(), "val/predictions", png(), 7)
    ((args, options),) = FakeMLflow.experiment.calls
    assert (args[0], options) == ("abc", {"key": "val/predictions", "step": 7})
    assert np.array_equal(np.asarray(args[1]), RED)
    log_figure(FakeComet(), "val/predictions", png(), 7)
    ((args, options),) = FakeComet.experiment.calls
    assert options == {"name": "val/predictions", "step": 7}
    assert np.array_equal(np.asarray(args[0]), RED)
    log_figure(Recorder(), "val/predictions", png(), 7)  # which takes none


@pytest.mark.pictures
def test_a_logger_that_is_added_gets_metrics_settings_and_pictures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Recorder, "made", [])
    cli = main([*FIT, "--trainer.logger+", f"{__name__}.WithImages"])
    (logger,) = Recorder.made
    assert [type(one).__name__ for one in cli.trainer.loggers] == [
        *("RunTensorBoardLogger", "ContinuingCSVLogger", "WithImages")
    ]
    names = set().union(*(found for found, _ in logger.metrics))
    header = (cli.run_folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert names == set(header) - {"step"}
    assert {"val/loss", "train/loss", "grad_norm", "lr"} <= names
    (settings,) = logger.settings
    assert settings["model.width"] == 4
    assert settings["trainer.max_epochs"] == 2
    assert all(isinstance(v, str | int | float | list) for v in settings.values())
    drawn = {(name, step) for name, _, step in logger.images}
    assert drawn == {(f"val/{name}", 5) for name in ("predictions", "confusion", "hardest")}


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        ("csv", ["ContinuingCSVLogger"]),
        ("[csv]", ["ContinuingCSVLogger"]),
        ("tensorboard", ["RunTensorBoardLogger"]),
        ("[]", []),
    ],
)
def test_loggers_by_name(value: str, kinds: list[str]) -> None:
    cli = main([*FIT, "--loggers", value])
    assert [type(logger).__name__ for logger in cli.trainer.loggers] == kinds
    assert (cli.run_folder / "metrics.csv").exists() == ("ContinuingCSVLogger" in kinds)
    assert bool(list(cli.run_folder.glob("events.*"))) == ("RunTensorBoardLogger" in kinds)
    assert not Path("lightning_logs").exists()
    assert not Path("runs/lightning_logs").exists()


def test_one_of_a_users_own_in_place_of_them_all() -> None:
    own = ["--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "logs"]
    cli = main([*FIT, "--loggers", "[]", *own])
    assert [type(logger) for logger in cli.trainer.loggers] == [CSVLogger]
    hparams = Path("logs/lightning_logs/version_0/hparams.yaml").read_text()
    assert "model.width: 4" in hparams


def test_a_logger_of_no_such_name_is_one_sentence(
    exit_code: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code([*FIT, "--loggers", "wandb"]) == 2
    assert "--loggers" in capsys.readouterr().err.splitlines()[-1]


def test_a_logger_that_fails_costs_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the server is gone")

    monkeypatch.setattr(Recorder, "log_hyperparams", fail)
    with pytest.warns(UserWarning, match="without the settings in Recorder .*the server is gone"):
        cli = main([*FIT, "--trainer.logger", f"{__name__}.Recorder"])
    assert cli.trainer.current_epoch == 2
