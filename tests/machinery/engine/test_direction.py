"""Which values of a metric are better is known or asked for, and never guessed from its name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning import LightningModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassCalibrationError, MulticlassF1Score
from torchmetrics.text import WordErrorRate

from project.callbacks import EarlyStopping as OwnEarlyStopping
from project.commands.cli import main
from project.engine.classification import Accuracy
from project.engine.monitored import model_modes, monitor_mode
from project.engine.objective import Metrics
from project.models import MLP
from project.runs.direction import mode_by_name, recorded_mode
from project.runs.errors import UsageError
from project.runs.record import Record
from tests.machinery.support.runs import OLDEST

FIT = ["fit", "--config", "synthetic", "--data.train_size", "48", "--data.val_size", "20"]
FIT += ["--data.test_size", "20", "--data.image_size", "8", "--data.batch_size", "16"]
FIT += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
FIT += ["--trainer.enable_model_summary", "false", "--preflight", "false"]


class Scored(Accuracy):
    """A score that falls while the network gets better."""

    higher_is_better = None

    def compute(self) -> Tensor:
        return 1 - super().compute()


class Brier(MLP):
    def make_metrics(self) -> Metrics:
        return {"brier": Scored()}


class Directed(Scored):
    higher_is_better = False


class DirectedBrier(MLP):
    def make_metrics(self) -> Metrics:
        return {"brier": Directed()}


class OwnMetrics(MLP):
    """Metrics of its own, as attributes and in a collection."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.f1 = MulticlassF1Score(10)
        self.val_wer = WordErrorRate()
        self.scores = MetricCollection({"ece": MulticlassCalibrationError(10)})


def test_only_loss_and_acc_are_known_by_name() -> None:
    assert mode_by_name("val/loss") == mode_by_name("loss") == "min"
    assert mode_by_name("test/acc") == "max"
    assert mode_by_name("val/acc/cat") == "max"  # of one class
    for name in ("brier", "wer", "perplexity", "fid", "ece", "mape", "mse", "nll", "error", "f1"):
        assert mode_by_name(f"val/{name}") is None
    for name in ("val/loss_ratio", "val/bacc", "lossless", "closs", "grad_norm"):
        assert mode_by_name(name) is None


def test_torchmetrics_knows_the_others() -> None:
    model = OwnMetrics()
    assert model_modes(model) == {"acc": "max", "f1": "max", "wer": "min", "ece": "min"}
    for monitor, mode in (("val/f1", "max"), ("val/wer", "min"), ("val_ece", "min")):
        assert monitor_mode(monitor, None, model) == mode
    assert monitor_mode("val/brier", None, DirectedBrier()) == "min"
    assert monitor_mode("val/f1", "min", model) == "min", "what is given decides"


@pytest.mark.parametrize("monitor", ["val/brier", "val/perplexity", "val/los", "score"])
def test_what_nobody_knows_is_asked_for(monitor: str) -> None:
    models: list[LightningModule] = [Brier(), LightningModule()]
    for model in models:
        with pytest.raises(UsageError, match=rf"{monitor} is better.*--monitor_mode min or --mon"):
            monitor_mode(monitor, None, model)
        assert monitor_mode(monitor, "min", model) == "min"


def test_metrics_of_one_name_that_disagree_say_nothing() -> None:
    model = LightningModule()
    model.val_f1, model.test_f1 = MulticlassF1Score(3), WordErrorRate()
    assert model_modes(model) == {}


def test_a_run_asks_before_it_begins_and_leaves_nothing(
    exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{__name__}.Brier"
    code = exit_code([*FIT, "--model", name, "--monitor", "val/brier"])
    assert code == 2
    assert "whether a lower or a higher val/brier is better" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize("mode", ["min", "max"])
def test_all_that_follows_the_monitor_goes_its_way_and_the_record_keeps_it(mode: str) -> None:
    args = ["--model", f"{__name__}.Brier", "--monitor", "val/brier", "--monitor_mode", mode]
    args += ["--model.lr_scheduler", "ReduceLROnPlateau", "--early_stopping.patience", "9"]
    args += ["--early_stopping.min_delta", "0.01", "--trainer.max_epochs", "3"]
    cli = main([*FIT, *args])
    (stopping,) = [c for c in cli.trainer.callbacks if isinstance(c, EarlyStopping)]
    reference = EarlyStopping("val/brier", min_delta=0.01, patience=9, mode=mode)
    assert (stopping.mode, stopping.min_delta) == (mode, reference.min_delta)
    (best,) = [c for c in cli.trainer.callbacks if isinstance(c, ModelCheckpoint)]
    schedule = cli.trainer.lr_scheduler_configs[0].scheduler
    assert isinstance(schedule, ReduceLROnPlateau)
    assert (best.mode, schedule.mode) == (mode, mode)
    record = json.loads((cli.run_folder / "run.json").read_text())
    assert record["modes"]["val/brier"] == mode
    rows = (cli.run_folder / "metrics.csv").read_text().splitlines()
    column = rows[0].split(",").index("val/brier")
    values = [float(row.split(",")[column]) for row in rows[1:] if row.split(",")[column]]
    chosen = {"min": min, "max": max}[mode](values)
    assert record["metrics"]["val/brier"] == pytest.approx(chosen)
    assert best.best_model_score == stopping.best_score == pytest.approx(chosen)


def test_early_stopping_that_follows_equals_lightnings() -> None:
    for mode in ("min", "max"):
        own = OwnEarlyStopping("val/f1", min_delta=0.25)
        own.follow(mode)  # type: ignore[arg-type]
        reference = EarlyStopping("val/f1", min_delta=0.25, mode=mode)
        for value in (0.5, 0.6, 1.0, 0.2, 0.1):
            for one in (own, reference):
                one._evaluate_stopping_criteria(torch.tensor(value))
            assert (own.best_score, own.wait_count) == (reference.best_score, reference.wait_count)


def test_a_record_says_it_for_all_stages_and_old_ones_nothing() -> None:
    old = Record.from_json(Path("a"), OLDEST)
    new = replace(old, modes={"val/wer": "min"})
    other = replace(old, modes={"val/wer": "max"})
    assert recorded_mode("val/wer", [new, old]) == recorded_mode("test/wer", [new]) == "min"
    assert recorded_mode("val/wer", [old]) is None
    assert recorded_mode("val/wer", [new, other]) is None
    assert recorded_mode("val/acc", [old]) == "max"


def test_the_option_of_early_stopping_is_derived() -> None:
    with pytest.raises(UsageError, match="early_stopping.mode is set by --monitor and --mon"):
        main([*FIT, "--early_stopping.mode", "max"])
    config: dict[str, Any] = yaml.safe_load("{monitor: val/f1, monitor_mode: max}")
    Path("more.yaml").write_text(yaml.safe_dump(config))
    cli = main([*FIT, "--config", "more.yaml", "--trainer.fast_dev_run", "true", *PATIENT])
    (stopping,) = [c for c in cli.trainer.callbacks if isinstance(c, EarlyStopping)]
    assert stopping.mode == "max"


PATIENT = ["--early_stopping.patience", "3", "--model", f"{__name__}.WithF1"]


class F1(Accuracy):
    higher_is_better = None


class WithF1(MLP):
    def make_metrics(self) -> Metrics:
        return {"f1": F1()}
