"""A checkpoint meets data: classes are the same by name, and a result is of the run's own data."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from project.commands.cli import main
from project.commands.compare import check_comparable
from project.data import SyntheticDataModule
from project.engine.checkpoint_io import load_checkpoint
from project.engine.weights import check_same_classes, init_from
from project.models import MLP, FastNet, ResNet18
from project.reports.seed_report import SeedNoiseReport
from project.runs.classes import difference, saved_classes
from tests.machinery.support.runs import write_runs

QUIET = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--preflight=false"]
QUIET += ["--trainer.enable_model_summary=false"]
MLP_ARGS = ["--config=synthetic", "--model=MLP", "--model.hidden_sizes=[8]", *QUIET]
FIT = ["fit", *MLP_ARGS, "--data=ImageFolderDataModule", "--data.image_size=8"]
FIT += ["--data.cache=false", "--data.batch_size=8", "--trainer.max_epochs=1"]
FIT += ["--model.lr_scheduler=ConstantLR"]
PARTS = (("train", 12), ("val", 4), ("test", 6))
CLASSES = ("bird", "cat", "dog")
ORDER = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]


class Permuted(SyntheticDataModule):
    """The same images and names, with other numbers for the classes."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.class_names = [self.class_names[k] for k in ORDER]

    def load(self, split: Any) -> tuple[Tensor, Tensor] | None:
        loaded = super().load(split)
        return loaded and (loaded[0], torch.tensor(ORDER).argsort()[loaded[1]])


def write_images(root: Path, seed: int) -> None:
    for part, count in PARTS:
        for label, name in enumerate(CLASSES):
            for k in range(count):
                path = root / part / name / f"{k}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                rng = np.random.default_rng([seed, label, k])
                Image.fromarray(rng.integers(80 * label, 256, (8, 8, 3), np.uint8)).save(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `data` and the run folder `run` that was trained on them."""
    root = tmp_path_factory.mktemp("trained")
    write_images(root / "data", 0)
    main([*FIT, f"--data.root={root / 'data'}", f"--trainer.default_root_dir={root}"])
    (root / "synthetic" / "version_0").rename(root / "run")
    return root


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> tuple[str, Path]:
    """Return the option that names a copy of the run, and a copy of its data; tests change both."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return f"--run={tmp_path / 'run'}", tmp_path / "data"


def record(run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(run.removeprefix("--run="), "run.json").read_text())
    return found


def rename(root: Path, old: str, new: str) -> None:
    for part, _ in PARTS:
        (root / part / old).rename(root / part / new)


@pytest.mark.parametrize(("old", "new"), [("cat", "zcat"), ("cat", "catt")])
def test_classes_of_other_names_are_refused(
    copied: tuple[str, Path],
    old: str,
    new: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, root = copied
    rename(root, old, new)
    before = record(run)
    names = f"'{old}' is only in the checkpoint and '{new}' is only in the data"
    for command in ("test", "validate", "predict"):
        with pytest.raises(ValueError, match=f"the data have other classes than .*{names}"):
            main([command, run, f"--data.root={root}"])
    with pytest.raises(ValueError, match=f"can't resume from .*{names}"):
        main(["fit", run, f"--data.root={root}", "--trainer.max_epochs=2"])
    assert "exactly" not in caplog.text + capsys.readouterr().out
    assert record(run) == before


def test_a_class_that_is_missing_is_named(copied: tuple[str, Path]) -> None:
    run, root = copied
    for part, _ in PARTS:
        shutil.rmtree(root / part / "cat")
    counts = "3 classes in the checkpoint, 2 in the data: 'cat' is only in the checkpoint"
    with pytest.raises(ValueError, match=counts) as caught:
        main(["test", run, f"--data.root={root}"])
    assert "--run" not in str(caught.value)


def test_another_model_is_not_answered_with_the_option_that_was_given(trained: Path) -> None:
    with pytest.raises(ValueError, match="Leave out the options that change the model$"):
        main(["test", f"--run={trained / 'run'}", "--model.hidden_sizes=[9]"])


def test_the_same_names_in_another_order_are_mapped(caplog: pytest.LogCaptureFixture) -> None:
    tiny = ["--data.train_size=48", "--data.val_size=40", "--data.test_size=40"]
    tiny += ["--data.image_size=8", "--trainer.max_epochs=1"]
    main(["fit", *MLP_ARGS, *tiny])
    run = "runs/synthetic/version_0"
    other = ["--data=test_classes.Permuted", *tiny[:4], f"--ckpt_path={run}/checkpoints/best.ckpt"]
    metrics = []
    for args in ([f"--run={run}"], [*MLP_ARGS, *other]):
        cli = main(["validate", *args])
        metrics.append({k: v.item() for k, v in cli.trainer.callback_metrics.items()})
        main(["predict", *args])
    assert metrics[0]["val/acc"] == metrics[1]["val/acc"] < 1
    assert metrics[0]["val/loss"] == pytest.approx(metrics[1]["val/loss"], rel=1e-6)
    assert "are in another order" in caplog.text
    # By name, not by number.
    written = [Path(run, folder, "predictions.csv") for folder in ("", "checkpoints")]
    assert written[0].read_text() == written[1].read_text()
    best = Path(run, "checkpoints", "best.ckpt")
    with pytest.raises(ValueError, match="can't resume .*the same names in another order"):
        check_same_classes(best, load_checkpoint(best), Permuted().class_names)


@pytest.mark.parametrize("model", [MLP, ResNet18, FastNet])
def test_init_from_takes_the_last_layer_for_the_same_classes_only(model: Any) -> None:
    sizes = {"hidden_sizes": [4, 6], "image_size": 16} if model is MLP else {"width": 4}

    def make() -> Any:
        return model(num_classes=4, in_channels=3, **sizes)

    names = ["a", "b", "c", "d"]
    source = make()
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.normal_()
    reading = {"image_size": 16, "in_channels": 3, "mean": [0.5] * 3, "std": [0.2] * 3}
    facts = {"preprocessing": {"class_names": names, **reading}}
    torch.save({"state_dict": source.state_dict(), "data": facts}, "source.ckpt")
    images = torch.rand(5, 3, 16, 16)

    def outputs(now: list[str]) -> tuple[Tensor, str]:
        own = make()
        sentence = init_from(Path("source.ckpt"), own, now)
        with torch.no_grad():
            return own.eval()(images), sentence

    with torch.no_grad():
        expected = source.eval()(images)
    same, sentence = outputs(names)
    assert torch.equal(same, expected)
    assert "class" not in sentence
    reordered, sentence = outputs(["c", "a", "d", "b"])
    assert torch.allclose(reordered, expected[:, [2, 0, 3, 1]], rtol=1e-5, atol=1e-5)
    assert "follow the new order" in sentence
    _, sentence = outputs(["a", "b", "c", "e"])
    assert "'d' is only in the checkpoint and 'e' is only in the data" in sentence
    fresh, taken = make(), make()
    init_from(Path("source.ckpt"), taken, ["a", "b", "c", "e"])
    differing = [k for k, v in taken.state_dict().items() if not v.equal(source.state_dict()[k])]
    last = [k for k, _ in fresh.named_parameters()][-1].rpartition(".")[0]
    assert {key.rpartition(".")[0] for key in differing} == {last}


def test_checkpoints_without_names_are_said_to_have_none(
    copied: tuple[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    run, root = copied
    path = Path(run.removeprefix("--run="), "checkpoints", "best.ckpt")
    checkpoint = load_checkpoint(path)
    assert saved_classes(checkpoint) == list(CLASSES)
    del checkpoint["ImageFolderDataModule"]["preprocessing"]
    checkpoint["hyper_parameters"]["class_names"] = list(CLASSES)
    assert saved_classes(checkpoint) == list(CLASSES)  # of an older version
    del checkpoint["hyper_parameters"]["class_names"]
    torch.save(checkpoint, path)
    main(["validate", run, f"--data.root={root}"])
    assert "best.ckpt has no class names" in caplog.text
    assert "no class names" in init_from(path, MLP([8], num_classes=3), list(CLASSES))


def test_results_of_other_data_do_not_replace_the_run_s(
    copied: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, root = copied
    write_images(root.parent / "other", 1)
    place = Path(run.removeprefix("--run="))
    for command in ("test", "predict"):  # before there is a result of the run's own
        main([command, run, f"--data.root={root.parent / 'other'}"])
    assert record(run)["metrics"].keys() == {"val/loss", "val/acc"}
    assert record(run)["tested"] == 0
    assert not (place / "predictions.csv").exists()
    assert "examples differ" in capsys.readouterr().out

    root = root.rename(root.with_name("moved"))  # which are the same data
    for command in ("test", "predict"):
        main([command, run, f"--data.root={root}"])
    before, said = record(run), (place / "predictions.csv").read_text()
    assert {"test/loss", "test/acc", "val/loss", "val/acc"} == before["metrics"].keys()
    assert before["tested"] == 1
    capsys.readouterr()
    shutil.copy(root / "test" / "cat" / "1.png", root / "test" / "cat" / "0.png")
    for other in (root, root.with_name("other")):
        for command in ("test", "predict"):
            main([command, run, f"--data.root={other}"])
            assert "since the test examples differ" in capsys.readouterr().out
    assert record(run) == before
    assert (place / "predictions.csv").read_text() == said


def test_runs_on_other_classes_are_not_compared() -> None:
    for name, classes in (("a", ["cat", "dog"]), ("b", ["cat", "cow"]), ("old", None)):
        write_runs(Path(name), [0.5, 0.6], classes=classes)
    a, b, old = (SeedNoiseReport.of(name, None, None, 1) for name in ("a", "b", "old"))
    with pytest.raises(ValueError, match="'dog' is only in a and 'cow' is only in b"):
        check_comparable(a, b)
    check_comparable(a, old)


def test_differences_are_named() -> None:
    assert difference(["a", "b"], ["a", "b"]) == ""
    many = [str(k) for k in range(100)]
    assert difference(["0"], many).endswith(
        "'1', '2', '3', '4', '5' and 94 more are only in the data"
    )


@pytest.mark.parametrize("command", ["test", "predict"])
def test_the_errors_are_one_sentence(
    copied: tuple[str, Path],
    command: str,
    exit_code: Callable[[list[str]], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, root = copied
    rename(root, "dog", "wolf")
    assert exit_code([command, run, f"--data.root={root}"]) == 1
    assert "'wolf' is only in the data" in capsys.readouterr().err.splitlines()[-1]
