"""Targets, batches and outputs that the project does not know cost a run no more than a warning."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import FSDPStrategy
from other_tasks import KINDS, SIZE
from PIL import Image
from torch import Tensor, nn

from project.callbacks import (
    CurvesMonitor,
    PredictionGrid,
    WeightHistogramMonitor,
    pictures,
)
from project.commands import predict as outputs
from project.commands.cli import main
from project.engine.batch_size import batch_size_of
from project.engine.step_monitor import gradient_norm
from project.runs.sets import read_metrics

QUIET = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
QUIET += ["--trainer.enable_model_summary", "false", "--name", "other"]
SHORT = ["--trainer.max_epochs", "2", "--trainer.log_every_n_steps", "2"]
RUN = Path("runs/other/version_0")
CLASSES = ["red", "green", "blue"]


def fit(model: str, data: str, *args: str) -> Any:
    classes = ["--model", f"other_tasks.{model}", "--data", f"other_tasks.{data}"]
    return main(["fit", *classes, *SHORT, *QUIET, *args])


def missing(warned: Any) -> list[str]:
    """Return what the run continues without, according to its warnings."""
    return [str(w.message) for w in warned if "run continues without" in str(w.message)]


def table() -> list[dict[str, str]]:
    with (RUN / "predictions.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.pictures
@pytest.mark.parametrize("targets", [kind for kind in KINDS if kind != "boxes"])
def test_a_run_with_other_targets_trains_tests_and_predicts(
    targets: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model.targets", targets, "--data.targets", targets]
    fit("Other", "OtherImages", *options, "--pictures.every_n_epochs", "1")
    drawn = {path.stem for path in RUN.glob("*.png")}
    assert drawn == {"predictions", "hardest", "curves"}  # and no confusion of classes
    main(["test", "--run", str(RUN), *QUIET])
    cli = main(["predict", "--run", str(RUN), *QUIET])
    images = torch.cat([images for images, _ in cli.datamodule.test_dataloader()])
    with torch.no_grad():
        expected = cli.model.eval()(images)
    if targets == "mask":
        assert "predictions.csv is not written, since the outputs (float32 (N, 8, 8)) are" in (
            capsys.readouterr().out
        )
        assert not (RUN / "predictions.csv").exists()
        found = torch.load(RUN / "predictions.pt", weights_only=True)
    else:
        names = ["red", "green", "blue"] if targets == "labels" else ["prediction"]
        found = torch.tensor([[float(row[name]) for name in names] for row in table()])
    assert len(found) == SIZE
    torch.testing.assert_close(found.view_as(expected), expected, rtol=1e-4, atol=1e-5)


def test_several_labels_are_predicted_for_the_test_images_and_for_photos(tmp_path: Path) -> None:
    objective = ["--model.objective", "BinaryCrossEntropy", "--preflight", "false"]
    fit("Other", "OtherImages", *objective)
    cli = main(["predict", "--run", str(RUN), *QUIET])
    images, targets = (torch.cat(x) for x in zip(*cli.datamodule.test_dataloader(), strict=True))
    with torch.no_grad():
        expected = cli.model.eval()(images).sigmoid()
    rows = table()
    assert list(rows[0]) == ["index", *CLASSES, *(f"true {name}" for name in CLASSES)]
    found = torch.tensor([[float(row[name]) for name in CLASSES] for row in rows])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    truth = torch.tensor([[float(row[f"true {name}"]) for name in CLASSES] for row in rows])
    assert torch.equal(truth, targets)
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(3):
        Image.new("RGB", (8, 8), (80 * i, 0, 0)).save(photos / f"{i}.png")
    main(["predict", "--run", str(RUN), "--images", str(photos), *QUIET])
    with (RUN / "images.csv").open(newline="") as file:
        of_photos = list(csv.DictReader(file))
    assert list(of_photos[0]) == ["path", *CLASSES]
    assert [Path(row["path"]).name for row in of_photos] == ["0.png", "1.png", "2.png"]


def test_targets_that_make_no_batch_are_refused_before_the_first_step() -> None:
    with pytest.raises(ValueError, match="a list was given where inputs or targets are expected"):
        fit("Other", "OtherImages", "--data.targets", "boxes")
    assert not Path("runs/other").exists()


def test_classes_are_balanced_only_where_there_are_classes() -> None:
    with pytest.raises(ValueError, match=r"class_balanced needs one class .* float32 \(N, 3\)"):
        fit("Other", "OtherImages", "--data.sampling", "class_balanced")


@pytest.mark.parametrize("gives", ["tensor", "value", "dict", "list", "image"])
def test_predictions_of_a_plain_data_module_are_written(
    gives: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = fit("DictModel", "DictBatches", "--model.gives", gives)
    assert read_metrics(RUN)["images_per_s"]
    main(["predict", "--run", str(RUN), *QUIET])
    loader = trained.datamodule.predict_dataloader()
    with torch.no_grad():
        batches = [trained.model.predict_step(batch, 0) for batch in loader]
    out = capsys.readouterr().out
    if gives in ("tensor", "value"):
        found = torch.tensor(
            [[float(v) for k, v in row.items() if k != "index"] for row in table()]
        )
        expected = torch.cat(batches)
        torch.testing.assert_close(found.view_as(expected), expected, rtol=1e-4, atol=1e-5)
        return
    assert "predictions.csv is not written" in out
    assert f"{RUN}/predictions.pt" in out
    found = torch.load(RUN / "predictions.pt", weights_only=True)
    torch.testing.assert_close(found, torch.cat(batches) if gives == "image" else batches)


@pytest.mark.filterwarnings("ignore:predict returned None")
def test_outputs_that_are_nothing_are_said_to_be() -> None:
    fit("DictModel", "DictBatches", "--model.gives", "nothing")
    with pytest.raises(ValueError, match="predict_step returned nothing"):
        main(["predict", "--run", str(RUN), *QUIET])
    assert not list(RUN.glob("predictions.*"))


def test_outputs_of_other_shapes_are_saved_as_they_are(tmp_path: Path) -> None:
    """Ragged ones, scalars, and rows that are too long for a table."""
    for batches in (
        [torch.ones(2, 3), torch.ones(2, 4)],
        [torch.tensor(1.0)],
        [torch.ones(2, outputs.COLUMNS + 1)],
        [torch.ones(2, 3), None],
    ):
        path = outputs.write_outputs(tmp_path, batches, None)
        assert path.name == "predictions.pt"
    assert outputs.write_outputs(tmp_path, [torch.ones(2, 3)], None).read_text().splitlines() == [
        "index,output_0,output_1,output_2",
        "0,1,1,1",
        "1,1,1,1",
    ]


# Ornaments


@pytest.fixture
def model_and_data() -> tuple[L.LightningModule, L.LightningDataModule]:
    from project.data import SyntheticDataModule
    from project.models import MLP

    data = SyntheticDataModule(32, 16, 0, image_size=8, batch_size=8)
    return MLP([8], in_channels=3, image_size=8), data


@pytest.mark.pictures
@pytest.mark.parametrize(
    "broken", ["draw_grid", "draw_confusion", "save_figure", "draw_curves", "predict_validation"]
)
def test_a_picture_that_fails_is_one_warning(
    broken: str, model_and_data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("no ink")

    monkeypatch.setattr(pictures, broken, fails)
    off = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"))
    log = L.pytorch.loggers.CSVLogger("logs")
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        log_every_n_steps=1,
        logger=log,
        callbacks=[PredictionGrid(1), CurvesMonitor()],
        **dict.fromkeys(off, False),
    )
    monkeypatch.setattr(pictures, "FIRST_AFTER_S", 0)
    monkeypatch.setattr(pictures, "COST_FACTOR", 0)
    with pytest.warns(UserWarning, match=r"ZeroDivisionError: no ink") as warned:
        trainer.fit(*model_and_data)
    assert len(missing(warned)) == (2 if broken == "save_figure" else 1)
    assert trainer.global_step == 12


@pytest.mark.pictures
def test_no_rank_goes_on_alone_once_another_has_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has failed while it drew, and would not come to the next evaluation."""

    class Strategy:
        def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
            return False  # of the other rank

    def evaluated(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(pictures, "predict_validation", evaluated)
    PredictionGrid()._draw(SimpleNamespace(strategy=Strategy()), nn.Identity(), "")  # type: ignore[arg-type]


def test_the_gradient_norm_is_in_float32_or_better() -> None:
    alone: Any = SimpleNamespace(strategy=None)
    large = nn.Parameter(torch.ones(4, dtype=torch.float16))
    large.grad = torch.full((4,), 6e4, dtype=torch.float16)  # whose norm float16 can't hold
    assert gradient_norm(alone, [large]).item() == pytest.approx(2 * 6e4, rel=1e-3)
    fine = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    fine.grad = torch.ones(3, dtype=torch.bfloat16)
    assert gradient_norm(alone, [fine]).item() == pytest.approx(math.sqrt(3), rel=1e-6)
    table = nn.Embedding(9, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    assert gradient_norm(alone, table.parameters()).item() == pytest.approx(math.sqrt(10))


def test_the_gradient_norm_of_a_divided_model_is_that_of_all_its_parts() -> None:
    """FSDP knows it, and needs GPUs: only who is asked, and for no clipping, can be seen here."""

    class Divided(FSDPStrategy):
        def __init__(self) -> None:
            self.model = SimpleNamespace(clip_grad_norm_=asked.append)  # type: ignore[assignment]

    asked: list[float] = []
    gradient_norm(SimpleNamespace(strategy=Divided()), [])  # type: ignore[arg-type]
    assert asked == [math.inf]


@pytest.mark.pictures
def test_a_model_that_fails_outside_of_its_steps_trains_on_in_training_mode(
    model_and_data: Any,
) -> None:
    class Modes(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
            modes.append(pl_module.training)

    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not self.training and not trainer.evaluating:
                raise RuntimeError("only within a step")
            return x

    modes: list[bool] = []
    model, data = model_and_data
    model.layers.append(Fails())
    off = ("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger")
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        callbacks=[PredictionGrid(1), Modes()],
        **dict.fromkeys(off, False),
    )
    with pytest.warns(UserWarning, match="only within a step") as warned:
        trainer.fit(model, data)
    assert len(missing(warned)) == 1
    assert modes == [True] * 12


def test_histograms_of_half_precision_and_of_weights_that_have_none(model_and_data: Any) -> None:
    class Diverges(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                nn.init.constant_(pl_module.layers[-1].bias, torch.nan)

    off = ("enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        precision="bf16-true",
        logger=L.pytorch.loggers.TensorBoardLogger("logs"),
        callbacks=[Diverges(), WeightHistogramMonitor()],
        **dict.fromkeys(off, False),
    )
    with pytest.warns(UserWarning, match="without histograms of the weights") as warned:
        trainer.fit(*model_and_data)
    assert len(missing(warned)) == 1


# The size of a batch


@dataclass
class Example:
    x: Tensor
    y: Tensor


X, Y = torch.ones(5, 3, 8, 8), torch.ones(5)
IMAGES = [torch.ones(3, 8, 8) for _ in range(5)]
BOXES = [{"boxes": torch.ones(k, 4), "labels": torch.ones(k)} for k in (1, 2, 1, 7, 2)]


@pytest.mark.parametrize(
    "batch",
    [
        X,
        (X, Y),
        [X, Y],
        {"x": X, "y": Y},
        {"names": ["a"] * 5, "x": X},
        ((X, X), Y),
        [[X, X], [Y, Y]],
        ({"x": X, "mask": X}, Y),
        (X, {"y": Y, "weight": torch.tensor(2.0)}),
        (torch.tensor(3), X),
        Example(X, Y),
        (IMAGES, BOXES),
        [IMAGES, BOXES],
    ],
    ids=str,
)
def test_size_of_a_batch_whatever_it_is(batch: Any) -> None:
    assert batch_size_of(batch) == 5


@pytest.mark.parametrize("batch", [None, {}, [], "text", torch.tensor(1.0), Path()], ids=repr)
def test_a_batch_without_a_size_has_none(batch: Any) -> None:
    assert batch_size_of(batch) is None
