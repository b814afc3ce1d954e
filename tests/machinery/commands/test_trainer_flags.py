"""Lightning's flags that talk to loaders and loggers do with ours what Lightning documents."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

from project.commands.cli import main
from project.data import Augment, SyntheticDataModule
from project.engine.datamodule import Sampling
from project.models import MLP

OFF: dict[str, Any] = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)
BATCHES = 5  # of an epoch


class Batches(Callback):
    """The batches that training, the sanity check and validation get."""

    def __init__(self) -> None:
        self.training: list[Tensor] = []
        self.sanity = self.validation = 0

    def on_train_batch_start(self, trainer: L.Trainer, _: Any, batch: Any, *__: Any) -> None:
        self.training.append(batch[0].clone())

    def on_validation_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.sanity_checking:
            self.sanity += 1
        else:
            self.validation += 1


def data(sampling: Sampling | None = None) -> SyntheticDataModule:
    augment = Augment(crop=2, flip=True)
    made = SyntheticDataModule(8 * BATCHES, 48, 0, image_size=8, batch_size=8, augment=augment)
    made.sampling = sampling
    return made


def fit(
    sampling: Sampling | None = None, *callbacks: Callback, ckpt_path: str | None = None, **kw: Any
) -> Batches:
    seen = Batches()
    options = {"accelerator": "cpu", "max_epochs": 3, "callbacks": [seen, *callbacks]}
    schedule: Any = OneCycleLR  # which asks for the length of the run, and so for the loader
    model = MLP([8], in_channels=3, image_size=8, lr_scheduler=schedule)
    trainer = L.Trainer(**OFF | options | kw)
    trainer.fit(model, data(sampling), ckpt_path=ckpt_path, weights_only=True)
    return seen


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.mark.parametrize("sampling", [None, "class_balanced"])
@pytest.mark.parametrize(("amount", "batches"), [(1, 1), (2, 2), (0.4, 2), (1.0, 5)])
def test_overfit_batches_has_the_same_batches_in_each_epoch(
    amount: int | float, batches: int, sampling: Sampling | None
) -> None:
    seen = fit(sampling, overfit_batches=amount).training
    assert len(seen) == 3 * batches
    first = seen[:batches]
    for epoch in range(3):
        assert same(seen[epoch * batches :][:batches], first)
    plain = fit(sampling).training
    assert same(first, plain[:batches])
    assert not same(plain[BATCHES:][:batches], first), "other batches without it"


@pytest.mark.parametrize(("amount", "batches"), [(2, 2), (0.6, 3), (1.0, 5), (None, 5)])
def test_limit_train_batches_takes_the_first_of_each_epoch(amount: Any, batches: int) -> None:
    plain = fit().training
    expected = [b for k, b in enumerate(plain) if k % BATCHES < batches]
    assert same(fit(limit_train_batches=amount).training, expected)


def test_limits_that_leave_no_batch_are_refused() -> None:
    for limit in ("limit_train_batches", "limit_val_batches", "overfit_batches"):
        with pytest.raises(L.fabric.utilities.exceptions.MisconfigurationException, match="< 1"):
            fit(**{limit: 0.01})


@pytest.mark.parametrize("distributed", [True, False])
@pytest.mark.parametrize("every", [0, 1, 2])
def test_loaders_made_anew_and_samplers_do_not_change_the_stream(
    every: int, distributed: bool
) -> None:
    kw = {"reload_dataloaders_every_n_epochs": every, "use_distributed_sampler": distributed}
    assert same(fit(**kw).training, fit().training)


class Stop(Callback):
    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == 8:
            trainer.save_checkpoint("middle.ckpt")
            raise KeyboardInterrupt


@pytest.mark.parametrize("options", [{}, {"overfit_batches": 4}])
@pytest.mark.parametrize("every", [0, 1, 2])
def test_a_run_resumed_within_an_epoch_has_the_rest_of_its_batches(
    every: int, options: dict[str, Any]
) -> None:
    options = options | {"reload_dataloaders_every_n_epochs": every}
    whole = fit(**options).training
    with pytest.raises(SystemExit):
        fit(None, Stop(), **options)
    rest = fit(ckpt_path="middle.ckpt", **options).training
    assert same(rest, whole[8:])


@pytest.mark.parametrize(("number", "batches"), [(0, 0), (2, 2), (-1, 3)])
def test_sanity_steps_are_as_many_as_said(number: int, batches: int) -> None:
    assert fit(num_sanity_val_steps=number, max_epochs=1).sanity == batches


@pytest.mark.parametrize(("number", "batches"), [(True, 1), (3, 3)])
def test_fast_dev_run_takes_as_many_batches_as_said(number: Any, batches: int) -> None:
    seen = fit(fast_dev_run=number)
    assert (len(seen.training), seen.validation, seen.sanity) == (batches, batches, 0)


FIT = ["fit", "--config", "synthetic", "--data.train_size", "48", "--data.val_size", "20"]
FIT += ["--data.test_size", "20", "--data.image_size", "8", "--data.batch_size", "16"]
FIT += ["--model.width", "4", "--trainer.accelerator", "cpu", "--preflight", "false"]
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
OWN = ["CSVLogger", "--trainer.logger.save_dir", "logs"]


@pytest.mark.parametrize("option", ["--trainer.logger+", "--trainer.logger"])
def test_a_logger_is_added_to_those_of_the_run(option: str) -> None:
    cli = main([*FIT, *QUIET, "--trainer.max_epochs", "1", option, *OWN])
    run = cli.run_folder
    kinds = [type(logger) for logger in cli.trainer.loggers]
    assert issubclass(kinds[0], TensorBoardLogger)
    assert issubclass(kinds[1], CSVLogger)
    assert kinds[2] is CSVLogger
    rows = (run / "metrics.csv").read_text().splitlines()
    added = Path("logs/lightning_logs/version_0/metrics.csv").read_text().splitlines()
    assert len(rows) == len(added) > 1
    assert list(run.glob("events.*"))


def test_logger_false_is_none() -> None:
    cli = main([*FIT, *QUIET, "--trainer.max_epochs", "1", "--trainer.logger", "false"])
    assert cli.trainer.loggers == []
    assert not (cli.run_folder / "metrics.csv").exists()


def test_other_commands_keep_a_logger_or_say_that_they_log_nothing(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = main([*FIT, *QUIET, "--trainer.max_epochs", "1"]).run_folder
    for version, command in enumerate(("validate", "test")):
        main([command, "--run", str(run), *QUIET, "--trainer.logger", *OWN])
        text = Path(f"logs/lightning_logs/version_{version}/metrics.csv").read_text()
        assert ("val/loss" if command == "validate" else "test/loss") in text
    assert json.loads((run / "run.json").read_text())["metrics"]["test/acc"] >= 0
    others = [["predict", "--run", str(run)], ["check", *FIT[1:-2]], ["lr_find", *FIT[1:-2]]]
    for args in others:
        caplog.clear()
        main([*args, *QUIET, "--trainer.logger", *OWN])
        assert f"{args[0]} logs nothing: --trainer.logger is not used" in caplog.text
    assert len(list(Path("logs/lightning_logs").iterdir())) == 2
    assert not Path("runs/lightning_logs").exists()


@pytest.mark.parametrize(
    ("name", "way_out"),
    [("BatchSizeFinder", "--data.batch_size"), ("LearningRateFinder", "python -m project lr_find")],
)
def test_callbacks_that_change_what_the_config_records_are_refused(
    name: str,
    way_out: str,
    exit_code: Callable[[list[str]], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code([*FIT, *QUIET, "--trainer.callbacks+", name]) == 2
    assert way_out in capsys.readouterr().err.replace("\n", " ")
    assert not Path("runs").exists()


class Counter(Callback):
    """Counts in a hook that its class does not define."""

    calls = 0

    def count(self, *_: Any, **__: Any) -> None:
        self.calls += 1


@pytest.mark.parametrize("how", ["before", "in setup", "in the first step", "on the class"])
def test_a_hook_is_called_whoever_sets_it_and_whenever(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = ["on_train_batch_start", "on_train_batch_end", "on_before_zero_grad"]
    hooks += ["on_before_backward", "on_after_backward", "on_before_optimizer_step"]
    expected = 3 * len(hooks)

    def switch_on(self: Counter) -> None:
        for name in hooks:
            setattr(self, name, self.count)

    if how == "before":
        monkeypatch.setattr(Counter, "__init__", switch_on)
    elif how == "in setup":
        monkeypatch.setattr(Counter, "setup", lambda self, *_, **__: switch_on(self))
    elif how == "on the class":
        monkeypatch.setattr(Counter, "setup", lambda *_, **__: on_the_class())
    else:
        monkeypatch.setattr(Counter, "on_train_epoch_start", lambda self, *_: switch_on(self))

    def on_the_class() -> None:
        for name in hooks:
            monkeypatch.setattr(Counter, name, Counter.count)

    option = ["--trainer.callbacks+", f"{__name__}.Counter", "--trainer.logger", "false"]
    cli = main([*FIT, *QUIET, "--trainer.max_epochs", "1", *option])
    (counter,) = [c for c in cli.trainer.callbacks if isinstance(c, Counter)]
    assert counter.calls == expected
