"""Checks refuse before the first step, and a run that passes is as if there had been none.

Which faults they find is in test_preflight.py.
"""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

from project.callbacks import InitLossCheck, OverfitOneBatch
from project.commands.cli import main
from project.commands.trainer import Trainer
from project.data import SyntheticDataModule
from project.models import MLP

OFF = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")

SMALL = ["--config", "synthetic", "--data.train_size", "64", "--data.val_size", "16"]
SMALL += ["--data.image_size", "8", "--data.batch_size", "16", "--model", "MLP"]
SMALL += ["--trainer.accelerator", "cpu", "--trainer.max_epochs", "1"]
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
UNTRAINABLE = ["--model.optimizer", "SGD", "--model.optimizer.lr", "0"]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_run_is_the_same_with_and_without_them(precision: Any) -> None:
    states = []
    for checks in ([], [InitLossCheck(), OverfitOneBatch()]):
        L.seed_everything(3, verbose=False)
        data = SyntheticDataModule(100, 40, 0, image_size=8, batch_size=16)
        model = MLP([16], in_channels=3, image_size=8, optimizer=partial(AdamW, lr=1e-2))
        off: dict[str, Any] = dict.fromkeys(OFF, False)
        trainer = L.Trainer(
            accelerator="cpu", max_epochs=2, callbacks=checks, precision=precision, **off
        )
        trainer.fit(model, data)
        optimizer = trainer.optimizers[0].state_dict()["state"]
        moments = [value for state in optimizer.values() for value in state.values()]
        states.append([*model.state_dict().values(), *moments, torch.get_rng_state()])
        states[-1].append(torch.tensor(list(data.state_dict()["position"].values())))
    assert len(states[0]) == len(states[1])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:You defined a")
def test_a_loader_of_torch_stays_where_it_was() -> None:
    """Also one that has a generator of its own, and without a data module."""
    seen: list[list[int]] = []

    class Noted(MLP):
        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> Any:
            if self.trainer.max_steps == -1:  # not in a rehearsal
                seen[-1] += batch[1].tolist()
            return super().training_step(batch, batch_idx)

    images, labels = torch.randn(64, 1, 8, 8), torch.arange(64) % 10
    for checks in ([], [InitLossCheck(), OverfitOneBatch()]):
        seen.append([])
        L.seed_everything(0, verbose=False)
        generator = torch.Generator().manual_seed(5)
        loader = DataLoader(TensorDataset(images, labels), 16, shuffle=True, generator=generator)
        off: dict[str, Any] = dict.fromkeys(OFF, False)
        trainer = L.Trainer(
            accelerator="cpu", max_epochs=2, limit_val_batches=0, callbacks=checks, **off
        )
        model = Noted([64], image_size=8, optimizer=partial(AdamW, lr=1e-2))
        trainer.fit(model, loader)
    assert len(seen[0]) == 128
    assert seen[0] == seen[1]


def test_a_real_grad_scaler_is_left_as_it_was() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    off: dict[str, Any] = dict.fromkeys(OFF, False)
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler)], **off
    )
    model = MLP([64], in_channels=3, image_size=8, optimizer=partial(AdamW, lr=1e-2))
    verdicts = trainer.check(model, SyntheticDataModule(100, 40, 0, image_size=8))
    assert all(verdict.passed for verdict in verdicts), verdicts
    assert scaler.get_scale() == 1024.0


def test_fit_refuses_a_run_that_cannot_work_and_leaves_nothing(
    exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["fit", *SMALL, *QUIET, *UNTRAINABLE]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: this run was not started: the learning rate is 0 (OverfitOne")
    assert error.endswith("--preflight false)")
    assert not Path("runs").exists()
    assert exit_code(["fit", *SMALL, *QUIET, *UNTRAINABLE, "--preflight", "false"]) == 0


def test_a_run_that_goes_on_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    measure = OverfitOneBatch.measure

    def noted(self: OverfitOneBatch, *args: Any) -> Any:
        calls.append(args)
        return measure(self, *args)

    monkeypatch.setattr(OverfitOneBatch, "measure", noted)
    main(["fit", *SMALL, *QUIET])
    assert len(calls) == 1
    main(["fit", "--run", "runs/synthetic/version_0", "--trainer.max_epochs", "2", *QUIET])
    assert len(calls) == 1


def test_a_model_that_is_trained_already_may_be_trained_further() -> None:
    steep = [
        "--model.optimizer.lr",
        "0.01",
        "--trainer.max_epochs",
        "40",
        "--monitor",
        "train/loss",
    ]
    main(["fit", *SMALL, *QUIET, *steep, "--model.dropout", "0"])
    best = "runs/synthetic/version_0/checkpoints/best.ckpt"
    main(["fit", *SMALL, *QUIET, "--init_from", best])
    assert Path("runs/synthetic/version_1/run.json").is_file()


def test_check_says_what_it_found(
    exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["InitLossCheck", "OverfitOneBatch", "ZeroInputCheck"]
    names += ["DataStreamCheck", "SplitOverlapCheck", "EvaluationCheck"]
    assert exit_code(["check", *SMALL]) == 0
    table = json.loads(Path("runs/synthetic/check.json").read_text())
    assert table["passed"]
    assert {check["name"] for check in table["checks"]} == set(names)
    assert all(set(c) == {"name", "passed", "diagnosis", "measured"} for c in table["checks"])
    assert table["checks"][0]["measured"]["expected"] == pytest.approx(math.log(10), abs=1e-6)

    assert exit_code(["check", *SMALL, *UNTRAINABLE]) == 1
    table = json.loads(Path("runs/synthetic/check.json").read_text())
    assert not table["passed"]
    assert "FAILED  OverfitOneBatch" in (out := capsys.readouterr().out)
    assert "the learning rate is 0" in out
    assert [path.name for path in Path("runs/synthetic").iterdir()] == ["check.json"]
