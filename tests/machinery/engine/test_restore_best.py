"""A run ends with the weights that it says it ends with. Several processes: test_data_parallel."""

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor

from project.commands.cli import CLI, main
from project.engine import restore_best
from project.engine.checkpoint_io import load_checkpoint

FIT = ["fit", "--config", "synthetic", "--model", "MLP", "--model.hidden_sizes", "[16]"]
FIT += ["--model.optimizer", "SGD", "--model.optimizer.lr", "0.5", "--data.train_size", "64"]
FIT += ["--data.val_size", "40", "--data.image_size", "8", "--data.batch_size", "16"]
FIT += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
FIT += ["--trainer.enable_model_summary", "false", "--preflight", "false"]
FIT += ["--trainer.max_epochs", "8"]
SWA = ["--trainer.callbacks+", "StochasticWeightAveraging", "--trainer.callbacks.swa_lrs", "0.1"]
SWA += ["--trainer.callbacks.swa_epoch_start", "3", "--trainer.callbacks.device", "null"]
EMA = ["--trainer.callbacks+", "EMAWeightAveraging", "--trainer.callbacks.decay", "0.5"]
RUN = Path("runs/synthetic/version_0")


def weights(name: str) -> dict[str, Tensor]:
    state: dict[str, Tensor] = load_checkpoint(RUN / f"checkpoints/{name}.ckpt")["state_dict"]
    return state


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], value) for name, value in other.items())


def validate(cli: CLI) -> float:
    alone = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    (measured,) = alone.validate(cli.model, cli.datamodule, verbose=False)
    return measured["val/loss"]


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_averaged_weights_are_kept_saved_and_announced(
    norm: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    cli = main([*FIT, *SWA, "--model.norm", norm])
    averaged = weights("averaged")
    assert same(cli.model.state_dict(), averaged)
    if norm == "none":  # else Lightning trains one epoch more for its statistics, and validates it
        assert not same(averaged, weights("best"))
    assert "restored" not in capsys.readouterr().out
    assert "has averaged" in caplog.text
    assert not (load_checkpoint(RUN / "checkpoints/averaged.ckpt")).get("metrics")
    again = main(["validate", "--run", str(RUN), "--ckpt_path", str(RUN / restore_best.AVERAGED)])
    assert again.trainer.callback_metrics["val/loss"].item() == pytest.approx(validate(cli))


def test_a_run_that_ends_before_it_averages_restores_its_best_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli = main([*FIT, *SWA, "--model.norm", "none", "--trainer.max_steps", "8"])
    assert same(cli.model.state_dict(), weights("best"))
    assert not (RUN / restore_best.AVERAGED).exists()
    assert "Its weights are restored." in capsys.readouterr().out


def test_moving_averages_are_what_was_measured_and_restored() -> None:
    cli = main([*FIT, *EMA, "--model.norm", "none"])
    assert same(cli.model.state_dict(), weights("best"))
    record = json.loads((RUN / "run.json").read_text())
    assert validate(cli) == pytest.approx(record["metrics"]["val/loss"], rel=1e-6)


def test_a_divided_model_is_not_said_to_be_restored(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Lightning's FSDP needs GPUs; here one device stands for it."""
    monkeypatch.setattr(restore_best, "DIVIDED", (SingleDeviceStrategy,))
    cli = main([*FIT, "--model.norm", "none"])
    assert json.loads((RUN / "run.json").read_text())["best_epoch"] < 7
    assert same(cli.model.state_dict(), weights("last"))
    assert not same(cli.model.state_dict(), weights("best"))
    assert "restored" not in capsys.readouterr().out
    assert "keeps the weights of the last epoch" in caplog.text


def test_nothing_is_restored_without_a_best_checkpoint() -> None:
    off: list[Any] = ["--trainer.enable_checkpointing", "false"]
    assert main([*FIT, *off]).trainer.current_epoch == 8
