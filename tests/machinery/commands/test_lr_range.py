"""The LR range test on losses with a known answer, and on real data."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch.optim import SGD, Adam, AdamW, RMSprop

from project.commands.cli import main
from project.commands.lr_range import LRRange, LRSweep, smooth, span
from project.data import SyntheticDataModule
from project.models import MLP

QUIET = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
TINY = ["--config", "synthetic", "--data.train_size", "64", "--data.image_size", "8"]
TINY += ["--model", "MLP", "--num_steps", "30"]


def measured(losses: list[float]) -> LRRange:
    sweep = LRSweep(1e-6, 1.0, 400)
    sweep.lrs, sweep.losses = sweep.lrs[-len(losses) :], losses
    return LRRange.of(sweep)


def test_smoothing_is_unbiased_from_the_first_step() -> None:
    assert smooth([3.0] * 20) == pytest.approx([3.0] * 20)
    losses = [2.0, 1.0, 4.0]
    weights = np.array([[1, 0, 0], [0.9, 1, 0], [0.81, 0.9, 1]])
    expected = weights @ losses / weights.sum(1)
    assert smooth(losses) == pytest.approx(expected)


def test_suggestions_of_a_known_curve() -> None:
    lrs = np.geomspace(1e-6, 1, 400)
    # Falls fastest at 1e-3, is lowest at 1e-2; so slowly that smoothing does not move it much.
    fall = -np.tanh(2 * np.log10(lrs / 1e-3)) + 0.6 * np.maximum(0, np.log10(lrs / 1e-2)) ** 2
    found = measured((3 + fall).tolist())
    assert found.steepest == pytest.approx(1e-3, rel=0.5)
    assert 1e-3 < found.min_over_10 < 4e-3
    assert not found.open_ended
    assert measured(list(np.linspace(3, 2, 50))).open_ended


def test_a_loss_that_never_falls_is_refused() -> None:
    with pytest.raises(ValueError, match="never fell, from 1 at the first step"):
        measured([1.0, 2.0, 3.0, 9.0])
    with pytest.raises(ValueError, match="never fell, from nan"):
        measured([float("nan")] * 3)


@pytest.mark.parametrize("args", [(0.0, 1.0, 50), (1e-2, 1e-3, 50), (1e-4, 1.0, 3)])
def test_impossible_sweeps_are_refused(args: tuple[float, float, int]) -> None:
    with pytest.raises(ValueError, match="lr_min .* lr_max .* num_steps"):
        LRSweep(*args)


def quiet_trainer(**kwargs: Any) -> L.Trainer:
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return L.Trainer(accelerator="cpu", limit_val_batches=0, **dict.fromkeys(off, False), **kwargs)


class Rates(L.Callback):
    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def on_before_optimizer_step(self, trainer: L.Trainer, *_: Any) -> None:
        self.seen.append([group["lr"] for group in trainer.optimizers[0].param_groups])


@pytest.mark.parametrize("optimizer", [SGD, Adam, AdamW, RMSprop])
def test_learning_rates_are_exponential_and_groups_keep_their_ratio(optimizer: Any) -> None:
    def groups(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        first, *rest = parameters
        return optimizer([{"params": [first], "lr": 0.2}, {"params": rest, "lr": 0.05}])

    rates, sweep = Rates(), LRSweep(1e-5, 1e-2, 20)
    trainer = quiet_trainer(max_steps=20, callbacks=[sweep, rates])
    data = SyntheticDataModule(train_size=100, image_size=8)
    trainer.fit(MLP(in_channels=3, image_size=8, optimizer=groups), data)
    first, second = np.array(rates.seen).T
    assert first == pytest.approx(np.geomspace(1e-5, 1e-2, 20))
    assert second == pytest.approx(first / 4)
    assert len(sweep.losses) == 20


def test_a_fall_within_the_noise_is_said() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 60)
    flat, falling = np.linspace(2.35, 2.3, 60), np.linspace(2.3, 1.3, 60)
    clear = measured(list(falling + noise))
    assert not clear.uncertain
    assert "more than noise" not in clear.describe()
    assert "Begin with a learning rate" in clear.describe()
    unclear = measured(list(flat + noise))
    assert "little more than noise" in unclear.describe()
    assert "Begin" not in unclear.describe()
    assert unclear.usable is None
    assert unclear.steepest is None


@pytest.mark.parametrize("seed", range(5))
def test_the_range_begins_where_two_thirds_of_the_fall_are_behind(seed: int) -> None:
    """A curve that falls between 1e-4 and 1e-2, its middle at 1e-3, with the noise of batches."""
    lrs = np.geomspace(1e-6, 1, 400)
    fall = np.tanh(2 * np.log10(lrs / 1e-3)) - 0.6 * np.maximum(0, np.log10(lrs / 1e-2)) ** 2
    noise = np.random.default_rng(seed).normal(0, 0.1, 400)
    found = measured((3 - fall + noise).tolist())
    assert found.usable is not None
    low, high = found.usable
    assert 1e-3 < low < 4e-3
    assert 3 * found.min_over_10 < high < 4 * found.min_over_10
    assert found.steepest == pytest.approx(1e-3, rel=0.6)
    assert f"Begin with a learning rate from {low:.1e} to {high:.1e}: " in found.describe()


@pytest.mark.parametrize("seed", range(5))
def test_a_bump_of_noise_on_a_straight_line_is_not_named(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.15, 400)
    found = measured(list(np.linspace(2.3, 1.8, 400) + noise))
    assert not found.uncertain
    assert found.steepest is None
    assert "Where it falls fastest can't be told from the noise." in found.describe()


def test_it_says_which_lr_to_set_where_the_run_multiplies_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def said(*options: str) -> tuple[str, LRRange]:
        cli = main(["lr_find", *TINY, *QUIET, "--data.batch_size", "16", *options])
        return capsys.readouterr().out, cli.lr_range

    text, plain = said()
    assert "multiplies" not in text
    text, scaled = said("--model.reference_batch_size", "64")
    assert scaled.loss == plain.loss, "it is the rate of the steps that is raised"
    low, high = scaled.usable or (scaled.min_over_10, scaled.min_over_10)
    assert "multiplies the optimiser's lr by 0.25" in text
    assert f"set --model.optimizer.lr to a value {span(4 * low, 4 * high)}." in text


def test_it_stops_where_the_loss_diverges() -> None:
    sweep = LRSweep(1e-3, 1e4, 60)
    trainer = quiet_trainer(max_steps=60, callbacks=[sweep])
    data = SyntheticDataModule(train_size=200, image_size=8)
    model = MLP(in_channels=3, image_size=8, norm="none", optimizer=partial(SGD, lr=1.0))
    trainer.fit(model, data)
    assert 10 < len(sweep.losses) < 60
    assert LRRange.of(sweep).min_over_10 < 10


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_command_leaves_the_two_files_it_names(
    precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [*TINY, *QUIET, "--model.lr_scheduler", "OneCycleLR", "--trainer.precision", precision]
    cli = main(["lr_find", *args])
    files = sorted(str(path) for path in Path().rglob("*") if path.is_file())
    assert files == ["runs/synthetic/lr_find.json", "runs/synthetic/lr_find.png"]
    found = json.loads(Path(files[0]).read_text())
    assert list(found) == ["lr", "loss", "min_over_10", "steepest"]
    assert len(found["lr"]) == len(found["loss"]) <= 30
    assert found["lr"] == pytest.approx(np.geomspace(1e-6, 1, 30)[: len(found["lr"])])
    said = capsys.readouterr().out
    assert f"{found['min_over_10']:.1e}" in said
    assert found["steepest"] is None or f"{found['steepest']:.1e}" in said
    assert cli.lr_range.min_over_10 == found["min_over_10"]


def test_it_does_not_depend_on_the_configured_schedule_or_learning_rate() -> None:
    losses = []
    for options in (["--model.lr_scheduler", "OneCycleLR"], ["--model.optimizer.lr", "0.5"], []):
        cli = main(["lr_find", *TINY, *QUIET, *options, "--trainer.max_epochs", "1"])
        losses.append(cli.lr_range.loss)
    assert losses[0] == losses[1] == losses[2]
    assert len(losses[0]) > 10, "not cut short by max_epochs"


def test_fashion_mnist_lies_in_the_range_that_trains_well(fashion_mnist_root: Path) -> None:
    args = ["--config", "fashion_mnist", "--data.root", str(fashion_mnist_root), *QUIET]
    for seed in ("0", "1", "2"):
        cli = main(["lr_find", *args, "--seed_everything", seed])
        assert 2e-3 <= cli.lr_range.min_over_10 <= 1e-2
