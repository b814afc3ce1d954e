"""Statistics of runs that differ in their seed: intervals, comparison, power and sample size.

A set of runs is an array of values; if it has several axes, the runs are along the last one. Runs
with the same seed in two sets do not form a pair: results vary because training is sensitive to
any perturbation, not because of the seed (arXiv:2304.01910).
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # imports its submodules only when they are first used
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
LEVEL, POWER = 0.95, 0.8


def t_interval(values: ArrayLike) -> tuple[Any, Any]:
    """Return the ends of the 95 % confidence interval of the mean, low and high, by Student's t."""
    x = np.asarray(values, dtype=np.float64)
    n = x.shape[-1]
    half = scipy.stats.t.ppf((1 + LEVEL) / 2, n - 1) * x.std(-1, ddof=1) / np.sqrt(n)
    return x.mean(-1) - half, x.mean(-1) + half


def sampling_std(share: float, n: int) -> float:
    """Return the standard deviation of a share on n examples that is due only to their choice."""
    return float(np.sqrt(share * (1 - share) / n))


@dataclass
class Comparison:
    """Means of two sets of runs compared by Welch's t-test, as numbers or arrays of them."""

    difference: Any  # second mean minus first mean
    low: Any
    high: Any
    p: Any
    effect: Any  # difference in pooled standard deviations


def welch(a: ArrayLike, b: ArrayLike) -> Comparison:
    """Compare two sets of runs whose standard deviations may differ."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    with warnings.catch_warnings():  # scipy warns of a set without variation, which is valid here
        warnings.filterwarnings("ignore", message="Precision loss")
        test = scipy.stats.ttest_ind(y, x, axis=-1, equal_var=False)
    interval = test.confidence_interval(LEVEL)
    difference = y.mean(-1) - x.mean(-1)
    effect = difference / pooled_std(x, y)
    return Comparison(difference, interval.low, interval.high, test.pvalue, effect)


def pooled_std(a: ArrayLike, b: ArrayLike) -> Any:
    """Return the pooled standard deviation within two sets of runs."""
    sets = [np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)]
    freedom = [x.shape[-1] - 1 for x in sets]
    squares = sum(x.var(-1, ddof=1) * df for x, df in zip(sets, freedom, strict=True))
    return np.sqrt(squares / sum(freedom))


def power(effect: float, n: int) -> float:
    """Return the probability that Welch's test at 5 % detects a difference, with n runs a side.

    The values of the runs are assumed to be normal. With equal standard deviations, the statistic
    has a noncentral t distribution with 2n − 2 degrees of freedom. It is independent of the share
    of one variance in the sum of both, a beta variable that determines Welch's degrees of freedom;
    averaging over its quantiles integrates over it. Always using 2n − 2 degrees of freedom would
    promise 80 % in cases in which three runs a side achieve 70 %.

    Args:
        effect: True difference, in standard deviations.
        n: Number of runs a side.
    """
    share = scipy.stats.beta.ppf((np.arange(200) + 0.5) / 200, (n - 1) / 2, (n - 1) / 2)
    critical = scipy.stats.t.ppf((1 + LEVEL) / 2, (n - 1) / (share**2 + (1 - share) ** 2))
    center = abs(effect) * np.sqrt(n / 2)
    above = scipy.stats.nct.sf(critical, 2 * n - 2, center)
    below = scipy.stats.nct.cdf(-critical, 2 * n - 2, center)
    return float((above + np.nan_to_num(below)).mean())  # scipy returns nan for less than 1e-12


def detectable_effect(n: int) -> float:
    """Return the smallest effect, in standard deviations, that n runs a side detect at 80 %."""
    return float(scipy.optimize.brentq(lambda effect: power(effect, n) - POWER, 0.01, 20))


def seeds_needed(effect: float) -> int:
    """Return the runs a side needed to detect an effect, in standard deviations, at 80 % power."""
    z = scipy.stats.norm.ppf((1 + LEVEL) / 2) + scipy.stats.norm.ppf(POWER)
    n = max(2, int(2 * (z / effect) ** 2))  # by the normal approximation, never more than needed
    while power(effect, n) < POWER:
        n += 1
    return n


def holm(p: ArrayLike) -> Floats:
    """Return p-values corrected for their number, by Holm's step-down method."""
    values = np.asarray(p, dtype=np.float64)
    order, m = values.argsort(), len(values)
    corrected = np.empty(m)
    corrected[order] = np.maximum.accumulate(values[order] * (m - np.arange(m))).clip(max=1)
    return corrected
