"""The statistics against numbers worked by hand, scipy's own, and simulated runs."""

import math

import numpy as np
import pytest
import scipy

from benchmarks.statistics import simulate
from project.reports.statistics import (
    detectable_effect,
    holm,
    power,
    sampling_std,
    seeds_needed,
    t_interval,
    welch,
)


def test_interval_of_the_mean() -> None:
    # Mean 3, standard deviation sqrt(2.5), and 2.7764 from the table of Student's t.
    half = 2.7764 * math.sqrt(2.5 / 5)
    assert t_interval([1, 2, 3, 4, 5]) == pytest.approx((3 - half, 3 + half), rel=1e-4)
    values = np.random.default_rng(0).normal(0.85, 0.005, 7)
    expected = scipy.stats.t.interval(0.95, 6, values.mean(), scipy.stats.sem(values))
    assert t_interval(values) == pytest.approx(expected)


def test_comparison_of_two_sets() -> None:
    # Means 2 and 4, variances 1 and 7: Welch's t and its degrees of freedom follow by hand.
    found = welch([1, 2, 3], [2, 3, 7])
    error = math.sqrt(1 / 3 + 7 / 3)
    freedom = (8 / 3) ** 2 / ((1 / 3) ** 2 / 2 + (7 / 3) ** 2 / 2)
    assert freedom == pytest.approx(2.56)
    half = scipy.stats.t.ppf(0.975, freedom) * error
    assert found.difference == 2
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half))
    assert found.p == pytest.approx(2 * scipy.stats.t.sf(2 / error, freedom))
    assert found.effect == pytest.approx(1)  # the mean variance is 4
    # Unequal numbers weigh the variances by their degrees of freedom: (1 · 2 + 0.5 · 1) / 3.
    assert welch([1, 2, 3], [3, 4]).effect == pytest.approx(1.5 / math.sqrt(2.5 / 3))

    # A set without variation is certain: the other one alone decides, by a t-test of its own.
    alone = scipy.stats.ttest_1samp([0.4, 0.6, 0.8], 0.5)
    assert welch([0.5, 0.5, 0.5], [0.4, 0.6, 0.8]).p == pytest.approx(alone.pvalue)


def test_seeds_for_a_half_one_and_two_standard_deviations() -> None:
    assert [seeds_needed(effect) for effect in (0.5, 1, 2)] == [64, 17, 6]
    for effect, n in ((0.5, 64), (1, 17), (2, 6)):
        assert power(effect, n - 1) < 0.8 <= power(effect, n)
        assert power(-effect, n) == power(effect, n)
    # Of the t-test that knows the deviations to be equal, by Cohen's tables: 0.80 at n = 64.
    assert power(0.5, 64) == pytest.approx(0.801, abs=1e-3)


@pytest.mark.parametrize("n", [2, 3, 5, 20, 100])
def test_detectable_difference_and_seeds_needed_are_inverse(n: int) -> None:
    effect = detectable_effect(n)
    assert power(effect, n) == pytest.approx(0.8)
    assert seeds_needed(effect + 1e-6) == n
    assert seeds_needed(effect - 1e-6) == n + 1


def test_without_a_difference_the_power_is_the_false_positive_rate() -> None:
    rates = [power(0, n) for n in (3, 5, 10, 100)]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(0.05, abs=1e-3)
    assert all(rate < 0.05 for rate in rates), "Welch's test errs on the safe side"


@pytest.mark.parametrize("n", [3, 5, 10])
def test_simulated_runs_agree(n: int) -> None:
    found = simulate(n, 40_000)
    assert found["coverage"] == pytest.approx(0.95, abs=0.005)
    assert found["false_positives"] == pytest.approx(power(0, n), abs=0.005)
    assert found["power"] == pytest.approx(0.8, abs=0.01)


def test_correction_for_several_comparisons() -> None:
    # Smallest first: 0.01 · 3, 0.03 · 2, and 0.04 · 1, which may not be below the one before.
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.2]) == pytest.approx([0.2])
    assert holm([0.5, 0.6]) == pytest.approx([1, 1])


def test_sampling_std_of_an_evaluation_set() -> None:
    assert sampling_std(0.94, 10_000) == pytest.approx(0.0024, abs=5e-5)
