"""The command line: what is built from it, and one clear sentence for each kind of bad input."""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.optim import SGD, AdamW

from project.commands.cli import CLI, main
from project.commands.sources import config_folder, expand
from project.data import FashionMNISTDataModule, SyntheticDataModule
from project.engine.signals import SIGNALS
from project.models import MLP, ResNet18
from project.runs.errors import UsageError
from project.runs.folder import claim_run
from project.runs.lock import lock_run

TINY = ["--data.train_size", "48", "--data.val_size", "20", "--data.test_size", "20"]
TINY += ["--data.image_size", "8", "--data.batch_size", "16", "--model.width", "4"]
QUIET = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
QUIET += ["--trainer.enable_model_summary", "false"]
FIT = ["fit", "--config", "synthetic", *TINY, *QUIET]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder, shared by tests that only read it."""
    root = tmp_path_factory.mktemp("finished")
    main([*FIT, "--trainer.max_epochs", "2", "--trainer.default_root_dir", str(root)])
    return root / "synthetic" / "version_0"


def test_run_folder_holds_what_the_design_promises(finished: Path) -> None:
    files = {path.name for path in finished.rglob("*") if path.is_file()}
    assert {"config.yaml", "metrics.csv", "run.json", "best.ckpt", "last.ckpt"} <= files
    assert any("tfevents" in name for name in files)
    record = json.loads((finished / "run.json").read_text())
    keys = "name version seed command git_sha git_dirty config_sha256 data_sha256 classes"
    keys += " examples versions device precision world_size seconds epochs best_epoch stopped_by"
    keys += " metrics modes tested test_sha256 ended resumes"
    assert list(record) == keys.split()
    assert (record["name"], record["version"]) == ("synthetic", "version_0")
    assert (record["seed"], record["epochs"], record["stopped_by"]) == (0, 2, "max_epochs")
    assert set(record["metrics"]) == {"val/loss", "val/acc"}


def test_record_is_of_the_best_epoch_whose_weights_are_restored() -> None:
    cli = main([*FIT, "--trainer.max_epochs", "3"])
    run_folder = Path("runs/synthetic/version_0")
    record = json.loads((run_folder / "run.json").read_text())
    rows = (run_folder / "metrics.csv").read_text().splitlines()
    column = rows[0].split(",").index("val/loss")
    losses = [float(row.split(",")[column]) for row in rows[1:] if row.split(",")[column]]
    assert len(losses) == 3
    assert record["metrics"]["val/loss"] == min(losses)
    assert record["best_epoch"] == losses.index(min(losses))
    best = torch.load(run_folder / "checkpoints" / "best.ckpt", weights_only=True)
    assert all(torch.equal(cli.model.state_dict()[k], v) for k, v in best["state_dict"].items())
    (measured,) = cli.trainer.validate(cli.model, cli.datamodule, verbose=False)
    assert measured["val/loss"] == pytest.approx(min(losses), rel=1e-6)


def test_versions_count_up_and_the_last_checkpoint_is_of_the_last_epoch() -> None:
    for version in range(2):
        main([*FIT, "--trainer.max_epochs", "2"])
        checkpoints = Path(f"runs/synthetic/version_{version}/checkpoints")
        assert torch.load(checkpoints / "last.ckpt", weights_only=True)["epoch"] == 1


def test_checkpoints_hold_plain_types_only(finished: Path) -> None:
    def check(value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                check(key)
                check(item)
        elif isinstance(value, list | tuple):
            for item in value:
                check(item)
        else:
            assert value is None or isinstance(value, str | int | float | bool | torch.Tensor)

    for name in ("best", "last"):
        check(torch.load(finished / f"checkpoints/{name}.ckpt", weights_only=True))


def test_saved_config_starts_the_same_run_again(finished: Path) -> None:
    again = main(
        ["fit", "--config", str(finished / "config.yaml"), "--trainer.default_root_dir", "."]
    )
    first = torch.load(finished / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    second = torch.load("synthetic/version_0/checkpoints/last.ckpt", weights_only=True)[
        "state_dict"
    ]
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert again.trainer.current_epoch == 2


def test_test_and_predict_from_the_run_folder_alone(finished: Path) -> None:
    main(["validate", "--run", str(finished)])
    cli = main(["test", "--run", str(finished)])
    record = json.loads((finished / "run.json").read_text())
    assert record["metrics"]["test/acc"] == cli.trainer.callback_metrics["test/acc"].item()
    main(["predict", "--run", str(finished)])
    rows = [line.split(",") for line in (finished / "predictions.csv").read_text().splitlines()]
    assert rows[0] == ["index", "label", "prediction", "probability"]
    assert len(rows) == 21
    accuracy = sum(row[1] == row[2] for row in rows[1:]) / 20
    assert accuracy == pytest.approx(record["metrics"]["test/acc"])


def test_test_from_a_config_and_a_checkpoint(finished: Path) -> None:
    checkpoint = str(finished / "checkpoints" / "last.ckpt")
    cli = main(["test", "--config", "synthetic", *TINY, *QUIET, "--ckpt_path", checkpoint])
    saved = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert all(torch.equal(cli.model.state_dict()[name], saved[name]) for name in saved)


def test_check_and_lr_find_look_at_a_run_as_it_began(finished: Path) -> None:
    run = ["--run", str(finished), *QUIET]
    checked = main(["check", *run])
    assert [verdict.name for verdict in checked.verdicts][:2] == [
        "InitLossCheck",
        "OverfitOneBatch",
    ]
    assert main(["lr_find", *run, "--num_steps", "20"]).lr_range.lr[0] == 1e-6


def test_check_and_lr_find_begin_with_the_weights_they_are_given(finished: Path) -> None:
    best = str(finished / "checkpoints" / "best.ckpt")
    given = [*FIT[1:], "--init_from", best]
    checked = main(["check", *given])
    saved = torch.load(best, weights_only=True)["state_dict"]
    assert all(torch.equal(checked.model.state_dict()[name], saved[name]) for name in saved)
    assert checked.verdicts[0].name == "OverfitOneBatch", "its initial loss is not near ln C"
    losses = [
        main(["lr_find", *args, "--num_steps", "20"]).lr_range.loss[0] for args in (given, FIT[1:])
    ]
    assert losses[0] < losses[1]


@pytest.mark.parametrize(
    "args",
    [
        ["--ckpt_path", "checkpoints/last.ckpt"],
        ["--ckpt_path", "checkpoints/best.ckpt", "--trainer.limit_predict_batches", "1"],
        ["--ckpt_path", "checkpoints/best.ckpt", "--data.split_seed", "1"],
    ],
)
def test_predictions_of_something_else_do_not_replace_the_run_s(
    finished: Path, tmp_path: Path, args: list[str]
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    config = ["--config", str(run / "config.yaml"), "--data.batch_size", "8"]
    main(["predict", *config, args[0], str(run / args[1]), *args[2:]])
    before = {path.name for path in finished.iterdir()}
    assert {path.name for path in run.iterdir()} == before
    rows = (run / "checkpoints" / "predictions.csv").read_text().splitlines()
    assert len(rows) == 1 + (16 if "--trainer.limit_predict_batches" in args else 20)


def test_a_run_that_goes_on_drops_the_predictions_of_before() -> None:
    main([*FIT, "--model.lr_scheduler", "ConstantLR", "--trainer.max_epochs", "1"])
    run = Path("runs/synthetic/version_0")
    main(["predict", "--run", str(run)])
    assert (run / "predictions.csv").is_file()
    main(["fit", "--run", str(run), "--trainer.max_epochs", "2"])
    assert not (run / "predictions.csv").exists()


def test_a_config_of_text_is_refused(
    exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("text.yaml").write_text("just text\n")
    assert exit_code(["fit", "--config", "text.yaml"]) == 2
    assert "'just text' is not a YAML file of options" in capsys.readouterr().err


def test_model_loads_from_a_checkpoint_in_a_notebook(finished: Path) -> None:
    model = ResNet18.load_from_checkpoint(finished / "checkpoints" / "best.ckpt")
    assert model.conv1.out_channels == 4
    assert model.num_classes == 10


def test_the_data_say_what_the_model_needs() -> None:
    Path("photos").mkdir()
    for name in ("cat", "dog", "owl"):
        Path("photos", name).mkdir()
    cli = parse(
        ["fit", "--model", "ResNet18", "--data", "ImageFolderDataModule", "--data.root", "photos"]
    )
    cli_init = cli.parser.instantiate(cli.config).fit
    assert cli_init.model.num_classes == 3
    assert cli_init.data.class_names == ["cat", "dog", "owl"]
    mlp = parse(
        ["fit", "--model", "MLP", "--data", "SyntheticDataModule", "--data.image_size", "8"]
    )
    assert mlp.parser.instantiate(mlp.config).fit.model.layers[1].in_features == 3 * 8 * 8


def parse(args: list[str]) -> CLI:
    """The command line, parsed and neither built nor run."""

    class Parsed(Exception):
        pass

    class ParseOnly(CLI):
        def _set_seed(self) -> None:
            parsed.append(self)
            raise Parsed

    parsed: list[CLI] = []
    with pytest.raises(Parsed):
        ParseOnly(args)
    return parsed[0]


def test_the_monitor_is_named_once() -> None:
    args = ["--monitor", "val/acc", "--early_stopping.patience", "3"]
    cli = main([*FIT, *args, "--trainer.max_epochs", "1"])
    (stopping,) = [c for c in cli.trainer.callbacks if isinstance(c, EarlyStopping)]
    assert (stopping.monitor, stopping.mode, stopping.patience) == ("val/acc", "max", 3)
    (best,) = [c for c in cli.trainer.callbacks if isinstance(c, ModelCheckpoint)]
    assert (best.monitor, best.mode) == ("val/acc", "max")
    assert cli.model.monitor == "val/acc"


def test_the_seed_is_of_weights_and_of_the_data_stream() -> None:
    runs = [
        main([*FIT, "--seed_everything", str(s), "--trainer.max_epochs", "1"]) for s in (1, 1, 2)
    ]
    same, again, other = (cli.model.state_dict()["fc.weight"] for cli in runs)
    assert torch.equal(same, again)
    assert not torch.equal(same, other)
    assert [cli.datamodule.seed for cli in runs] == [1, 1, 2]


def test_a_switched_class_starts_from_its_own_defaults() -> None:
    def optimizer(args: list[str]) -> Any:
        return parse(["fit", "--config", "cifar", *args]).config.fit.model.init_args.optimizer

    assert optimizer([]).init_args.lr == 0.2
    switched = optimizer(["--model.optimizer", "AdamW"])
    assert switched.class_path == "torch.optim.AdamW"
    assert (switched.init_args.lr, switched.init_args.weight_decay) == (1e-3, 1e-2)
    kept = optimizer(["--model.optimizer", "SGD", "--model.optimizer.lr", "0.05"]).init_args
    assert (kept.lr, kept.momentum, kept.weight_decay) == (0.05, 0.9, 5e-4)

    Path("adam.yaml").write_text("model: {init_args: {optimizer: {class_path: Adam}}}")
    assert optimizer(["--config", "adam.yaml"]).init_args.lr == 1e-3

    config = parse(["fit", "--config", "cifar", "--model", "MLP"]).config.fit
    assert config.model.init_args.lr_scheduler is None
    assert config.model.init_args.optimizer.init_args.lr == 1e-3
    config = parse(["fit", "--config", "cifar", "--model.lr_scheduler", "CosineAnnealingLR"]).config
    assert config.fit.model.init_args.lr_scheduler.init_args.T_max is None
    config = parse(["fit", "--config", "cifar", "--data", "SyntheticDataModule"]).config.fit
    assert config.data.init_args.batch_size == 128
    assert config.data.init_args.augment is None


def test_later_wins_and_presets_change_only_what_they_name() -> None:
    args = [
        "fit",
        "--config",
        "cifar",
        "--config",
        "presets/bf16",
        "--config",
        "presets/laptop",
        "--model.width",
        "8",
    ]
    config = parse(args).config.fit
    assert config.trainer.precision == "bf16-mixed"
    assert config.model.init_args.width == 8
    assert config.model.init_args.optimizer.init_args.lr == 0.2
    assert config.data.init_args.augment.cutout == 12


def test_configs_are_found_by_name_from_anywhere() -> None:
    shipped = str(config_folder() / "cifar.yaml")
    for name in ("cifar", "cifar.yaml", "configs/cifar.yaml"):
        assert expand(["fit", "--config", name]) == ["fit", "--config", shipped]
        assert expand(["fit", f"--config={name}"]) == ["fit", "--config", shipped]
    Path("cifar").write_text("own: 1")
    assert expand(["fit", "-c", "cifar"]) == ["fit", "--config", "cifar"]
    assert expand(["fit", "--model.width", "8"])[:3] == [
        "fit",
        "--config",
        str(config_folder() / "synthetic.yaml"),
    ]


def test_fit_without_a_config_trains_on_synthetic_data(capsys: pytest.CaptureFixture[str]) -> None:
    cli = main(["fit", *TINY, *QUIET, "--trainer.max_epochs", "1"])
    assert isinstance(cli.datamodule, SyntheticDataModule)
    assert isinstance(cli.model, ResNet18)
    assert "python -m project test --run runs/synthetic/version_0" in capsys.readouterr().out


def test_print_config_can_be_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--config", "fashion_mnist", "--print_config"])
    assert stop.value.code == 0
    Path("printed.yaml").write_text(capsys.readouterr().out)
    config = parse(["fit", "--config", "printed.yaml"]).config.fit
    assert config.model.init_args.optimizer.init_args.lr == 2e-3
    assert config.data.init_args.train_size == 5000


def test_help_has_a_sentence_for_each_of_our_options(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, own in (("model", "MLP"), ("model", "ResNet18"), ("data", "ImageFolderDataModule")):
        with pytest.raises(SystemExit):
            main(["fit", f"--{kind}.help", own])
        text = capsys.readouterr().out
        options = text.split(f"  --{kind}.")[1:]
        assert len(options) >= 7
        for option in options:
            name, _, sentence = " ".join(option.split()).partition(" ")
            assert len(sentence.split("(")[0].split()) >= 3, (
                f"{own} says nothing of {name}: {sentence}"
            )
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    text = capsys.readouterr().out
    for option in ("--name", "--run", "--monitor", "--early_stopping", "--seed_everything"):
        assert option in text


@pytest.mark.parametrize("command", ["", "fit", "validate", "test", "predict", "check", "lr_find"])
def test_help_begins_with_what_a_command_does_and_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    text = capsys.readouterr().out
    before, options = text.split("\noptions:\n")
    assert len(before.splitlines()) <= 24
    assert f"    python -m project {command or 'fit'} --" in before
    if command:
        assert options.index("--preflight") < options.index("--checkpoint.every_n_steps")
        assert options.index("--model") < options.index("--trainer.max_epochs")
    else:
        assert {"seed_noise", "compare", "runs"} <= set(options.split())


SMOOTHING = ["--model.objective", "CrossEntropy", "--model.objective.label_smoothing"]

BAD: dict[str, tuple[list[str], int, str]] = {
    "no command": ([], 2, "name a command"),
    "command": (["fitt"], 2, r"no command 'fitt' \(did you mean fit\?\)"),
    "config": (["fit", "--config", "cifr"], 2, r"no config 'cifr' \(did you mean cifar\?\)"),
    "no config": (["fit", "--config"], 2, "--config needs a value"),
    "option": ([*FIT, "--trainer.max_epochss", "3"], 2, r"did you mean --trainer.max_epochs\?"),
    "prefix": ([*FIT, "--trainer.max_epoc", "3"], 2, r"did you mean --trainer.max_epochs\?"),
    "group": ([*FIT, "--modle", "MLP"], 2, r"unknown option --modle \(did you mean --model\?\)"),
    "model option": ([*FIT, "--model.widht", "3"], 2, r"did you mean --model.width\?"),
    "data option": (
        [*FIT, "--data.augment.cutot", "3"],
        2,
        r"did you mean --data.augment.cutout\?",
    ),
    "optimizer option": ([*FIT, "--model.optimizer.lrr", "3"], 2, r"SGD .* --model.optimizer.lr\?"),
    "stopping option": ([*FIT, "--early_stopping.patienc", "3"], 2, r"--early_stopping.patience\?"),
    "model": ([*FIT, "--model", "ResNt18"], 2, r"no class 'ResNt18' .* mean ResNet18\?"),
    "optimizer": ([*FIT, "--model.optimizer", "AdmW"], 2, r"no class 'AdmW' .* mean AdamW\?"),
    "value": (
        [*FIT, "--trainer.max_epochs", "x"],
        2,
        "--trainer.max_epochs: expected int, got 'x'",
    ),
    "wait": (
        [*FIT, "--max_wait_s", "-1"],
        2,
        "^error: --max_wait_s: -1 does not conform to .* v>0$",
    ),
    "group of an option": ([*FIT, "--modle.width", "3"], 2, r"mean --model\?\)"),
    "one of": ([*FIT, "--data.sampling", "x"], 2, "expected 'class_balanced', got 'x'"),
    "follows": ([*FIT, "--model.in_channels", "1"], 2, "--model.in_channels is set by --data"),
    "positional": ([*FIT, "foo"], 2, "'foo' is not an option: options begin with --"),
    "accumulate": ([*FIT, "--trainer.accumulate_grad_batches", "0"], 2, "must be 1 or more"),
    "save": ([*FIT, "--checkpoint.every_n_steps", "-1"], 1, "--checkpoint.every_n_steps and"),
    "choice": (
        ["fit", "--model", "MLP", "--model.norm", "bat"],
        2,
        r"--model.norm: expected .*'batch', 'layer', 'none'.*, got 'bat'",
    ),
    "class before option": (
        ["fit", "-c", "empty.yaml", "--data.root", "x", "--model", "MLP"],
        2,
        "name the class before its options",
    ),
    "schedule": (
        [*FIT, "--model.lr_scheduler", "StepLR"],
        2,
        "--model.lr_scheduler.step_size is req",
    ),
    "yaml key": (["fit", "--config", "typo.yaml"], 2, r"--trainer.max_epoc \(did you mean"),
    "yaml section": (
        ["fit", "--config", "section.yaml"],
        2,
        r"--trainers \(did you mean --trainer",
    ),
    "yaml syntax": (["fit", "--config", "broken.yaml"], 2, "broken.yaml, line 3, can't be read"),
    "monitor": (
        [*FIT, "--monitor", "val/los"],
        2,
        r"a higher val/los is better \(did you mean val/loss\?\): add --monitor_mode min",
    ),
    "monitor with its direction": (
        [*FIT, "--monitor", "val/los", "--monitor_mode", "min"],
        1,
        r"no metric val/los \(did you mean val/loss\?\)",
    ),
    "ranks": ([*FIT, "--trainer.devices", "3"], 2, "--data.batch_size 16 .* multiple of 3"),
    "dropout": (["fit", "--model", "MLP", "--model.dropout", "2"], 2, "dropout 2.0 must be from 0"),
    "within a text": (
        [*FIT, "--run.root", "x"],
        2,
        "unknown option --run.root: --run has no",
    ),
    "width": ([*FIT, "--model.width", "0"], 2, "width 0 must be positive"),
    "batch size": ([*FIT, "--data.batch_size", "0"], 2, "batch_size 0 must be positive"),
    "augment": ([*FIT, "--data.augment.color_jitter", "9"], 2, "color_jitter from 0 to 1"),
    "smoothing": ([*FIT, *SMOOTHING, "-1"], 2, "label_smoothing -1.0 must be"),
    "no validation": ([*FIT, "--data.val_size", "0"], 1, "nothing measures val/loss without"),
    "sizes": (["fit", *TINY, "--data.train_size", "0"], 1, "train_size 0"),
    "number": ([*FIT, "--model.optimizer.lr", "abc"], 2, "lr: expected float.* got 'abc'"),
    "preset alone": (["fit", "--config", "presets/debug"], 2, "a preset comes after a config"),
    "preset first": (
        ["fit", "--config", "preset.yaml", "--config", "synthetic"],
        2,
        "a preset comes after the config",
    ),
    "case": (["fit", "--model", "mlp"], 2, r"no class 'mlp' for --model \(did you mean MLP\?\)"),
    "linked seed": ([*FIT, "--data.seed", "3"], 2, "--data.seed is set by --seed_everything"),
    "linked mode": ([*FIT, "--early_stopping.mode", "max"], 2, "mode is set by --monitor and"),
    "two origins": ([*FIT, "--run", "x", "--ckpt_path", "last"], 2, "leave out --ckpt_path"),
    "two starts": ([*FIT, "--run", "x", "--init_from", "y"], 2, "--init_from starts a new run"),
    "untrained": (["test", "--config", "synthetic"], 2, "test needs trained weights"),
    "no run": (["test", "--run", "nowhere"], 1, "nowhere is not a run folder, it has no run.json"),
    "no checkpoint": (
        ["test", "-c", "synthetic", "--ckpt_path", "x"],
        1,
        "there is no checkpoint x",
    ),
    "text": (
        ["test", "-c", "synthetic", "--ckpt_path", "text.ckpt"],
        1,
        "text.ckpt is damaged or no",
    ),
    "foreign": (["test", "-c", "synthetic", "--ckpt_path", "foreign.ckpt"], 1, "has no state_dict"),
    "no images": (
        ["fit", "--config", "image_folder", "--data.root", "nowhere"],
        1,
        "nowhere is not a folder: set --data.root",
    ),
}


LATE = ("monitor with its direction",)  # known when the run has begun: its record says how it ended


# 2026-11: Lightning says so of a run without validation, before it is refused.
@pytest.mark.filterwarnings("ignore:Total length of `list` across ranks is zero")
@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence(
    case: str, exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty.yaml").write_text("trainer: {max_epochs: 1}")
    Path("preset.yaml").write_text("data: {init_args: {drop_last: true}}")
    Path("typo.yaml").write_text("trainer:\n  max_epoc: 3\n")
    Path("section.yaml").write_text("trainers: 3\n")
    Path("broken.yaml").write_text("trainer: [\n  max_epochs: 3\n")
    Path("text.ckpt").write_text("hello")
    torch.save({"weights": torch.zeros(1)}, "foreign.ckpt")
    before = sorted(Path().rglob("*"))
    args, code, sentence = BAD[case]
    assert exit_code(args) == code
    error = capsys.readouterr().err
    assert "Traceback" not in error
    (line,) = [line for line in error.splitlines() if line.startswith("error: ")]
    assert len(line) < 500
    import re

    assert re.search(sentence, line), line
    assert sorted(Path().rglob("*")) == before or case in LATE, "nothing half-written is left"


def test_runs_that_start_together_get_folders_of_their_own() -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(claim_run, [Path("runs/same")] * 40))
    assert len(set(runs)) == 40
    assert all(run.is_dir() for run in runs)


def test_a_run_that_another_process_trains_is_left_alone(finished: Path) -> None:
    lock = lock_run(finished)
    assert lock is not None
    with pytest.raises(UsageError, match=r"another process is training .*version_0"):
        main(["fit", "--run", str(finished), "--trainer.max_epochs", "9"])
    lock.release()


def test_a_finished_run_is_not_resumed_and_keeps_its_record(finished: Path) -> None:
    before = (finished / "run.json").read_text()
    for more in ([], ["--trainer.max_epochs", "1"]):
        with pytest.raises(ValueError, match="finished, after 2 epochs"):
            main(["fit", *more, "--run", str(finished)])  # options before --run count too
    assert (finished / "run.json").read_text() == before


@pytest.mark.parametrize(
    "options",
    [
        ["--trainer.limit_test_batches", "1"],
        ["--trainer.fast_dev_run", "true"],
        ["--data.split_seed", "3"],
    ],
)
def test_only_the_whole_test_set_of_the_run_is_recorded(
    options: list[str], finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = json.loads((finished / "run.json").read_text())
    main(["test", "--run", str(finished), *options])
    assert json.loads((finished / "run.json").read_text())["metrics"] == before["metrics"]
    assert "run.json has no result" in capsys.readouterr().out


def test_looks_at_the_test_set_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    main([*FIT, "--trainer.max_epochs", "1", "--model.lr_scheduler", "ConstantLR"])
    run = "runs/synthetic/version_0"
    for times, text in ((1, "looked at once"), (2, "looked at 2 times for this run: choices")):
        main(["test", "--run", run])
        assert text in capsys.readouterr().out
        assert json.loads(Path(run, "run.json").read_text())["tested"] == times
    main(["fit", "--run", run, "--trainer.max_epochs", "2"])
    assert json.loads(Path(run, "run.json").read_text())["tested"] == 2


def test_a_callback_of_the_user_does_not_decide_what_is_best() -> None:
    extra = ["--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint"]
    rough = ["--model.optimizer.lr", "1", "--preflight", "false"]
    main([*FIT, *extra, "--trainer.max_epochs", "3", *rough])
    record = json.loads(Path("runs/synthetic/version_0/run.json").read_text())
    rows = csv.DictReader(Path("runs/synthetic/version_0/metrics.csv").read_text().splitlines())
    losses = [float(row["val/loss"]) for row in rows if row["val/loss"]]
    assert record["metrics"]["val/loss"] == min(losses)
    assert record["best_epoch"] == losses.index(min(losses))


def test_signals_before_training_give_the_codes_of_a_shell(
    monkeypatch: pytest.MonkeyPatch, exit_code: Callable[[list[str]], int]
) -> None:
    for number in SIGNALS:

        def stopped(_: list[str], number: int = number) -> None:
            os.kill(os.getpid(), number)

        monkeypatch.setattr("project.commands.cli.main", stopped)
        assert exit_code(["fit"]) == 128 + number


def test_debug_shows_where(exit_code: Callable[[list[str]], int]) -> None:
    with pytest.raises(ValueError, match="no config"):
        exit_code(["fit", "--config", "nope", "--debug"])


def test_checkpoint_of_another_model_is_named(finished: Path) -> None:
    with pytest.raises(
        ValueError, match=r"holds another model than ResNet18: .* \(4,\) in the file and \(8,\)"
    ):
        main(["test", "--run", str(finished), "--model.width", "8"])
    with pytest.raises(ValueError, match="holds another model than MLP"):
        main(["test", "--run", str(finished), "--model", "MLP"])


def test_a_checkpoint_that_would_run_code_is_refused(finished: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (Path("pwned"),)

    torch.save({"state_dict": {}, "x": Payload()}, "evil.ckpt")
    with pytest.raises(
        ValueError, match="evil.ckpt holds more than tensors .* nothing in it was run"
    ):
        main(["test", "--config", "synthetic", "--ckpt_path", "evil.ckpt"])
    assert not Path("pwned").exists()


def test_real_processes_exit_with_the_right_codes() -> None:
    command = [sys.executable, "-m", "project"]
    bad = subprocess.run([*command, "fit", "--config", "cifr"], capture_output=True, text=True)
    assert bad.returncode == 2
    assert bad.stderr.count("\n") == 1
    good = subprocess.run([*command, *FIT, "--trainer.fast_dev_run", "true"], capture_output=True)
    assert good.returncode == 0


@pytest.mark.parametrize(
    "name", ["synthetic", "fashion_mnist", "cifar", "cifar_fast", "image_folder"]
)
def test_every_config_trains(name: str, request: pytest.FixtureRequest) -> None:
    args = ["fit", "--config", name, "--config", "presets/debug", *QUIET]
    if name == "fashion_mnist":
        args += ["--data.root", str(request.getfixturevalue("fashion_mnist_root"))]
    elif name == "image_folder":
        args += ["--data.root", str(request.getfixturevalue("cifar_images")), "--model.width", "4"]
    elif name == "cifar":  # on other images of the same size
        args += ["--config", "presets/laptop", "--data", "SyntheticDataModule"]
        args += ["--data.augment", '{"crop": 4, "flip": true, "cutout": 12}']
    elif name == "cifar_fast":
        args += ["--model.width", "4", "--data", "SyntheticDataModule", "--data.train_size", "600"]
        args += ["--data.augment", '{"crop": 2, "flip": "alternating"}']
    cli = main(args)
    assert cli.trainer.global_step == 1
    assert not Path("runs").exists()


def test_a_compiled_run_is_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a backend that only counts: what is trained, checked and saved does not change."""
    args = [*FIT, "--trainer.max_epochs", "2"]
    plain = main(args)
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    compiled = main([*args, "--compile", "true"])
    assert graphs
    torch._dynamo.reset()
    states = [cli.model.state_dict() for cli in (plain, compiled)]
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(a, b) for a, b in zip(*map(dict.values, states), strict=True))
    verdicts = main(["check", *FIT[1:], "--compile", "true"]).verdicts
    assert [v.diagnosis for v in verdicts if not v.passed] == []


def test_every_config_says_what_to_expect() -> None:
    for path in config_folder().rglob("*.yaml"):
        assert path.read_text().startswith("# "), path
        assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_notebook_in_three_lines(fashion_mnist_root: Path) -> None:
    import lightning as L

    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = L.Trainer(max_epochs=1, limit_train_batches=2, **dict.fromkeys(off, False))  # type: ignore[arg-type]
    trainer.fit(MLP(), FashionMNISTDataModule(fashion_mnist_root))
    assert trainer.global_step == 2
    assert isinstance(trainer.optimizers[0], AdamW)
    assert not isinstance(trainer.optimizers[0], SGD)
