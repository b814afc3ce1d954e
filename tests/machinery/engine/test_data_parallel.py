"""One process or several: the same examples, gradients, weights and metrics."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml

from benchmarks import scaling
from project.callbacks import PredictionGrid
from project.commands.cli import main
from project.engine.checkpoint_io import load_checkpoint
from project.engine.datamodule import EVAL_FACTOR
from project.engine.loader import TensorLoader
from project.engine.metrics import MeanLoss

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/machinery/support'}",
    "OMP_NUM_THREADS": "1",
}
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
QUIET += ["--preflight", "false"]
# 11 steps an epoch, the last one of 6 examples.
FIT = ["fit", "--config", "synthetic", "--model", "MLP", "--model.hidden_sizes", "[32, 16]"]
FIT += ["--model.norm", "none", "--model.dropout", "0", "--model.optimizer", "SGD"]
FIT += ["--model.optimizer.lr", "0.1", "--model.optimizer.momentum", "0.9"]
FIT += ["--data.train_size", "126", "--data.val_size", "101", "--data.test_size", "101"]
FIT += ["--data.image_size", "8", "--data.batch_size", "12", "--data.augment", '{"crop": 2}']
FIT += ["--trainer.max_epochs", "2", "--trainer.accelerator", "cpu", *QUIET]
TRACED = [*FIT, "--trainer.num_sanity_val_steps", "-1"]
TRACED += ["--trainer.callbacks+", "rank_callbacks.Trace"]
DDP = ["--trainer.strategy", "ddp", "--trainer.devices"]
WORLDS = (2, 3)
RUN = Path("synthetic/version_0")
EPSILON = 2.0**-24  # relative rounding error of float32


def run(args: list[str], folder: Path, world: int) -> str:
    """Run a command on some processes, and return what they print."""
    done = subprocess.run(
        [sys.executable, "-m", "project", *args, *DDP, str(world)],
        cwd=folder,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Return the folders of the runs on 1, 2 and 3 processes."""
    roots = {world: tmp_path_factory.mktemp(f"ranks_{world}") for world in (1, *WORLDS)}
    with ThreadPoolExecutor() as pool:
        args = [*TRACED, "--trainer.default_root_dir"]
        others = [pool.submit(run, [*args, "."], roots[world], world) for world in WORLDS]
        main([*args, str(roots[1])])
        for other in others:
            other.result()
    return roots


@pytest.fixture(scope="module")
def tested(folders: dict[int, Path]) -> dict[int, dict[str, float]]:
    """Test metrics of one checkpoint, that of the run on one process, on 1, 2 and 3 of them."""
    metrics = {}
    args = ["test", "--run", str(folders[1] / RUN)]
    for world in (1, *WORLDS):
        if world == 1:
            main(args)
        else:
            run(args, folders[1], world)
        metrics[world] = json.loads((folders[1] / RUN / "run.json").read_text())["metrics"]
    return metrics


def traces(folder: Path, world: int) -> list[dict[str, Any]]:
    """Return what each of the processes has seen."""
    return [torch.load(folder / f"trace_{world}_{rank}.pt") for rank in range(world)]


def dealt(ranks: list[list[str]]) -> list[str]:
    """A global batch, of which rank r has each example whose number is r modulo their number."""
    size, world = sum(map(len, ranks)), len(ranks)
    return [ranks[i % world][i // world] for i in range(size)]


@pytest.mark.parametrize("world", WORLDS)
def test_the_order_of_examples_is_the_same(world: int, folders: dict[int, Path]) -> None:
    """The augmentation is included, since the pixels are compared."""
    (alone,) = traces(folders[1], 1)
    ranks = [trace["seen"]["train"] for trace in traces(folders[world], world)]
    batches = [dealt(list(batch)) for batch in zip(*ranks, strict=True)]
    assert [len(batch) for batch in batches] == 2 * [*10 * [12], 6]
    assert batches == alone["seen"]["train"]


@pytest.mark.parametrize("world", WORLDS)
def test_gradients_of_the_first_step_are_the_same(world: int, folders: dict[int, Path]) -> None:
    """They differ only by the order of the sums over 12 examples in float32.

    Each of the 12 additions rounds by at most half a unit in the last place, and the terms are no
    larger than the largest gradient of an example, which is several times that of the mean.
    """
    (alone,) = traces(folders[1], 1)
    for trace in traces(folders[world], world):
        for name, expected in alone["gradients"].items():
            error = (trace["gradients"][name] - expected).abs().max()
            assert error <= 12 * EPSILON * expected.abs().max(), name


@pytest.mark.parametrize("world", WORLDS)
def test_weights_stay_the_same_without_batch_norm(world: int, folders: dict[int, Path]) -> None:
    """They agree within 1e-6 after 22 steps, in which they have moved by more than 0.1."""
    alone, others = (
        load_checkpoint(folders[k] / RUN / "checkpoints/last.ckpt") for k in (1, world)
    )
    for name, expected in alone["state_dict"].items():
        torch.testing.assert_close(others["state_dict"][name], expected, rtol=0, atol=1e-6)
    moved = alone["optimizer_states"][0]["state"]
    assert any(state["momentum_buffer"].abs().max() > 1e-2 for state in moved.values())


def check_metrics(found: dict[str, float], expected: dict[str, float]) -> None:
    """Check that accuracies are equal, and losses too, up to the rounding of single examples.

    The sums are exact, in whatever order. But a matrix product in float32 can round a row in
    another way if the batch has fewer rows, by one unit in the last place.
    """
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        bound = 2 * EPSILON * value if name.endswith("loss") else 0
        assert abs(found[name] - value) <= bound, name


@pytest.mark.parametrize("world", WORLDS)
def test_validation_is_the_same(world: int, folders: dict[int, Path]) -> None:
    """It is on 101 examples, not divisible by 2 or 3, with the untrained weights."""
    (alone,) = traces(folders[1], 1)
    ranks = traces(folders[world], world)
    for trace in ranks:
        check_metrics(trace["metrics"], alone["metrics"])
        assert trace["metrics"] == ranks[0]["metrics"]
    seen = sorted(x for trace in ranks for batch in trace["seen"]["val"] for x in batch)
    assert seen == sorted(x for batch in alone["seen"]["val"] for x in batch)
    assert len(set(seen)) == len(seen) == 101


@pytest.mark.parametrize("world", WORLDS)
def test_test_is_the_same(
    world: int, folders: dict[int, Path], tested: dict[int, dict[str, float]]
) -> None:
    assert tested[world].keys() >= {"test/loss", "test/acc"}
    check_metrics(tested[world], tested[1])
    ranks = traces(folders[1], world)
    seen = [x for trace in ranks for batch in trace["seen"]["test"] for x in batch]
    assert len(set(seen)) == len(seen) == 101


# The end of a run


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run on two processes whose last epochs are worse than its best one."""
    folder = tmp_path_factory.mktemp("ending")
    taken = folder / RUN  # so that the run is not the first of its name
    taken.mkdir(parents=True)
    args = [*FIT, "--trainer.default_root_dir", ".", "--trainer.max_epochs", "8"]
    args += ["--model.optimizer.lr", "1.0", "--trainer.callbacks+", "rank_callbacks.Ending"]
    assert "Its weights are restored." in run(args, folder, 2)
    return folder


def test_all_ranks_end_with_the_best_weights_in_one_folder(ending: Path) -> None:
    folder = ending / "synthetic/version_1"
    best, last = (load_checkpoint(folder / f"checkpoints/{k}.ckpt") for k in ("best", "last"))
    assert best["epoch"] < last["epoch"] == 7
    for rank in range(2):
        end = torch.load(ending / f"ending_{rank}.pt")
        assert (ending / end["folder"]).resolve() == folder.resolve()
        for name, expected in best["state_dict"].items():
            assert torch.equal(end["weights"][name], expected), (rank, name)
    assert any(not torch.equal(v, last["state_dict"][k]) for k, v in best["state_dict"].items())
    assert sorted(path.name for path in folder.parent.iterdir()) == ["version_0", "version_1"]


def test_the_pictures_of_several_ranks_are_of_one_network(ending: Path) -> None:
    """What is drawn is what one process says with the best weights, in batches of each rank's."""
    folder = ending / "synthetic/version_1"
    for name in ("predictions", "confusion", "hardest"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    gathered, other = (torch.load(ending / f"ending_{rank}.pt")["said"] for rank in range(2))
    assert all(torch.equal(gathered[name], other[name]) for name in gathered)
    alone = ["--trainer.strategy", "auto", "--trainer.devices", "1", *QUIET[:4]]
    cli = main(["validate", "--run", str(folder), *alone])
    images, labels, indices = cli.datamodule.sets["val"]
    transform = cli.datamodule.batch_transform("val")
    expected = torch.zeros(len(indices), 3)
    for rank in range(2):
        size = EVAL_FACTOR * 12
        shares = TensorLoader(
            images, labels, size, indices=indices, transform=transform, rank=rank, world_size=2
        )
        with torch.no_grad():
            logits = [cli.model.eval()(batch) for batch, _ in shares]
        for k, share in enumerate(logits):
            places = range(k * size + rank, min((k + 1) * size, len(indices)), 2)
            probabilities, classes = share.softmax(1).max(1)
            losses = F.cross_entropy(share, labels[indices[places]], reduction="none")
            expected[places] = torch.stack((classes, probabilities, losses), 1)
    for column, name in enumerate(("classes", "probabilities", "losses")):
        assert torch.equal(gathered[name].to(expected), expected[:, column]), name


def test_metrics_of_the_same_losses_are_identical() -> None:
    """Their distribution does not matter, since their sums are exact in float64."""
    losses = 5 * torch.rand(101)
    whole = MeanLoss()
    whole.update(losses, len(losses))
    parts = [MeanLoss() for _ in range(3)]
    for rank, part in enumerate(parts):
        part.update(losses[rank::3], len(losses[rank::3]))
    parts[2].merge_state(parts[1])
    parts[2].merge_state(parts[0])
    assert parts[2].compute() == whole.compute()


@pytest.fixture(autouse=True)
def _without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures, which take longer than the runs of these tests."""
    monkeypatch.setattr(PredictionGrid, "on_train_end", lambda *_: None)


def weights(args: list[str]) -> dict[str, torch.Tensor]:
    """Return the weights at the end of the last epoch, after training in this process."""
    off = ["--trainer.enable_checkpointing", "false", "--trainer.logger", "false"]
    return main([*args, *off]).model.state_dict()


def test_accumulation_is_the_larger_batch() -> None:
    # Without a rest, which Lightning would divide by the number of batches in a whole step.
    plain = [*FIT, "--data.augment", "null", "--data.train_size", "120"]
    small = ["--data.batch_size", "6"]
    whole = weights(plain)
    halves = weights([*plain, *small, "--trainer.accumulate_grad_batches", "2"])
    for name, expected in whole.items():
        torch.testing.assert_close(halves[name], expected, rtol=0, atol=1e-6)
    alone = weights([*plain, *small])
    assert any((alone[name] - whole[name]).abs().max() > 1e-3 for name in whole)


# The learning rate by the batch size

SCALED = ["--model.reference_batch_size", "6"]


def test_the_learning_rate_follows_the_batch_size(caplog: pytest.LogCaptureFixture) -> None:
    twice = weights([*FIT, "--model.optimizer.lr", "0.2"])
    scaled = weights([*FIT, *SCALED])
    sentence = "The learning rate is 2 times the optimiser's: 12 examples a step, for 6."
    assert caplog.messages.count(sentence) == 1
    assert all(torch.equal(scaled[name], expected) for name, expected in twice.items())
    config = yaml.safe_load(Path("runs/synthetic/version_1/config.yaml").read_text())
    assert config["model"]["init_args"]["reference_batch_size"] == 6


def test_accumulated_examples_count() -> None:
    accumulate = ["--trainer.accumulate_grad_batches", "3"]
    plain = [*FIT, "--data.train_size", "108", *accumulate]
    expected = weights([*plain, "--model.optimizer.lr", "0.6"])
    scaled = weights([*plain, *SCALED])
    assert all(torch.allclose(scaled[name], expected[name], atol=1e-7) for name in expected)


@pytest.mark.parametrize(
    "schedule",
    [
        ["--model.lr_scheduler", "OneCycleLR"],
        ["--model.lr_scheduler", "CosineAnnealingLR", "--model.warmup_steps", "5"],
    ],
    ids=["one cycle", "cosine with warm-up"],
)
def test_schedules_start_from_the_scaled_rate(schedule: list[str]) -> None:
    twice = weights([*FIT, *schedule, "--model.optimizer.lr", "0.2"])
    scaled = weights([*FIT, *schedule, *SCALED])
    assert all(torch.equal(scaled[name], expected) for name, expected in twice.items())


def test_checks_before_training_use_the_scaled_rate() -> None:
    """They train copies without the data module that has the batch size."""
    args = [*FIT, *SCALED, "--trainer.max_epochs", "1", "--preflight", "true"]
    assert main(args).model.lr_factor == 2


# The cost model


def test_cost_model_of_a_ring() -> None:
    """Two devices exchange half of the bytes twice; many, each byte twice."""
    assert scaling.all_reduce_s(8e9, 2, 1e9, 0) == pytest.approx(8)
    assert scaling.all_reduce_s(8e9, 1000, 1e9, 0) == pytest.approx(2 * 8, rel=2e-3)
    assert scaling.all_reduce_s(0, 3, 1e9, 0.5) == pytest.approx(2)
    assert scaling.all_reduce_s(8e9, 1, 1e9, 1) == 0
    assert scaling.speed_up(4, 2, 0) == 2
    assert scaling.speed_up(4, 2, 2, overlap=1) == 2
    assert scaling.speed_up(4, 2, 2) == 1
    size = scaling.smallest_batch(images_per_s=100, reduce_s=0.1)
    assert (size / 100) / (size / 100 + 0.1) == pytest.approx(0.9)


def test_table_of_the_page_is_the_models() -> None:
    assert scaling.table() in (ROOT / "docs/scaling.md").read_text()


@pytest.mark.parametrize("preset", ["ddp", "fsdp"])
def test_presets_of_many_processes_are_for_any_data(preset: str) -> None:
    """Also for those that never leave out the rest of an epoch."""
    with pytest.raises(SystemExit) as stop:
        main(
            ["fit", "--config", "linear_regression", f"--config=presets/{preset}", "--print_config"]
        )
    assert stop.value.code in (0, None)


def test_fsdp_preset_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """More can't be tested, since Lightning's FSDP needs GPUs, and says so."""
    fsdp = ["fit", "--config", "synthetic", "--config", "presets/fsdp"]
    with pytest.raises(SystemExit) as stop:
        main([*fsdp, "--print_config"])
    assert stop.value.code in (0, None)
    strategy = yaml.safe_load(capsys.readouterr().out)["trainer"]["strategy"]
    assert strategy["class_path"] == "lightning.pytorch.strategies.FSDPStrategy"
    with pytest.raises(ValueError, match="`fsdp` requires a GPU accelerator"):
        main([*fsdp, "--trainer.accelerator", "cpu"])
