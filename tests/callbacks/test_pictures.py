"""The pictures of a run show its validation set and its curves, and do not change the run."""

import base64
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from matplotlib.figure import Figure
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from project.callbacks import BestCheckpoint, CurvesMonitor, PredictionGrid, RunRecord, pictures
from project.callbacks.pictures import predict_validation
from project.callbacks.prediction_figures import ClassPredictions
from project.commands.cli import main
from project.data import SyntheticDataModule
from project.models import MLP

pytestmark = pytest.mark.pictures

QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
QUIET |= {"enable_checkpointing": False}
NAMES = ("predictions", "confusion", "hardest")
ROOT = Path(__file__).parents[2]


def make(val_size: int = 37) -> tuple[MLP, SyntheticDataModule]:
    """Return a model with dropout and batch normalisation, and data.

    By default, the validation batches have 32 and 5 examples.
    """
    torch.manual_seed(0)
    data = SyntheticDataModule(48, val_size, 0, image_size=8, batch_size=8)
    return MLP([16], in_channels=3, image_size=8), data


def fit(*callbacks: L.Callback, val_size: int = 37, **kwargs: Any) -> L.Trainer:
    options = {"accelerator": "cpu", "max_epochs": 3, **QUIET, **kwargs}
    if any(isinstance(callback, BestCheckpoint) for callback in callbacks):
        options["enable_checkpointing"] = True
    trainer = L.Trainer(callbacks=list(callbacks), **options)
    trainer.fit(*make(val_size))
    return trainer


class Spy(L.Callback):
    """What validation measured, and how the model stands after the callbacks before this one."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []
        self.modes: set[tuple[bool, ...]] = set()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        pl_module.layers[2].eval()  # one that is no longer trained stays so

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        if not trainer.sanity_checking:
            self.metrics.append({k: v.item() for k, v in trainer.callback_metrics.items()})

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.modes.add(tuple(module.training for module in pl_module.modules()))
        self.weights = {k: v.clone() for k, v in pl_module.state_dict().items()}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[ClassPredictions]:
    """Collect all predictions instead of drawing figures of them."""
    seen: list[ClassPredictions] = []

    def keep(*args: Any) -> ClassPredictions | None:
        if (result := predict_validation(*args)) is not None:
            seen.append(result)
        return result

    monkeypatch.setattr(pictures, "predict_validation", keep)
    for name in ("draw_grid", "draw_confusion", "draw_hardest"):
        monkeypatch.setattr(pictures, name, lambda *_: Figure(figsize=(1, 1)))
    return seen


def test_a_run_is_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "FIRST_AFTER_S", 0)
    runs = []
    for own in ([], [PredictionGrid(every_n_epochs=1), CurvesMonitor()]):
        spy = Spy()
        trainer = fit(*own, spy, logger=CSVLogger("logs"), max_epochs=2)
        assert (Path(trainer.log_dir, "confusion.png").is_file()) == bool(own)
        state = trainer.strategy.lightning_module_state_dict()
        optimizer = trainer.optimizers[0].state_dict()["state"]
        state |= {f"{i}.{k}": v for i, s in optimizer.items() for k, v in s.items()}
        runs.append((state, torch.get_rng_state(), spy, trainer.datamodule.state_dict()))
    (plain, rng, spy, position), (drawn, rng_drawn, spy_drawn, position_drawn) = runs
    assert plain.keys() == drawn.keys()
    assert all(torch.equal(plain[name], drawn[name]) for name in plain)
    assert torch.equal(rng, rng_drawn)
    assert spy.metrics == spy_drawn.metrics
    assert spy.modes == spy_drawn.modes
    assert position == position_drawn


def test_every_epoch_is_evaluated_as_validation_does(said: list[ClassPredictions]) -> None:
    spy = Spy()
    trainer = fit(PredictionGrid(every_n_epochs=2), spy, max_epochs=5)
    labels, indices = trainer.datamodule.sets["val"][1:]
    assert len(said) == 3  # after the second and fourth epoch, and at the end
    for predictions, metrics in zip(said, spy.metrics[1::2] + spy.metrics[-1:], strict=True):
        assert torch.equal(predictions.labels, labels[indices])
        assert predictions.losses.mean().item() == pytest.approx(metrics["val/loss"], rel=1e-5)
        right = predictions.classes == predictions.labels
        assert right.float().mean().item() == pytest.approx(metrics["val/acc"])
        assert torch.allclose(predictions.losses[right], -predictions.probabilities[right].log())


def test_the_end_shows_the_best_weights(said: list[ClassPredictions]) -> None:
    args = ["fit", "--config", "synthetic", "--data.train_size", "64", "--data.val_size", "40"]
    args += ["--data.image_size", "8", "--model", "MLP", "--model.optimizer.lr", "0.01"]
    args += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
    main([*args, "--trainer.enable_model_summary", "false", "--trainer.max_epochs", "12"])
    record = json.loads(Path("runs/synthetic/version_0/run.json").read_text())
    assert record["best_epoch"] < 11
    assert said[0].losses.mean().item() == pytest.approx(record["metrics"]["val/loss"], rel=1e-5)


def test_only_the_batches_of_the_run_are_evaluated(said: list[ClassPredictions]) -> None:
    trainer = fit(PredictionGrid(), limit_val_batches=1)
    labels, indices = trainer.datamodule.sets["val"][1:]
    assert torch.equal(said[0].labels, labels[indices][:16])
    assert (said[0].losses > 0).all()


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("bf16-mixed", torch.bfloat16), ("bf16-true", torch.bfloat16), ("64-true", torch.float64)],
)
def test_precision_is_that_of_the_run(
    precision: str, dtype: torch.dtype, said: list[ClassPredictions]
) -> None:
    class Dtypes(L.Callback):
        def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            pl_module.layers[-1].register_forward_hook(lambda *args: seen.append(args[2].dtype))

    seen: list[torch.dtype] = []
    fit(Dtypes(), PredictionGrid(), precision=precision, max_epochs=1)
    assert seen == [dtype] * 3
    assert len(said) == 1


def test_event_file_has_the_pictures_at_the_step_of_their_metrics(tmp_path: Path) -> None:
    logger = TensorBoardLogger(str(tmp_path), "a", "b")
    fit(PredictionGrid(every_n_epochs=2), logger=logger)
    events = EventAccumulator(logger.log_dir, size_guidance={"images": 0})
    events.Reload()
    steps = [event.step for event in events.Scalars("val/loss")]
    for name in NAMES:
        images = events.Images(f"val/{name}")
        assert [image.step for image in images] == [steps[1], steps[2]]
        file = Image.open(tmp_path / "a" / "b" / f"{name}.png").convert("RGB")
        logged = Image.open(io.BytesIO(images[-1].encoded_image_string))
        assert np.array_equal(np.asarray(logged), np.asarray(file))


def test_pictures_are_in_the_run_folder_without_a_logger(tmp_path: Path) -> None:
    config = {"name": "a", "seed_everything": 0, "trainer": {}}
    fit(PredictionGrid(), RunRecord(tmp_path / "runs/a/version_0", config, []))
    assert {path.name for path in tmp_path.rglob("*.png")} == {f"{name}.png" for name in NAMES}
    for name in NAMES:
        assert (tmp_path / "runs/a/version_0" / f"{name}.png").is_file()


@pytest.mark.filterwarnings("ignore:Total length of `list` across ranks is zero")
@pytest.mark.parametrize("options", [{"val_size": 0}, {"limit_val_batches": 0}])
def test_nothing_is_drawn_without_validation(options: dict[str, int], tmp_path: Path) -> None:
    fit(PredictionGrid(every_n_epochs=1), **options)
    assert not list(tmp_path.rglob("*.png"))


def test_a_diverged_model_is_drawn(tmp_path: Path) -> None:
    class Diverges(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            nn.init.constant_(pl_module.layers[-1].bias, torch.nan)

    fit(Diverges(), PredictionGrid(), max_epochs=1)
    assert len(list(tmp_path.glob("*.png"))) == 3


def test_negative_epochs_are_refused() -> None:
    with pytest.raises(ValueError, match="every_n_epochs -1"):
        PredictionGrid(-1)


RANKS = """
import sys
import torch, lightning as L
from project.callbacks import CurvesMonitor, PredictionGrid, pictures
sys.path.insert(0, {tests!r})
import test_pictures

class Compare(L.Callback):
    def on_train_end(self, trainer, pl_module):
        said = pictures.predict_validation(trainer, pl_module)
        if trainer.is_global_zero:
            torch.save((vars(said), pl_module.state_dict()), "said.pt")

if __name__ == "__main__":
    trainer = test_pictures.fit(
        PredictionGrid(every_n_epochs=1), CurvesMonitor(), Compare(),
        strategy="ddp", devices=2, val_size=33,  # no second image for the last batch's second rank
    )
    print("rank", trainer.global_rank, "has", trainer.global_step, "steps")
"""


@pytest.mark.slow
def test_two_ranks_share_the_pass_and_one_draws(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS.format(tests=str(Path(__file__).parent)))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "ranks.py"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert {f"rank {rank} has 18 steps" for rank in (0, 1)} <= set(done.stdout.splitlines())
    assert len(list(tmp_path.rglob("*.png"))) == 3
    values, weights = torch.load("said.pt")
    model, data = make(33)
    model.load_state_dict(weights)
    data.setup("fit")
    logits = torch.cat([model.eval()(images) for images, _ in data.val_dataloader()])
    labels = data.sets["val"][1][data.sets["val"][2]]
    losses = nn.functional.cross_entropy(logits, labels, reduction="none")
    assert torch.equal(values["labels"], labels)
    assert torch.equal(values["classes"], logits.argmax(1))
    assert torch.allclose(values["losses"], losses, atol=1e-6)


class Clock(L.Callback):
    """Time that passes by one second a batch, and by `cost` a drawing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: float) -> None:
        self.now, self.cost = 0.0, cost
        self.drawn: list[float] = []
        monkeypatch.setattr(pictures.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(pictures, "draw_curves", lambda *_: None)
        monkeypatch.setattr(pictures, "save_figure", self.draw)

    def draw(self, *_: Any) -> bytes:
        self.drawn.append(self.now)
        self.now += self.cost
        return b""

    def on_train_batch_start(self, *_: Any) -> None:
        self.now += 1


def test_curves_take_one_percent_of_the_time_after_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, cost=0.25)
    options = {"max_epochs": 20, "limit_val_batches": 0}  # 120 batches
    fit(clock, CurvesMonitor(), logger=CSVLogger("logs"), **options)
    *running, end = clock.drawn
    assert running[0] == 10
    assert np.diff(running).min() >= 0.25 + 25
    assert len(running) == 5
    assert end == clock.now - clock.cost


def test_a_short_run_has_its_curves_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, cost=1)
    trainer = fit(clock, CurvesMonitor(), logger=CSVLogger("logs"), max_epochs=1)
    assert clock.drawn == [6]
    assert trainer.global_step == 6


@pytest.mark.parametrize(
    ("broken", "logger"),
    [(False, True), (True, True), (False, False)],
    ids=["before the first validation", "not finite", "without metrics.csv"],
)
def test_a_running_run_is_drawn_from_its_first_batch_on(
    broken: bool, logger: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Breaks(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
            if broken and trainer.global_step == 8:
                nn.init.constant_(pl_module.layers[-1].bias, torch.nan)

    class Seen(L.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            seen.append(len(list(tmp_path.rglob("curves.png"))))

    monkeypatch.setattr(pictures, "FIRST_AFTER_S", 0)
    monkeypatch.setattr(pictures, "COST_FACTOR", 0)
    seen: list[int] = []
    log = CSVLogger("logs") if logger else False
    fit(Breaks(), CurvesMonitor(), Seen(), logger=log, log_every_n_steps=1)
    assert seen == [int(logger)] * 18


CELL = """
import logging, sys, warnings
sys.path.insert(0, {tests!r})
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
import test_pictures
from lightning.pytorch.loggers import CSVLogger
from project.callbacks import CurvesMonitor, pictures
pictures.FIRST_AFTER_S = pictures.COST_FACTOR = 0
updates = []
class Counted(CurvesMonitor):
    def _show(self, png):
        super()._show(png)
        updates.append(self._shown is not None)
log = CSVLogger("logs", version=0)
test_pictures.fit(Counted(), logger=log, max_epochs=1, log_every_n_steps=1)
"""


@pytest.mark.slow
def test_a_notebook_shows_one_figure_and_updates_it(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("jupyter_client")
    pytest.importorskip("ipykernel")
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = client.kernelspec.KernelSpec(argv=argv, language="python")

    class ThisInterpreter(client.AsyncKernelManager):
        kernel_spec = spec

    sources = [CELL.format(tests=str(Path(__file__).parent)), "print(updates)"]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    resources = {"metadata": {"path": str(tmp_path)}}
    environment = os.environ | {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / "ipython")}
    nbclient.NotebookClient(
        notebook, timeout=60, kernel_manager_class=ThisInterpreter, resources=resources
    ).execute(env=environment)
    figures = [output for output in cells[0].outputs if "image/png" in output.get("data", {})]
    assert cells[1].outputs[0].text == f"{[True] * 7}\n"  # after each batch and at the end
    assert len(figures) == 1
    newest = (tmp_path / "logs/lightning_logs/version_0/curves.png").read_bytes()
    assert base64.b64decode(figures[0].data["image/png"]) == newest


def test_nothing_is_shown_outside_of_a_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    monitor = CurvesMonitor()
    fit(monitor, logger=CSVLogger("logs"), max_epochs=1)
    assert monitor._shown is None
    assert "Image" not in capsys.readouterr().out
