"""Linear regression against the truth, the closed form, and its own interrupted and sharded runs.

With features of variance 1, the least squares estimate of each of w and b has the standard error
σ/√n. SGD at a constant rate adds to the variance of each σ²·lr/batch_size: the excess at which what
a step takes off, 4·lr·v, equals what the noise of its gradient adds, 4·lr²·σ²/batch_size.
"""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import OneCycleLR

from project.commands.cli import CLI, main
from project.data import LinearDataModule
from project.engine.checkpoint_io import load_checkpoint
from project.engine.saving import Interrupted
from project.models import LinearRegression
from tests.machinery.engine.test_resume import compare, disturb

QUIET = ["--config", "linear_regression", "--trainer.accelerator", "cpu"]
QUIET += ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
FIT = ["fit", *QUIET]
DECAY = ["--model.lr_scheduler", "CosineAnnealingLR", "--model.lr_scheduler.T_max", "10"]


def truth(data: LinearDataModule) -> Tensor:
    return torch.tensor([*data.weight, data.bias])


def learnt(model: Any) -> Tensor:
    return torch.cat([model.linear.weight.detach().flatten(), model.linear.bias.detach()])


def least_squares(data: LinearDataModule) -> Tensor:
    """Return the w and b of the least squared error on the training points, in closed form."""
    x, y, _ = data.sets["train"]
    assert isinstance(x, Tensor)
    design = torch.cat([x, torch.ones(len(x), 1)], dim=1).double()
    return torch.linalg.lstsq(design, y.double()).solution.float()


def standard_error(data: LinearDataModule) -> float:
    return data.noise / math.sqrt(len(data.sets["train"][1]))


@pytest.mark.parametrize("noise", [0.1, 2.0])
def test_points_lie_around_the_truth_as_the_noise_says(noise: float) -> None:
    data = LinearDataModule(weight=(0.5, -1, 3), bias=-2, noise=noise, train_size=4000)
    data.setup("fit")
    assert torch.all((least_squares(data) - truth(data)).abs() < 4 * standard_error(data))
    for x, y, _ in data.sets.values():
        residual = y - x @ data.weight - data.bias
        assert abs(residual.std() / noise - 1) < 4 / math.sqrt(2 * len(y))
        assert abs(x.std() - 1) < 4 / math.sqrt(2 * x.numel())


def test_the_splits_have_no_point_in_common_and_split_seed_makes_them() -> None:
    one, same, other = LinearDataModule(), LinearDataModule(seed=3), LinearDataModule(split_seed=1)
    for data in (one, same, other):
        data.setup("fit")
    points = torch.cat([x for x, _, _ in one.sets.values()])
    assert len(points.unique(dim=0)) == 3000
    assert one.sha256 == same.sha256 != other.sha256


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> CLI:
    return main([*FIT, "--trainer.default_root_dir", str(tmp_path_factory.mktemp("runs"))])


def test_learns_the_truth_within_the_noise(trained: CLI) -> None:
    data, optimizer = trained.datamodule, trained.trainer.optimizers[0]
    assert isinstance(optimizer, SGD)
    assert (optimizer.param_groups[0]["lr"], data.batch_size) == (0.03, 32)
    sgd = data.noise * math.sqrt(0.03 / data.batch_size)
    bound = 4 * math.hypot(standard_error(data), sgd)
    assert torch.all((learnt(trained.model) - truth(data)).abs() < bound)
    assert torch.all((torch.zeros(3) - truth(data)).abs() > 10 * bound), "the bound tells"


def test_learns_least_squares_when_the_learning_rate_decays() -> None:
    cli = main([*FIT, *DECAY])
    difference = (learnt(cli.model) - least_squares(cli.datamodule)).abs()
    assert torch.all(difference < 0.5 * standard_error(cli.datamodule))


def test_losses_are_mean_squared_errors_and_no_less_than_the_noise(trained: CLI) -> None:
    run = Path(trained.run_folder)
    cli = main(["test", "--run", str(run), *QUIET[2:]])
    metrics = json.loads((run / "run.json").read_text())["metrics"]
    assert metrics.keys() == {"val/loss", "test/loss", "val/mae", "test/mae"}
    for split in ("val", "test"):
        x, y, _ = cli.datamodule.sets[split]
        w_and_b = learnt(cli.model)
        squares = (x @ w_and_b[:-1] + w_and_b[-1] - y).double() ** 2
        assert metrics[f"{split}/loss"] == pytest.approx(squares.mean().item(), rel=1e-5)
        noise = cli.datamodule.noise**2  # of the mean of n squares, the std is √(2/n) times it
        assert abs(metrics[f"{split}/loss"] / noise - 1) < 4 * math.sqrt(2 / len(y))


def test_training_loss_is_the_mean_over_the_epoch() -> None:
    still = ["--model.optimizer.lr", "0", "--trainer.max_epochs", "2", "--data.train_size", "100"]
    still += ["--preflight", "false"]  # which refuses a learning rate of 0
    cli = main([*FIT, *still])
    x, y, _ = cli.datamodule.sets["train"]
    squares = (cli.model(x) - y) ** 2
    measured = cli.trainer.callback_metrics["train/loss"].item()
    assert measured == pytest.approx(squares.mean().item(), rel=1e-5)


def test_optimizer_and_schedule_are_options() -> None:
    options = ["--model.optimizer", "AdamW", "--model.optimizer.lr", "0.1", *DECAY]
    cli = main([*FIT, *options, "--trainer.max_epochs", "5"])
    assert isinstance(cli.trainer.optimizers[0], AdamW)
    half_way = 0.1 * (1 + math.cos(math.pi / 2)) / 2
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(half_way)


def test_one_cycle_counts_steps() -> None:
    lengths = ["--model.lr_scheduler.max_lr", "0.03", "--model.lr_scheduler.total_steps", "64"]
    cycle = ["--model.lr_scheduler", "OneCycleLR", *lengths]
    cli = main([*FIT, *cycle, "--trainer.max_epochs", "1"])
    reference = SGD([torch.zeros(1, requires_grad=True)], lr=0.03)
    schedule = OneCycleLR(reference, max_lr=0.03, total_steps=64)
    for _ in range(32):
        reference.step()
        schedule.step()
    rate = cli.trainer.optimizers[0].param_groups[0]["lr"]
    assert rate == reference.param_groups[0]["lr"] < 0.03


def test_lr_find_suggests_the_order_of_magnitude_of_the_config() -> None:
    found = main(["lr_find", *QUIET, "--lr_max", "10"]).lr_range
    assert found.min_over_10 / 10 < 0.03 < 10 * found.min_over_10
    assert Path("runs/linear_regression/lr_find.png").is_file()


SMALL = [*FIT, "--data.train_size", "416", "--trainer.max_epochs", "3"]  # 13 steps an epoch
SMALL += ["--data.val_size", "100", "--preflight", "false"]  # which calls hooks of copies too
PLATEAU = ["--model.lr_scheduler", "ReduceLROnPlateau", "--model.lr_scheduler.patience", "0"]
PLATEAU += ["--model.lr_scheduler.threshold", "0.999"]


WARM = ["--model.lr_scheduler", "CosineAnnealingWarmRestarts", "--model.lr_scheduler.T_0", "2"]
WARM += ["--model.interval", "step", "--model.warmup_steps", "28"]


@pytest.mark.parametrize("options", [[], PLATEAU, WARM], ids=["constant", "plateau", "warm-up"])
def test_interrupted_equals_uninterrupted(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main([*SMALL, *options, "--trainer.default_root_dir", "straight"])
    steps = [3, 11, 12, 13, 25, 26, 30]
    interrupted = list(steps)

    def on_train_batch_start(self: LinearRegression, *_: Any) -> None:
        if self.global_step in steps:
            steps.remove(self.global_step)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(LinearRegression, "on_train_batch_start", on_train_batch_start)
    resumed = [*SMALL, *options, "--ckpt_path", "last", "--trainer.default_root_dir", "resumed"]
    for _ in interrupted:
        with pytest.raises(Interrupted):
            main(resumed)
        disturb()
    main(resumed)
    runs = [Path(root, "linear_regression/version_0") for root in ("straight", "resumed")]
    compare(*runs)
    if options:
        rates = load_checkpoint(runs[0] / "checkpoints/last.ckpt")["optimizer_states"][0]
        assert rates["param_groups"][0]["lr"] < 0.03


def test_position_among_other_points_is_refused() -> None:
    data, other = LinearDataModule(), LinearDataModule(split_seed=1)
    for module in (data, other):
        module.setup("fit")
    next(iter(data.train_dataloader()))
    state = data.state_dict()
    with pytest.raises(ValueError, match="holds other training or validation examples"):
        other.load_state_dict(state)
    data.load_state_dict(state)
    assert len(list(data.train_dataloader())) == 32 - 1


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_two_ranks_together_see_what_one_sees(split: str) -> None:
    def data(rank: int, world_size: int) -> LinearDataModule:
        module = LinearDataModule(val_size=33, test_size=35)  # which two can't share equally
        share = {"global_rank": rank, "world_size": world_size, "overfit_batches": 0.0}
        module.trainer = SimpleNamespace(**share)  # type: ignore[assignment]
        module.setup("fit")
        return module

    def batches(rank: int, world_size: int) -> list[tuple[Tensor, Tensor]]:
        return list(getattr(data(rank, world_size), f"{split}_dataloader")())

    alone = batches(0, 1)
    for (x, y), *parts in zip(alone, batches(0, 2), batches(1, 2), strict=True):
        for rank, (own_x, own_y) in enumerate(parts):
            assert torch.equal(own_x, x[rank::2])
            assert torch.equal(own_y, y[rank::2])
    seen, expected = torch.cat([y for _, y in alone]), data(0, 1).sets[split][1]
    assert torch.equal(seen.sort().values, expected.sort().values)
    assert torch.equal(seen, expected) == (split != "train")


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(trained: CLI) -> None:
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    args = [*FIT, "--trainer.strategy", "ddp", "--trainer.devices", "2"]
    subprocess.run([sys.executable, "-m", "project", *args], check=True, env=environment)
    run = Path("runs/linear_regression/version_0")
    state = load_checkpoint(run / "checkpoints/best.ckpt")["state_dict"]
    for name, value in trained.model.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=1e-6)
    records = [json.loads((r / "run.json").read_text()) for r in (run, trained.run_folder)]
    assert [record["world_size"] for record in records] == [2, 1]
    losses = [record["metrics"]["val/loss"] for record in records]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize(
    "wrong", [{"weight": ()}, {"noise": -0.1}, {"train_size": 0}, {"batch_size": 0}]
)
def test_impossible_points_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        LinearDataModule(**wrong)
