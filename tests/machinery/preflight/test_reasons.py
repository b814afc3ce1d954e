"""Each fault and reason alone, from evidence that is made by hand."""

import math

import pytest

from project.preflight.answers import Answers
from project.preflight.evidence import Evidence
from project.preflight.faults import FAULTS, first_of
from project.preflight.layers import Layers
from project.preflight.reasons import REASONS
from project.preflight.rehearsal import Seen

FLAT = {"losses": [2.3] * 40, "own_losses": [2.3] * 40, "rates": [1e-3], "decays": [0.0]}


def seen(**changes: object) -> Seen:
    return Seen(**(FLAT | changes))  # type: ignore[arg-type]


FALLING = [2.3 - 0.02 * i for i in range(60)]
FAULTY: dict[str, Evidence] = {
    "all_frozen": Evidence(seen(), trained={}),
    "error": Evidence(seen(error="the loss of step 3 is nan", finite=False)),
    "misshapen_losses": Evidence(seen(), Answers(misshapen="losses of shape (2, 2)")),
    "hidden_layers": Evidence(seen(), layers=Layers(hidden=["Linear"])),
    "relu_on_outputs": Evidence(seen(), Answers(bounds=(0.0, 5.0), zeros=7)),
    "evaluation_mode": Evidence(seen(evaluating=["dropout"])),
    "gradients_add_up": Evidence(seen(leftover=True)),
    "outside_the_optimiser": Evidence(seen(outside=["head.weight"])),
    "no_learning_rate": Evidence(seen(rates=[0.0])),
    "no_gradient": Evidence(seen(silent=["spare.weight"])),
    "broadcast": Evidence(seen(), broadcast=True),
    "ignored_targets": Evidence(seen(), Answers(ignores_targets=True)),
    "summed": Evidence(seen(), Answers(summed=True)),
    "at_the_squashed_floor": Evidence(
        seen(losses=[2.3, 1.5]), Answers(bounds=(0.1, 0.9), squashed_floor=1.46)
    ),
    "other_targets": Evidence(
        seen(losses=[4.0, 0.1]), Answers(right=math.nan, loss=3.0), must_learn=False
    ),
}
STUCK: dict[str, Evidence] = {
    "risen": Evidence(seen(losses=[2.3, 9.0, 2.3])),
    "contradictory_targets": Evidence(seen(), contradictory=True),
    "forgetting": Evidence(seen(decays=[30.0], rates=[1e-2])),
    "squashed": Evidence(seen(), Answers(bounds=(0.0, 1.0), loss=2.3)),
    "bounded_or_more": Evidence(seen(), Answers(right=1.0, loss=2.3)),
    "other_loss": Evidence(seen(own_losses=[0.3] * 40), Answers(loss=0.3)),
    "unmoved": Evidence(seen(), moved=1e-6),
    "too_few_trained": Evidence(seen(), trained={"bias": 10}, mostly_frozen=True),
    "rising": Evidence(seen(losses=[2.3, 2.5, 2.4])),
    "no_signal": Evidence(seen(), layers=Layers(dead={"relu": 1.0})),
    "heavy_dropout": Evidence(seen(), dropout=0.9, evaluated=0.1),
    "slow": Evidence(seen(losses=FALLING)),
    "too_small": Evidence(seen()),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_seen_alone(name: str) -> None:
    found = [fault.__name__ for fault in FAULTS if fault(FAULTY[name])]
    assert found == [name]


@pytest.mark.parametrize("name", STUCK)
def test_a_reason_comes_before_those_that_fit_as_well(name: str) -> None:
    assert not first_of(FAULTS, STUCK[name])
    found = [reason.__name__ for reason in REASONS if reason(STUCK[name])]
    assert found[0] == name


def test_each_is_tested() -> None:
    assert [fault.__name__ for fault in FAULTS] == list(FAULTY)
    assert [reason.__name__ for reason in REASONS] == list(STUCK)


@pytest.mark.parametrize("changes", [{"must_learn": False}, {"mostly_frozen": True}])
def test_a_loss_that_stays_is_no_reason_if_it_need_not_fall(changes: dict[str, bool]) -> None:
    for losses in (FALLING, [2.3] * 40):
        assert not first_of(REASONS, Evidence(seen(losses=losses), **changes))  # type: ignore[arg-type]


def test_only_images_are_called_so() -> None:
    dead = Layers(dead={"relu": 1.0})
    for noun in ("image", "example"):
        assert f"for every {noun}" in first_of(REASONS, Evidence(seen(), layers=dead, noun=noun))
