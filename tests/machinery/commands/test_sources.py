"""Configs, run folders and options: their order, what is refused, what a switch drops."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ProgressBar as LightningBar
from lightning.pytorch.callbacks import RichProgressBar, Timer, TQDMProgressBar

from project.commands.cli import CLI, main
from project.commands.links import FOLLOWS, LINKS
from project.commands.sources import expand
from project.commands.table import take_apart
from project.commands.variants import configure
from project.engine.weights import init_from
from project.runs.errors import UsageError
from tests.machinery.commands.test_cli import FIT, parse

DATA = "model: MLP\ndata:\n  class_path: ImageFolderDataModule\n  init_args:\n    root: {}\n"


def settings(*args: str) -> Any:
    return parse(["fit", *args]).config.fit


def test_configs_come_first_wherever_they_stand() -> None:
    Path("width.yaml").write_text("model: {init_args: {width: 5}}")
    Path("wider.yaml").write_text("model: {init_args: {width: 6}}")
    configs = ["--config", "synthetic", "-c", "width.yaml", "--config=wider.yaml"]
    option = ["--model.width", "7"]
    orders = [[*option, *configs], [*configs, *option], [*configs[:2], *option, *configs[2:]]]
    assert [settings(*order).model.init_args.width for order in orders] == [7, 7, 7]
    assert settings(*configs).model.init_args.width == 6
    assert len({tuple(expand(["fit", *order])) for order in orders}) == 1


@pytest.mark.parametrize("value", ["--config", "--run"])
def test_a_value_is_not_taken_for_an_option(value: str) -> None:
    assert take_apart([f"--name={value}", "--x", "1"]).options == [f"--name={value}", "--x", "1"]
    assert take_apart(["--name", "-c=a b", "--trainer.callbacks+", "X"]).configs == ["a b"]


@pytest.mark.parametrize("value", ["--data.seed=1", "--help", "--help me", "--model x", "-h"])
def test_a_value_that_looks_like_an_option_stays_a_value(value: str) -> None:
    for args in [[f"--name={value}"], *([["--name", value]] if " " in value else [])]:
        given = take_apart(args)
        assert given.settings == [("name", value)]
        assert not given.asks_for_help
        assert settings(*args).name == value


@pytest.mark.parametrize("target", sorted(FOLLOWS))
def test_what_follows_from_another_option_can_be_set_nowhere(target: str) -> None:
    section, name = target.split(".")
    origin = re.escape(FOLLOWS[target])
    for option in (f"--{target}", f"--{section}.init_args.{name}"):
        for args in ([option, "1"], [f"{option}=1"], [f"--{section}={{{name}: 1}}"]):
            with pytest.raises(UsageError, match=f"^--{target} is set by {origin}: set that inst"):
                expand(["fit", *args])
    for text in (f"{name}: 1", f"init_args: {{{name}: 1}}"):
        Path("own.yaml").write_text(f"trainer: {{}}\n{section}:\n  {text}\n")
        with pytest.raises(UsageError, match=f"own.yaml, line 3: --{target} is set by {origin}"):
            expand(["fit", "--config", "own.yaml"])


def test_each_link_reaches_its_class() -> None:
    args = ["--seed_everything", "3", "--monitor", "val/wer", "--monitor_mode", "max"]
    found = settings(*args, "--early_stopping.patience", "2")
    sections = {"data": found.data, "model": found.model, "early_stopping": found.early_stopping}
    for link in LINKS:
        section, name = link.target.split(".")
        expected = found["monitor_mode" if name == "mode" else link.sources[0]]
        assert sections[section].init_args[name] == expected, link


def test_named_model_and_data_need_no_config(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("project.commands.sources.rank_zero_info", said.append)
    both = settings("--model", "MLP", "--data=SyntheticDataModule")
    assert not both.config
    assert both.trainer.max_epochs is None
    assert both.model.init_args.optimizer.class_path == "torch.optim.AdamW"
    assert said == []
    one = settings("--model", "MLP")
    assert [Path(str(path)).stem for path in one.config] == ["synthetic"]
    assert len(said) == 1


def test_a_plateau_schedule_has_one_name_everywhere() -> None:
    full = "torch.optim.lr_scheduler.ReduceLROnPlateau"
    for text in (
        "lr_scheduler: ReduceLROnPlateau",
        "lr_scheduler: {class_path: ReduceLROnPlateau}",
    ):
        Path("plateau.yaml").write_text(f"model: {{init_args: {{{text}}}}}")
        config = settings("--config", "synthetic", "--config", "plateau.yaml")
        assert config.model.init_args.lr_scheduler.class_path == full
    config = settings("--model.lr_scheduler", "ReduceLROnPlateau", "--name", "ReduceLROnPlateau")
    assert config.model.init_args.lr_scheduler.class_path == full
    assert config.name == "ReduceLROnPlateau"


YAMLS: dict[str, tuple[str | bytes, str]] = {
    "a key twice": (
        "trainer:\n  max_epochs: 1\n  max_epochs: 2\n",
        "line 3.*'max_epochs' is the",
    ),
    "a section twice": ("trainer: {}\ndata: {}\ntrainer: {}\n", "line 3.*'trainer' is there twice"),
    "a tab": ("data:\n\tbatch_size: 3\n", "line 2"),
    "not UTF-8": ("# caf\xe9\n".encode("latin1"), "not UTF-8"),
    "an escape": ('data:\n  x: "C:\\photos"\n', "line 2.*escape"),
    "a number as a path": (DATA.format(2024), "line 5: --data.root: expected a path.* a number"),
    "a mapping as a path": (DATA.format("{a: b}"), "line 5: --data.root: expected a path"),
    "seed": (
        "data:\n  class_path: CIFAR10DataModule\n  init_args: {seed: 1}\n",
        "line 3: --data.seed",
    ),
    "mode": ("early_stopping:\n  mode: max\n", "line 2: --early_stopping.mode is set by"),
    "classes": (
        "model:\n  init_args:\n    num_classes: 3\n",
        "line 3: --model.num_classes is set by --data",
    ),
    "a misspelt option": ("trainer:\n  max_epoc: 1\n", r"line 2: .*mean --trainer.max_epochs\?"),
    "a wrong type": (
        "trainer:\n  max_epochs: many\n",
        "line 2: --trainer.max_epochs: expected int",
    ),
    "a nested type": (
        "model: {init_args: {optimizer: {init_args: {lr: x}}}}",
        "line 1: .*lr: expected",
    ),
}


@pytest.mark.parametrize("case", YAMLS)
def test_a_fault_in_a_config_names_file_line_and_option(case: str) -> None:
    content, sentence = YAMLS[case]
    Path("own.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=f"(?s)own.yaml.*{sentence}") as error:
        parse(["fit", "--config", "synthetic", "--config", "own.yaml"])
    assert len(str(error.value)) < 300
    assert not re.search(r"<class|<unicode|NoneType|\n|Namespace", str(error.value))


OPTIONS = {
    "a mapping as a path": (
        ["--data", "ImageFolderDataModule", "--data.root", "a: b"],
        "in quotes",
    ),
    "a tuple": (
        ["--model.optimizer", "AdamW", "--model.optimizer.betas", "(0.9,0.95)"],
        r"\[0.9,0.95\]",
    ),
    "derived": (["--data.init_args.seed", "1"], "--data.seed is set by"),
    "derived in a mapping": (
        ["--early_stopping", "{mode: max}"],
        "--early_stopping.mode is set by",
    ),
    "a module": (["--model", "no_such_module.Net"], "no module 'no_such_module'"),
    "a class of a module": (["--model", "project.models.MPL"], r"no MPL \(did you mean MLP\?\)"),
    "a model like a callback": (["--model", "Backbone"], "no class 'Backbone' for --model$"),
    "no value": (["--trainer.max_epochs"], "--trainer.max_epochs needs a value"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_fault_in_an_option_is_one_sentence(case: str) -> None:
    args, sentence = OPTIONS[case]
    with pytest.raises(UsageError, match=sentence) as error:
        parse(["fit", "--config", "synthetic", *args])
    assert not re.search(r"<class|NoneType|\n|Namespace|\.yaml", str(error.value))


def test_a_logger_whose_package_is_missing() -> None:
    with pytest.raises(UsageError, match="MLFlowLogger needs a package .* pip install mlflow"):
        main([*FIT, "--trainer.logger", "MLFlowLogger"])


MINE = """
from project.models import MLP, ResNet18

print("one's own words")


class Wider(ResNet18):
    def __init__(self, factor: int = 2, **kwargs):
        super().__init__(**kwargs)
"""


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Path("own_nets.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")


def test_a_subclass_keeps_what_the_config_sets(mine: None) -> None:
    model = settings("--config", "cifar", "--model", "own_nets.Wider").model
    config = settings("--config", "cifar").model
    assert model.class_path == "own_nets.Wider"
    assert model.init_args.optimizer.init_args.weight_decay == 5e-4
    for name in ("width", "optimizer", "lr_scheduler"):
        assert model.init_args[name] == config.init_args[name]
    assert settings("--model.optimizer", "SGD", "--model.optimizer", "Adam").name == "synthetic"


@pytest.mark.parametrize(
    ("switch", "sentence"),
    [
        (
            "--model MLP",
            "MLP replaces ResNet18 as --model, and drops its settings: width, opt",
        ),
        (
            "--model.optimizer AdamW",
            "AdamW replaces SGD as --model.optimizer, and .*: lr, mom",
        ),
        ("--data CIFAR10DataModule", "CIFAR10DataModule replaces Synth.* batch_size, augment.crop"),
        ("--model own_nets.Wider", ""),
        ("--model.optimizer SGD --model.optimizer.lr 0.3", ""),
    ],
)
def test_what_a_switch_drops_is_said(
    switch: str, sentence: str, mine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception):
        pass

    class Stop(CLI):
        def before_instantiate_classes(self) -> None:
            raise Stopped

    said: list[str] = []
    monkeypatch.setattr("project.commands.command_line.rank_zero_info", said.append)
    with pytest.raises(Stopped):
        Stop(["fit", "--config", "synthetic", *switch.split()])
    assert len(said) == bool(sentence)
    assert re.search(sentence, "".join(said))


def test_what_a_module_prints_is_not_part_of_a_config(mine: None) -> None:
    config = configure(["--config", "synthetic", "--model", "own_nets.Wider"])
    assert config["model"]["init_args"]["factor"] == 2


LIMITS = {
    "--early_stopping.patience -1": "must be 0 or more",
    "--name ../../up": "not the name of a folder",
    "--name /up": "not the name of a folder",
    "--data.batch_size 99999999999999999999": "too large",
    "--data.num_workers -1": "must be 0 or more",
    "--model.optimizer.lr .nan": "nan is not a number",
    "--trainer.gradient_clip_val .inf": "not a finite number",
    "--trainer.barebones true": "leaves no run",
    "--trainer.callbacks+ LearningRateFinder": "python -m project lr_find",
}


@pytest.mark.parametrize("options", LIMITS)
def test_values_that_cannot_be_meant_are_refused_at_once(options: str) -> None:
    with pytest.raises(UsageError, match=LIMITS[options]):
        main([*FIT, *options.split()])
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", ["TQDMProgressBar", "RichProgressBar"])
def test_another_progress_bar_replaces_ours(name: str) -> None:
    args = [arg for arg in FIT if arg != "--trainer.enable_progress_bar"]
    args.remove("false")
    cli = main([*args, "--trainer.fast_dev_run", "true", "--trainer.callbacks+", name])
    (bar,) = [c for c in cli.trainer.callbacks if isinstance(c, LightningBar)]
    assert (
        type(bar) is {"TQDMProgressBar": TQDMProgressBar, "RichProgressBar": RichProgressBar}[name]
    )


def test_a_timer_ends_a_run() -> None:
    cli = main([*FIT, "--trainer.max_epochs", "1", "--trainer.callbacks+", "Timer"])
    assert any(isinstance(callback, Timer) for callback in cli.trainer.callbacks)
    assert "interval: step" in Path("runs/synthetic/version_0/config.yaml").read_text()


def test_weights_that_overflow_are_one_sentence(
    exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    rate = ["--model.optimizer.lr", "1e9", "--model.lr_scheduler", "ConstantLR"]
    half = ["--trainer.precision", "16-true", "--preflight", "false"]
    assert exit_code([*FIT, *rate, *half]) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert re.search("error: .*(precision|nan|finite|infinite)", error)


def test_many_new_tensors_are_counted_and_not_listed() -> None:
    kept = {"a": torch.zeros(1)}
    torch.save({"state_dict": kept}, "a.ckpt")
    model = torch.nn.ParameterDict(kept | {f"b{i:03}": torch.zeros(1) for i in range(300)})
    sentence = init_from(Path("a.ckpt"), model)
    assert "300" in sentence
    assert len(sentence) < 200
