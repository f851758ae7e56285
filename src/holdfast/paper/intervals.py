"""Means with 95 % confidence intervals over seeds, and differences paired by seed where possible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import variance

from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; without bounds if there are too few runs."""

    estimate: float
    low: float | None
    high: float | None
    n: int  # runs, or pairs of runs
    how: str  # "mean", "paired by seed", "unpaired"

    @property
    def bounded(self) -> bool:
        return self.low is not None and self.high is not None

    def holds(self, value: float) -> bool | None:
        """Return True if `value` is inside the interval, None if there are no bounds."""
        if self.low is None or self.high is None:
            return None
        return self.low <= value <= self.high


def mean(values: Sequence[float], how: str = "mean") -> Interval:
    """Return the mean with its t-interval over runs; one run has no interval."""
    n, centre = len(values), math.fsum(values) / len(values)
    if n < 2:
        return Interval(centre, None, None, n, how)
    error = math.sqrt(variance(values) / n)
    reach = quantile(n - 1) * error
    return Interval(centre, centre - reach, centre + reach, n, how)


def difference(a: Mapping[int, float], b: Mapping[int, float]) -> Interval | None:
    """Return the mean of a - b (values by seed), or None if either is empty.

    With two or more shared seeds it is paired by seed, which cancels the effect of the seed. Otherwise it is Welch's
    interval for unpaired runs."""
    shared = sorted(a.keys() & b.keys())
    if len(shared) >= 2 or (shared and min(len(a), len(b)) == 1):
        return mean([a[seed] - b[seed] for seed in shared], "paired by seed")
    if not a or not b:
        return None
    left, right = list(a.values()), list(b.values())
    centre, n = math.fsum(left) / len(left) - math.fsum(right) / len(right), min(len(left), len(right))
    if n < 2:
        return Interval(centre, None, None, n, "unpaired")
    u, v = variance(left) / len(left), variance(right) / len(right)
    if u + v == 0:
        return Interval(centre, centre, centre, n, "unpaired")
    freedom = (u + v) ** 2 / (u**2 / (len(left) - 1) + v**2 / (len(right) - 1))
    reach = quantile(freedom) * math.sqrt(u + v)
    return Interval(centre, centre - reach, centre + reach, n, "unpaired")


def quantile(freedom: float) -> float:
    """Return the two-sided 95 % quantile of Student's t distribution."""
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
