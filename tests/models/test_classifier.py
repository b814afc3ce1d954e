"""The training loop against hand-written ones, and its metrics against torchmetrics."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as schedules
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from project.commands.cli import main
from project.data import Augment, SyntheticDataModule
from project.engine.classification import Accuracy
from project.engine.metrics import StageMetrics
from project.models import MLP, CrossEntropy, ResNet18, Task

SMALL = ["--data.train_size", "72", "--data.val_size", "24", "--data.test_size", "0"]
SMALL += ["--data.image_size", "8", "--data.batch_size", "16"]
QUIET = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
QUIET += ["--trainer.enable_model_summary", "false", "--trainer.logger", "false"]
QUIET += ["--preflight", "false"]  # which takes steps too
STEPS = 5  # batches of 16 that 72 examples give


def quiet_trainer(**kwargs: Any) -> L.Trainer:
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return L.Trainer(**(dict.fromkeys(off, False) | {"accelerator": "cpu"} | kwargs))


def tensors(model: L.LightningModule) -> dict[str, torch.Tensor]:
    return dict(model.state_dict())


@pytest.mark.parametrize(
    "model",
    [
        MLP(in_channels=3, image_size=16, optimizer=partial(AdamW, lr=2e-3)),
        ResNet18(width=8, optimizer=partial(SGD, lr=0.1, momentum=0.9, nesterov=True)),
    ],
    ids=["MLP", "ResNet18"],
)
def test_fit_gives_the_weights_of_a_five_line_loop(model: Task) -> None:
    data = SyntheticDataModule(
        train_size=200, val_size=50, test_size=0, image_size=16, augment=Augment(crop=2, cutout=4)
    )
    reference = copy.deepcopy(model).train()
    start = copy.deepcopy(tensors(model))
    torch.manual_seed(1)
    quiet_trainer(max_epochs=2).fit(model, data)

    torch.manual_seed(1)  # of dropout
    optimizer = reference.optimizer(reference.parameters())
    loader = data.train_dataloader()
    for epoch in range(2):
        loader.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(reference(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    trained, expected = tensors(model), tensors(reference)
    assert trained.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(trained[name], value), name
    assert any(not torch.equal(start[name], value) for name, value in expected.items())


SCHEDULES: dict[str, tuple[list[str], Callable[[Optimizer], Any], str]] = {
    "StepLR": (
        ["--model.lr_scheduler.step_size", "2"],
        lambda o: schedules.StepLR(o, step_size=2),
        "epoch",
    ),
    "MultiStepLR": (
        ["--model.lr_scheduler.milestones", "[1, 3]"],
        lambda o: schedules.MultiStepLR(o, milestones=[1, 3]),
        "epoch",
    ),
    "CosineAnnealingLR": ([], lambda o: schedules.CosineAnnealingLR(o, T_max=4), "epoch"),
    "OneCycleLR": (
        ["--model.lr_scheduler.pct_start", "0.25"],
        lambda o: schedules.OneCycleLR(o, max_lr=0.05, total_steps=4 * STEPS, pct_start=0.25),
        "step",
    ),
    "ReduceLROnPlateau": (
        ["--model.lr_scheduler.patience", "0", "--model.lr_scheduler.threshold", "0.5"],
        lambda o: schedules.ReduceLROnPlateau(o, patience=0, threshold=0.5),
        "plateau",
    ),
}


def run_and_record(
    monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> tuple[list[float], list[float]]:
    """Return the learning rate of each step and the validation loss of each epoch."""
    rates: list[float] = []
    losses: list[float] = []

    def on_train_batch_start(self: Task, *_: Any) -> None:
        rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_end(self: Task) -> None:
        if not self.trainer.sanity_checking:
            losses.append(self.trainer.callback_metrics["val/loss"].item())

    monkeypatch.setattr(Task, "on_train_batch_start", on_train_batch_start)
    monkeypatch.setattr(Task, "on_validation_end", on_validation_end)
    optimizer = ["--model.optimizer", "SGD", "--model.optimizer.lr", "0.05"]
    main(["fit", "--config", "synthetic", *SMALL, *QUIET, "--model", "MLP", *optimizer, *args])
    return rates, losses


def hand_written(make: Callable[[Optimizer], Any], kind: str, losses: list[float]) -> list[float]:
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.05)
    schedule = make(optimizer)
    rates = []
    for loss in losses:
        for _ in range(STEPS):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if kind == "step":
                schedule.step()
        if kind == "epoch":
            schedule.step()
        elif kind == "plateau":
            schedule.step(loss)
    return rates


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_from_the_command_line_equals_a_hand_written_loop(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    options, make, kind = SCHEDULES[name]
    args = ["--model.lr_scheduler", name, *options, "--trainer.max_epochs", "4"]
    rates, losses = run_and_record(monkeypatch, args)
    assert len(rates) == 4 * STEPS
    assert len(set(rates)) > 1, "the schedule does something"
    assert rates == hand_written(make, kind, losses)


@pytest.mark.parametrize("name", ["StepLR", "ReduceLROnPlateau", "CosineAnnealingLR"])
def test_warmup_rises_by_the_step_beside_any_schedule_of_epochs(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    options, make, kind = SCHEDULES[name]
    args = ["--model.lr_scheduler", name, *options, "--trainer.max_epochs", "4"]
    rates, losses = run_and_record(monkeypatch, [*args, "--model.warmup_steps", "7"])
    own = hand_written(make, kind, losses)
    factors = [min(1.0, 0.01 + 0.99 * step / 7) for step in range(4 * STEPS)]
    assert rates[:7] == pytest.approx([f * rate for f, rate in zip(factors, own, strict=True)][:7])
    assert rates[7:] == own[7:]


RUN_LENGTHS: dict[str, tuple[dict[str, int], int]] = {  # T_max in epochs, of 5 steps each
    "max_epochs": ({"max_epochs": 4}, 4),
    "max_steps": ({"max_steps": 12}, 3),
    "max_steps first": ({"max_epochs": 4, "max_steps": 10}, 2),
    "max_epochs first": ({"max_epochs": 2, "max_steps": 90}, 2),
    "within an epoch": ({"max_epochs": 4, "max_steps": 2}, 1),
    "limited": ({"max_steps": 8, "limit_train_batches": 2}, 4),
    "accumulated": ({"max_steps": 6, "accumulate_grad_batches": 2}, 2),
}


@pytest.mark.parametrize("interval", ["epoch", "step"])
@pytest.mark.parametrize("name", RUN_LENGTHS)
def test_a_cosine_lasts_as_long_as_the_run(name: str, interval: Any) -> None:
    options, epochs = RUN_LENGTHS[name]
    cosine: Any = schedules.CosineAnnealingLR
    model = MLP([8], in_channels=3, image_size=8, lr_scheduler=cosine, interval=interval)
    data = SyntheticDataModule(72, 0, 0, image_size=8, batch_size=16)
    trainer = quiet_trainer(**options, limit_val_batches=0)
    trainer.fit(model, data)
    (config,) = trainer.lr_scheduler_configs
    assert isinstance(config.scheduler, schedules.CosineAnnealingLR)
    assert config.scheduler.T_max == (epochs if interval == "epoch" else trainer.global_step)
    assert interval == "epoch" or trainer.optimizers[0].param_groups[0]["lr"] < 1e-9


def test_warmup_of_a_schedule_with_its_own_is_refused() -> None:
    model = MLP(lr_scheduler=partial(schedules.OneCycleLR, max_lr=1, total_steps=3), warmup_steps=2)
    model.trainer = quiet_trainer(max_epochs=1)
    with pytest.raises(ValueError, match=r"OneCycleLR .*warmup_steps 0"):
        model.configure_optimizers()


def test_schedule_as_long_as_an_endless_run_is_refused() -> None:
    data = SyntheticDataModule(train_size=64, val_size=0, test_size=0)
    model = ResNet18(width=4, lr_scheduler=schedules.OneCycleLR)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"--trainer\.max_epochs"):
        quiet_trainer(max_epochs=-1).fit(model, data)


def test_plateau_mode_follows_the_monitor() -> None:
    for monitor, mode in (("val/acc", "max"), ("val/loss", "min")):
        model = MLP(lr_scheduler=schedules.ReduceLROnPlateau, monitor=monitor)
        model.trainer = quiet_trainer()
        made: Any = model.configure_optimizers()
        schedule = made[1][0]["scheduler"]
        assert isinstance(schedule, schedules.ReduceLROnPlateau)
        assert schedule.mode == mode


def test_metrics_equal_torchmetrics_over_uneven_batches() -> None:
    own = StageMetrics({"acc": Accuracy()})
    loss, accuracy = MeanMetric(), MulticlassAccuracy(5, average="micro")
    generator = torch.Generator().manual_seed(0)
    for size in (7, 1, 64):
        logits = torch.randn(size, 5, generator=generator)
        labels = torch.randint(5, (size,), generator=generator)
        losses = F.cross_entropy(logits, labels, reduction="none")
        own.loss.update(losses, size)
        own.update(logits.softmax(1), labels)
        loss.update(losses)
        accuracy.update(logits, labels)
    values = own.compute(None)
    assert values["acc"].item() == pytest.approx(accuracy.compute().item())
    assert values["loss"].item() == pytest.approx(loss.compute().item())


def test_epoch_metrics_are_means_over_examples_in_the_right_mode() -> None:
    data = SyntheticDataModule(train_size=80, val_size=37, test_size=0, image_size=16, batch_size=8)
    model = ResNet18(width=4, objective=CrossEntropy(label_smoothing=0.1))
    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(model, data)
    images, labels, indices = data.sets["val"]
    mean, std = (torch.tensor(value).view(-1, 1, 1) for value in data.statistics)
    inputs, targets = (images[indices] / 255 - mean) / std, labels[indices]  # type: ignore[index]
    with torch.no_grad():
        logits = model.eval()(inputs)
        in_train_mode = F.cross_entropy(model.train()(inputs), targets).item()
    measured = {name: value.item() for name, value in trainer.callback_metrics.items()}
    assert measured["val/loss"] == pytest.approx(F.cross_entropy(logits, targets).item(), rel=1e-5)
    correct = (logits.argmax(1) == targets).double().mean().item()
    assert measured["val/acc"] == pytest.approx(correct)
    assert abs(in_train_mode - measured["val/loss"]) > 1e-3, "train mode would have shown"


def test_training_metrics_are_of_one_epoch() -> None:
    data = SyntheticDataModule(train_size=100, val_size=20, test_size=0, image_size=16)
    model = MLP(in_channels=3, image_size=16, norm="none", dropout=0)
    model.optimizer = partial(SGD, lr=0.01)
    model.lr_scheduler = partial(schedules.StepLR, step_size=1, gamma=0.0)  # one epoch of learning
    trainer = quiet_trainer(max_epochs=2)
    trainer.fit(model, data)
    with torch.no_grad():
        images, labels = zip(*data.train_dataloader(), strict=True)
        loss = F.cross_entropy(model(torch.cat(images)), torch.cat(labels)).item()
    assert trainer.callback_metrics["train/loss"].item() == pytest.approx(loss, rel=1e-5)


STEPS_OF: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {  # data, trainer, examples
    "one batch": ({}, {}, 16),
    "accumulated": ({}, {"accumulate_grad_batches": 2}, 32),
    "for longer than an epoch": ({}, {"accumulate_grad_batches": 50}, 72),
    "for longer than a limited epoch": (
        {},
        {"accumulate_grad_batches": 50, "limit_train_batches": 3},
        48,
    ),
    "without the rest": ({"drop_last": True}, {"accumulate_grad_batches": 50}, 64),
    "a batch larger than the data": ({"batch_size": 100}, {}, 72),
}


@pytest.mark.parametrize("name", STEPS_OF)
def test_the_scaled_learning_rate_is_for_the_examples_that_a_step_has(name: str) -> None:
    of_data, of_trainer, examples = STEPS_OF[name]
    options = {"batch_size": 16, "image_size": 8, "val_size": 0, "test_size": 0} | of_data
    data = SyntheticDataModule(train_size=72, **options)
    model = MLP([8], in_channels=3, image_size=8, norm="none", dropout=0, reference_batch_size=8)
    model.optimizer = partial(SGD, lr=0.01)
    start = copy.deepcopy(model)
    seen: list[Any] = []

    class Watch(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, _: Any, batch: Any, *__: Any) -> None:
            seen.append(batch if trainer.global_step == 0 else None)

    trainer = quiet_trainer(max_steps=1, limit_val_batches=0, callbacks=[Watch()], **of_trainer)
    trainer.fit(model, data)
    assert model.lr_factor == examples / 8
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.01 * examples / 8)
    # The step is that of the mean gradient of its batches, and of no more than it has.
    losses = [F.cross_entropy(start(images), labels) for images, labels in seen]
    torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
    for p, trained in zip(start.parameters(), model.parameters(), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(trained, p - 0.01 * examples / 8 * p.grad)
