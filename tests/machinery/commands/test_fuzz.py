"""Over 400 command lines: each is accepted or refused in one sentence, and none hangs.

All are parsed and built in this process by shared parsers, and stopped before the trainer runs.
"""

import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from project.__main__ import console
from project.commands.cli import CLI

LONGEST = 320  # characters of a sentence, with "error: "
LIMIT_S = 30  # of a line, on a busy machine
SOUP = r"<class|NoneType|Namespace\(|Union subtypes|Traceback|unicode string|jsonargparse|\\n"

BASE = ["--config", "base.yaml"]
# Few settings and no schedule: jsonargparse goes through all of them for each option.
BASE_YAML = """\
trainer: {accelerator: cpu, enable_progress_bar: false, enable_model_summary: false}
model:
  class_path: ResNet18
  init_args: {width: 4, optimizer: {class_path: SGD, init_args: {lr: 0.1}}}
data: {class_path: SyntheticDataModule}
"""
HUGE = "99999999999999999999"

# Values of options of `fit` on synthetic images: those that are accepted, and those that are not.
OPTIONS: dict[str, tuple[list[str], list[str]]] = {
    "--trainer.max_epochs": (["1", "-1"], ["x", "-2", "1.5", "nan", HUGE, "", "[1]"]),
    "--trainer.max_steps": (["10", "-1"], ["x", "-2", "0.5", HUGE]),
    "--trainer.max_time": (["00:00:01:00", "null"], ["x", "-1", "soon"]),
    "--trainer.precision": (["32-true", "bf16-mixed"], ["31", "half", "", "null-true"]),
    "--trainer.accelerator": (["cpu", "auto"], ["abacus", "", "7"]),
    "--trainer.devices": (["1", "auto"], ["-2", "0", "x", "[7]"]),
    "--trainer.num_nodes": (["1"], ["x", "0", "-1"]),
    "--trainer.strategy": (["auto"], ["dpd", "", "7"]),
    "--trainer.gradient_clip_val": (["0.5", "null"], ["x", "-1", ".nan", ".inf"]),
    "--trainer.gradient_clip_algorithm": (["norm", "value"], ["x", "7"]),
    "--trainer.accumulate_grad_batches": (["1", "4"], ["0", "-1", "x", "1.5"]),
    "--trainer.log_every_n_steps": (["1", "50"], ["-1", "x", HUGE]),
    "--trainer.check_val_every_n_epoch": (["1", "2"], ["x", "-1", "0"]),
    "--trainer.val_check_interval": (["0.5", "1.0"], ["x", "-1", "1.5", "0"]),
    "--trainer.num_sanity_val_steps": (["0", "-1"], ["x", "-2"]),
    "--trainer.limit_train_batches": (["0.5", "2"], ["x", "-1", "1.5"]),
    "--trainer.limit_val_batches": (["1.0", "2"], ["x", "-1", "1.5"]),
    "--trainer.overfit_batches": (["0.0"], ["x", "-1", "1.5"]),
    "--trainer.fast_dev_run": (["true", "2"], ["x", "-1"]),
    "--trainer.deterministic": (["true", "warn"], ["x", "7"]),
    "--trainer.detect_anomaly": (["true", "false"], ["x", "7", "null-ish"]),
    "--trainer.enable_progress_bar": (["true", "false"], ["x", "7"]),
    "--trainer.logger": (["false", "true"], ["x", "7", "MLFlowLogger", "CSVLogger", "CSVLoger"]),
    "--trainer.profiler": (["simple", "null"], ["x", "7"]),
    "--trainer.callbacks+": (["Timer"], ["x", "7", "Tmer", "MLP"]),
    "--trainer.default_root_dir": (["runs", "{a: b}"], []),
    "--trainer.barebones": (["false"], ["true", "x"]),
    "--trainer": ([], ["x", "", "7"]),
    "--name": (
        ["a", "été", "a.b", "a b"],
        ["../../up", "/up", "..", "", ".", "a/../../b", "a\x07"],
    ),
    "--init_from": ([], ["nowhere", "", ".", "odd.ckpt"]),
    "--run": ([], ["nowhere", "", ".", "odd.ckpt"]),
    "--ckpt_path": ([], ["nowhere", "", ".", "odd.ckpt"]),
    "--preflight": (["true", "false"], ["x", "7", ""]),
    "--compile": (["false"], ["x", "7"]),
    "--max_wait_s": (["1", "0.5", "inf"], ["0", "-1", "x", "nan", ""]),
    "--monitor": (["val/loss", "val/acc"], [""]),
    "--early_stopping.patience": (["1", "10"], ["-1", "x", "1.5", HUGE]),
    "--early_stopping.min_delta": (["0", "0.1"], ["-1", "x", ".nan", ".inf"]),
    "--early_stopping": (["null"], ["x", "7", "MLP", "{mode: max}"]),
    "--early_stopping.mode": ([], ["min", "max"]),
    "--checkpoint.every_n_steps": (["10", "0"], ["-1", "x", HUGE]),
    "--seed_everything": (["0", "7"], ["-1", "x", HUGE, "1.5"]),
    "--model": (
        ["MLP", "project.models.MLP"],
        ["MPL", "7", "", "SGD", "os.system"],
    ),
    "--model.width": (["1", "64"], ["0", "-1", "x", "1.5", HUGE, "null"]),
    "--model.widht": ([], ["4"]),
    "--model.objective": (["CrossEntropy", "FocalLoss", "null"], ["MLP", "7", "x"]),
    "--model.metrics.f1": ([], ["MLP", "7", "x"]),
    "--model.optimizer": (["AdamW", "torch.optim.Adam"], ["SDG", "7", "", "MLP"]),
    "--model.optimizer.lr": (["0.1", "1e-3"], ["-1", "x", ".nan", ".inf", "1e400", "0.1.2"]),
    "--model.optimizer.momentum": (["0", "0.9"], ["x", ".nan"]),
    "--model.optimizer.momentun": ([], ["0.9"]),
    "--model.lr_scheduler": (
        ["null", "CosineAnnealingLR", "ReduceLROnPlateau"],
        ["StepLR", "x", "SGD"],
    ),
    "--model.warmup_steps": (["0"], ["-1", "x", "1.5"]),
    "--model.reference_batch_size": (["null", "64"], ["0", "-1", "x"]),
    "--model.num_classes": ([], ["3", "x"]),
    "--model.init_args.in_channels": ([], ["1"]),
    "--data": (["SyntheticDataModule"], ["Synthetic", "7", "", "MLP", "{class_path: MLP}"]),
    "--data.batch_size": (["1", "64"], ["0", "-1", "x", "1.5", HUGE]),
    "--data.train_size": (["48"], ["x", "1.5", HUGE, "-1"]),
    "--data.val_size": (["20"], ["x", "0.2", ".nan", HUGE]),
    "--data.image_size": (["8"], ["0", "x", "-1", "1.5"]),
    "--data.num_workers": ([], ["-1", "x"]),
    "--data.seed": ([], ["1"]),
    "--data.split_seed": (["1"], ["x", "1.5", HUGE]),
    "--data.sampling": (["class_balanced", "null"], ["x", "7"]),
    "--data.drop_last": (["true"], ["x", "7"]),
    "--data.augment": (["null", "{flip: true}"], ["x", "7", "{flop: true}", "{crop: x}"]),
    "--data.augment.crop": (["0", "4"], ["-1", "x"]),
    "--data.augment.color_jitter": (["0.5"], ["2", "-1", "x"]),
    "--pictures.examples": ([], ["x"]),
}
# Content of a config that comes after base.yaml, and what its sentence names.
YAMLS: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "YAML"),
    "a comment": ("# nothing", "YAML"),
    "an option": ("trainer: {max_epochs: 2}", ""),
    "CRLF": ("trainer:\r\n  max_epochs: 2\r\n", ""),
    "a mark of order": ("\ufefftrainer: {max_epochs: 2}", ""),
    "an alias": ("model: {init_args: {width: &w 4}}\ndata: {init_args: {batch_size: *w}}", ""),
    "text": ("just text", "YAML"),
    "a number": ("7", "YAML"),
    "a list": ("- 1\n- 2", "YAML"),
    "tab": ("trainer:\n\tmax_epochs: 2", "line 2"),
    "latin": ("# é".encode("latin1"), "UTF-8"),
    "zeros": (b"\0\0\0", "own.yaml"),
    "binary": (bytes(range(256)), "own.yaml"),
    "open bracket": ("trainer: [", "line"),
    "open quote": ('name: "a', "line"),
    "escape": ('name: "C:\\photos"', "line 1"),
    "twice": ("name: a\nname: b", "line 2"),
    "twice below": ("trainer:\n  max_epochs: 1\n  max_epochs: 2", "line 3"),
    "misspelt": ("trainer: {max_epoch: 2}", "line 1.*max_epochs"),
    "misspelt section": ("trainr: {}", "line 1.*trainer"),
    "nothing in a misspelt section": ("trainr:", "YAML"),
    "wrong type": ("trainer: {max_epochs: x}", "line 1"),
    "a list for a number": ("trainer: {max_epochs: [1]}", "line 1"),
    "no class": ("model: {class_path: Nope}", "Nope"),
    "a function": ("model: {class_path: os.system}", "os.system"),
    "seed": ("data: {init_args: {seed: 1}}", "line 1.*seed"),
    "mode": ("early_stopping: {mode: min}", "line 1.*mode"),
    "a tag": ("name: !!python/name:os.system x", "line 1"),
    "endless": ("a: &a [*a]", "own.yaml"),
    "an anchor that is not there": ("name: *a", "line 1"),
    "a number as a name": ("name: ../7", "name"),
    "not a number": ("model: {init_args: {optimizer: {init_args: {lr: .nan}}}}", "lr"),
    "negative": ("data: {init_args: {num_workers: -1}}", "num_workers"),
}
# Whole command lines, and whether they are accepted.
LINES: dict[str, bool] = {
    "": False,
    "fti": False,
    "FIT": False,
    "fit fit": False,
    "--config synthetic fit": False,
    "fit --config": False,
    "fit -c": False,
    "fit --config=": False,
    "fit --config .": False,
    "fit --config nowhere.yaml": False,
    "fit --config synthetic --config": False,
    "fit --config --data.batch_size 4": False,
    "fit --run": False,
    "fit --name": False,
    "fit --trainer.max_epochs": False,
    "fit --": False,
    "fit --- x": False,
    "fit -x": False,
    "fit foo": False,
    "fit =": False,
    "fit --=3": False,
    "fit --trainer.max_epochs=2": True,
    "fit --trainer.max_epochs==2": False,
    "fit --trainer.max_epochs 2 3": False,
    "fit --trainer.max_epoc 2": False,
    "fit --Trainer.max_epochs 2": False,
    "fit --trainer.max-epochs 2": False,
    "fit --trainer..max_epochs 2": False,
    "fit --trainer.max_epochs.x 2": False,
    "fit --name.x 2": False,
    "fit --\u202emax_epochs 2": False,
    "fit --model.optimizer.lr \u0661": True,
    "fit --config presets/debug": False,
    "fit --trainer.max_epochs 2 --config synthetic": True,
    "fit --model MLP --data SyntheticDataModule": True,
    "fit --model.width 4 --model MLP": True,
    "fit --data.root x --config synthetic": False,
    "fit --config image_folder --data.root nowhere": False,
    "fit --config image_folder --data.root 2024": False,
    "fit --run a --ckpt_path b": False,
    "fit --run a --init_from b": False,
    "fit --init_from a --ckpt_path b": False,
    "fit --images x": False,
    "fit --num_steps 10": False,
    "validate": False,
    "test --config synthetic": False,
    "predict --images nowhere": False,
    "predict --run nowhere --images nowhere": False,
    "test --run": False,
    "test --ckpt_path last": False,
    "check --config synthetic": True,
    "check --config synthetic --trained true": False,
    "lr_find --config synthetic --num_steps 10": True,
    "lr_find --config synthetic --num_steps x": False,
    "lr_find --config synthetic --num_stpes 10": False,
    "seed_noise --seeds x": False,
    "seed_noise --seeds -1": False,
    "seed_noise --jobs 0": False,
    "seed_noise --jobs x": False,
    "seed_noise --name ../up": False,
    "seed_noise --sweep x": False,
    "seed_noise --run x": False,
    "compare": False,
    "compare a": False,
    "compare nowhere nowhere": False,
    "compare --metric": False,
    "runs nowhere": False,
    "runs --sort": False,
    "runs --srot x": False,
    "export": False,
    "export --run nowhere": False,
    "export --format x": False,
}


def lines() -> list[tuple[list[str], bool, str]]:
    """Arguments of each line, whether it is accepted, and what its sentence names."""
    every = [(line.split(), accepted, "") for line, accepted in LINES.items()]
    for name, values in OPTIONS.items():
        for accepted, some in zip((True, False), values, strict=True):
            for value in some:
                every.append((["fit", *BASE, name, value], accepted, ""))
        if values[0]:
            every.append((["fit", *BASE, f"{name}x", "1"], False, ""))
            every.append((["fit", *BASE, name], False, ""))
    for name, (_, sentence) in YAMLS.items():
        every.append((["fit", *BASE, "--config", f"{name}/own.yaml"], not sentence, sentence))
    return every


class Ready(Exception):
    """The trainer would run now."""


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (content, _) in YAMLS.items():
        Path(name).mkdir()
        Path(name, "own.yaml").write_bytes(
            content if isinstance(content, bytes) else content.encode()
        )
    Path("base.yaml").write_text(BASE_YAML)
    Path("odd.ckpt").write_text("odd")
    built: dict[tuple[str, ...], dict[str, Any]] = {}
    setup = CLI.setup_parser

    def setup_once(self: CLI, *args: Any) -> None:
        names = tuple(self.subcommands())
        if names not in built:
            setup(self, *args)
            kept = ("parser", "_subcommand_parsers", "_subcommand_method_arguments")
            built[names] = {name: getattr(self, name) for name in kept}
        vars(self).update(built[names])

    def stop(*_: Any) -> None:
        raise Ready

    def raise_it(error: Exception) -> None:
        raise error

    monkeypatch.setattr(CLI, "setup_parser", setup_once)
    monkeypatch.setattr(CLI, "_run_subcommand", stop)
    monkeypatch.setattr("project.commands.seed_noise.run_jobs", stop)
    monkeypatch.setattr("project.__main__.report", raise_it)


def fault(args: list[str], accepted: bool, sentence: str) -> str:
    """What is wrong with how a line is carried out, or nothing."""
    start = time.monotonic()
    try:
        sys.argv = ["project", *args]
        console()
        return "" if accepted else "carried out"
    except Ready:
        said = ""
    except (ValueError, OSError) as error:
        said = f"error: {error}"
    except SystemExit as stop:
        said = f"exit {stop.code}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    if time.monotonic() - start > LIMIT_S:
        return "takes too long"
    if accepted:
        return said
    if not said.startswith("error: "):
        return said or "accepted"
    if len(said) > LONGEST or "\n" in said or re.search(SOUP, said):
        return f"{len(said)} characters: {said}"
    return "" if re.search(sentence, said, re.S) else said


@pytest.mark.usefixtures("files")
@pytest.mark.filterwarnings("ignore")
def test_each_command_line_is_accepted_or_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = lines()
    assert len(every) >= 400
    monkeypatch.setattr(sys, "argv", [])
    faults = [(args, wrong) for args, *rest in every if (wrong := fault(args, *rest))]
    assert not faults, "\n".join(f"{' '.join(args)!r}: {wrong}" for args, wrong in faults)
