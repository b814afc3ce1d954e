"""The speed benchmarks run in a tiny form, and write what readers of their JSON rely on."""

import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from benchmarks import gpu, growth, loading, startup, timing, training
from project.data import SyntheticDataModule
from project.models import MLP, ResNet18

pytestmark = [
    # Lightning says these two of runs as here.
    pytest.mark.filterwarnings("ignore:Total length of `list` across ranks is zero"),
    pytest.mark.filterwarnings("ignore:.*fp16.*not supported on CPU"),
    # 2026-11: torchvision 0.29 deprecates its decoder for a package that is not needed here.
    pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning"),
]


def read(path: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a result, after checking that it has the promised keys."""
    result = json.loads(path.read_text())
    assert result["command"].startswith(f"python -m benchmarks.{name}")
    assert result["hardware"]
    assert {"python", "torch", "lightning"} <= result["versions"].keys()
    for row in result["rows"]:
        assert row["name"]
        assert math.isfinite(row["ratio"])
        assert row["ratio"] >= 0
        assert (row["target"] is None) == (row["met"] is None)
    assert len({row["name"] for row in result["rows"]}) == len(result["rows"])
    rows: list[dict[str, Any]] = result["rows"]
    return rows


def test_competitors_take_turns_and_warm_up_is_lost() -> None:
    calls: list[str] = []

    def call(name: str) -> int:
        calls.append(name)
        return len(calls)

    found = timing.interleave({"a": partial(call, "a"), "b": partial(call, "b")}, repeats=2)
    assert calls == ["b", "a", "a", "b", "b", "a"]
    assert found == {"a": [3, 6], "b": [4, 5]}


@pytest.mark.parametrize(("target", "met"), [(2.0, True), (1.9, False), (None, None)])
def test_a_row_compares_medians(target: float | None, met: bool | None) -> None:
    row = timing.versus("row", [1.0, 4.0, 100.0], [2.0, 2.0, 1.0], target, images=5)
    assert row["ratio"] == 2.0
    assert (row["lowest"], row["highest"]) == (0.5, 100.0)
    assert row["met"] is met
    assert row["images"] == 5


@pytest.mark.parametrize(("target", "met"), [(4.0, True), (4.1, False), (None, None)])
def test_faster_counts_the_other_way_round(target: float | None, met: bool | None) -> None:
    row = timing.faster("row", [1.0, 1.0], [4.0, 4.0], target)
    assert row["ratio"] == 4.0
    assert row["met"] is met
    assert (row["ours_s"], row["theirs_s"]) == (1.0, 4.0)


def test_the_clock_gives_epochs_with_what_they_contain_and_steps() -> None:
    class Slow(L.Callback):
        def on_validation_start(self, *_: Any) -> None:
            time.sleep(0.05)

    clock = timing.Clock()
    data = SyntheticDataModule(32, 8, 0, image_size=8, batch_size=8)
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    L.Trainer(
        max_epochs=3,
        num_sanity_val_steps=0,
        callbacks=[clock, Slow()],
        accelerator="cpu",
        **dict.fromkeys(off, False),  # type: ignore[arg-type]
    ).fit(MLP(in_channels=3, image_size=8), data)
    assert len(clock.epochs_s) == 3
    assert min(clock.epochs_s) > 0.05
    assert len(clock.steps_s) == 3 * 3  # of four steps an epoch, the last one has no end
    assert min(clock.steps_s) > 0


@pytest.mark.slow
def test_training(fashion_mnist_root: Path, tmp_path: Path) -> None:
    args = ["--root", str(fashion_mnist_root), "--repeats", "1", "--sizes", "256", "128"]
    args += ["--epochs", "2", "--width", "16", "--batch_size", "4", "--steps", "3"]
    training.main([*args, "--out", str(tmp_path / "training.json")])
    rows = read(tmp_path / "training.json", "training")
    assert [row["target"] for row in rows[:6]] == [0.9, 1.4, None, None, 1.02, 1.02]
    assert len(rows) == 7
    whole = rows[3]
    assert whole["ours_s"] > whole["before_ours_s"] > 0
    assert whole["ours_s"] > rows[0]["ours_s"]


@pytest.mark.slow
def test_the_loops_written_by_hand_learn(
    fashion_mnist_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A competitor that does not train would be too fast."""
    made: list[MLP] = []

    def make() -> MLP:
        made.append(MLP())
        return made[-1]

    monkeypatch.setattr(training, "MLP", make)
    torch.manual_seed(0)
    sizes = (1000, 500)
    training.dataloader_loop(fashion_mnist_root, sizes, 3, tmp_path)
    training.leanest_loop(fashion_mnist_root, sizes, 3)
    images, labels = training.fashion_mnist(fashion_mnist_root, sizes)["val"]
    for model in made:
        model.eval()
        assert (model(images).argmax(1) == labels).float().mean() > 0.65
    assert len(made) == 2
    saved = torch.load(tmp_path / "checkpoint.pt")
    assert saved["epoch"] == 2
    assert torch.equal(saved["model"]["1.weight"], made[0].layers[1].weight)


def test_loading(tmp_path: Path) -> None:
    args = ["--repeats", "1", "--images", "1024", "--jpegs", "32"]
    loading.main([*args, "--out", str(tmp_path / "loading.json")])
    rows = read(tmp_path / "loading.json", "loading")
    assert all(row["at_least"] for row in rows)
    assert rows[0]["ratio"] > 1  # whole batches are faster than single images, on any machine
    assert rows[0]["ours_us"] * 1024 == pytest.approx(1e6 * rows[0]["ours_s"])


def test_startup_runs_each_command_and_sees_torch(tmp_path: Path) -> None:
    startup.make_runs(tmp_path)
    assert not startup.imports_torch(["compare", *startup.GROUPS], tmp_path)
    assert not startup.imports_torch(["seed_noise", "--help"], tmp_path)


def test_activations_are_those_of_the_batch() -> None:
    model = ResNet18(width=16)
    one, two = (
        growth.activations(model, torch.rand(n, 3, 32, 32), torch.zeros(n, dtype=torch.int64))
        for n in (8, 16)
    )
    assert one > 8 * 16 * 32 * 32 * 4 * 5  # of the first stage alone, the inputs of 5 convolutions
    assert two == pytest.approx(2 * one, rel=0.02)


def test_gpu_steps_train_in_each_precision() -> None:
    torch.manual_seed(0)
    for precision in ("fp32", "tf32", "bf16-mixed", "16-mixed"):
        loop = gpu.LeanLoop(gpu.TINY, precision, channels_last=False)  # type: ignore[arg-type]
        assert loop.model.conv1.weight.is_contiguous()
        before = loop.model.fc.weight.detach().clone()
        loop.step()
        assert not torch.equal(loop.model.fc.weight, before), precision
        assert loop.model.fc.weight.isfinite().all()


def test_gpu_compiling_in_place_changes_no_key() -> None:
    model = ResNet18(width=16)
    keys = list(model.state_dict())
    gpu.Compile().setup(L.Trainer(logger=False, barebones=True), model, "fit")
    assert list(model.state_dict()) == keys
    assert model._compiled_call_impl is not None


def test_gpu_begins_nothing_when_the_time_is_over(tmp_path: Path) -> None:
    session = gpu.Session(gpu.Size(minutes=0), tmp_path / "gpu.json", "python -m benchmarks.gpu")
    session.run(lambda: pytest.fail("it was begun"), "part")
    assert session.skipped == ["part"]
