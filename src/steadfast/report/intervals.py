"""What a few seeds can tell: means with 95 % intervals, and differences paired by seed where possible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import variance

from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate, and how sure it is; without bounds if there are too few runs for any."""

    estimate: float
    low: float | None
    high: float | None
    n: int  # runs, or pairs of runs
    how: str  # "mean", "paired by seed", "unpaired"

    @property
    def bounded(self) -> bool:
        return self.low is not None and self.high is not None

    def holds(self, value: float) -> bool | None:
        """Whether `value` lies inside; None if there are no bounds to tell."""
        if self.low is None or self.high is None:
            return None
        return self.low <= value <= self.high


def mean(values: Sequence[float], how: str = "mean") -> Interval:
    """The mean with its t-interval over runs; one run has no interval."""
    n, centre = len(values), math.fsum(values) / len(values)
    if n < 2:
        return Interval(centre, None, None, n, how)
    error = math.sqrt(variance(values) / n)
    reach = quantile(n - 1) * error
    return Interval(centre, centre - reach, centre + reach, n, how)


def difference(a: Mapping[int, float], b: Mapping[int, float]) -> Interval | None:
    """The mean of a - b, given by seed: over the seeds they share if there are two or more (what a seed does
    to both cancels), else Welch's interval for unpaired runs; None if either is empty."""
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
    """Student's t: 95 % of its mass lies within this of zero."""
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
