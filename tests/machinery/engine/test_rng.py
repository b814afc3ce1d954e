"""The random state of a run, in plain types, and what moves it."""

import random
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch

from project.data import SyntheticDataModule
from project.engine.rng import RNGState, get_state, set_state
from project.models import MLP

CPU = torch.device("cpu")
OFF = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")


def draw() -> list[float]:
    """Draw from each generator, including the kinds of numbers that keep a spare value."""
    numbers = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
    return [*numbers, *torch.rand(3).tolist(), *torch.randn(3).tolist()]


def seed(value: int) -> None:
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    seed(1)
    draw()  # gauss and randn now have a spare value
    torch.save(get_state(CPU), tmp_path / "state")
    expected = [draw(), draw()]
    seed(2)
    assert draw() != expected[0]
    set_state(torch.load(tmp_path / "state", weights_only=True), CPU)
    assert [draw(), draw()] == expected


def test_each_generator_counts() -> None:
    for name in ("python", "numpy", "torch"):
        seed(1)
        state = get_state(CPU)
        expected = draw()
        seed(2)
        set_state(state | {name: get_state(CPU)[name]}, CPU)
        assert draw() != expected, name


def trainer(callbacks: list[L.Callback], **kwargs: int) -> L.Trainer:
    off = dict.fromkeys(OFF, False)
    return L.Trainer(accelerator="cpu", max_epochs=2, callbacks=callbacks, **off, **kwargs)  # type: ignore[arg-type]


class NoisyValidation(L.Callback):
    """Draws from each generator in validation."""

    def on_validation_batch_end(self, *_: object) -> None:
        draw()


@pytest.mark.parametrize("isolated", [True, False])
def test_validation_does_not_move_the_random_state(isolated: bool) -> None:
    """Nor the sanity check: what training draws after it is what it draws without."""
    ends = []
    for noise in ([], [NoisyValidation()]):
        callbacks = [RNGState()] if isolated else []
        data = SyntheticDataModule(32, 16, 0, image_size=8, batch_size=8)
        seed(3)
        model = MLP([8], in_channels=3, image_size=8)
        trainer([*callbacks, *noise], num_sanity_val_steps=1).fit(model, data)
        ends.append((torch.cat([p.detach().flatten() for p in model.parameters()]), draw()))
    (weights, drawn), (noisy_weights, noisy_drawn) = ends
    assert torch.equal(weights, noisy_weights) == isolated  # by the dropout of the second epoch
    assert (drawn == noisy_drawn) == isolated


def test_a_state_is_restored_once_and_for_its_rank() -> None:
    callback = RNGState()
    callback.setup(trainer([]), MLP(), "fit")
    states = []
    for value in (1, 2):
        seed(value)
        states.append(get_state(CPU))
    expected = draw()  # of seed 2
    for rank, same in ((0, False), (1, True), (3, True)):  # the fourth of two ranks is the second
        callback._rank = rank
        callback.load_state_dict({"ranks": states})
        seed(9)
        callback.on_train_batch_start()
        assert (draw() == expected) == same
    following = draw()
    callback.on_train_epoch_start()  # restores no more
    assert draw() not in (expected, following)


def test_the_state_in_validation_is_the_one_before_it() -> None:
    callback, fit, model = RNGState(), trainer([]), MLP()
    callback.setup(fit, model, "fit")
    seed(1)
    expected = draw()
    seed(1)
    callback.on_validation_start(fit, model)
    draw()
    (saved,) = callback.state_dict()["ranks"]
    set_state(saved, CPU)
    assert draw() == expected
    callback.on_validation_end(fit, model)
    assert draw() == expected
