"""The evidence for a claim: a difference between two sets of runs, its interval, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .intervals import Interval, difference

HOLDS, FAILS, UNSURE, NOT_RUN = "holds", "does not hold", "not enough runs", "not run"
MARGIN = 1.0  # points of accuracy: the smallest difference that matters
TURN = 1.0  # degrees, or percent of the angle between classes: the smallest drift that matters
GULF = 10.0  # points below replay with the smallest memory that count as failing

Values = dict[int, float]  # by seed
Judge = Callable[[float, float], str]


@dataclass(frozen=True)
class Evidence:
    """One condition under which a claim was tested."""

    where: str
    interval: Interval | None  # None: not run
    verdict: str
    paper: float | None = None  # the same statistic from the paper's means
    note: str = ""
    beyond: bool = False  # of a recipe that the paper does not have: shown, but no part of the verdict


@dataclass(frozen=True)
class Claim:
    title: str
    test: str  # what is measured, and what counts
    unit: str
    evidence: tuple[Evidence, ...]

    @property
    def tested(self) -> list[Evidence]:
        return [each for each in self.evidence if each.interval is not None]

    @property
    def verdict(self) -> str:
        """Return HOLDS if the claim holds in all tested conditions, FAILS if it fails in one."""
        seen = {each.verdict for each in self.tested if not each.beyond}
        if FAILS in seen:
            return FAILS
        return HOLDS if seen == {HOLDS} else UNSURE

    @property
    def count(self) -> str:
        """Return the number of the paper's conditions per verdict, in one line."""
        conditions = [each for each in self.evidence if not each.beyond]
        told = {HOLDS: "holds in", FAILS: "does not hold in", UNSURE: "not enough runs in"}
        counts = {verdict: sum(each.verdict == verdict for each in conditions) for verdict in told}
        words = ", ".join(f"{told[verdict]} {count}" for verdict, count in counts.items() if count)
        return f"{words} of {len(conditions)} conditions" if words else f"none of {len(conditions)} conditions run"

    @property
    def scope(self) -> str:
        """Return the conditions under which the claim holds, fails, or was not tested."""
        groups = {
            verdict: [each.where for each in self.evidence if each.verdict == verdict]
            for verdict in (HOLDS, FAILS, UNSURE, NOT_RUN)
        }
        words = {HOLDS: "Holds on", FAILS: "Does not hold on", UNSURE: "Not enough runs on", NOT_RUN: "Not run"}
        return " ".join(f"{words[verdict]}: {'; '.join(where)}." for verdict, where in groups.items() if where)


def judged(
    where: str, a: Values, b: Values, judge: Judge, published: float | None = None, note: str = "", beyond: bool = False
) -> Evidence:
    """Judge the difference a - b, paired by seed where possible."""
    interval = difference(a, b)
    if interval is None:
        return Evidence(where, None, NOT_RUN, published, note, beyond)
    if interval.low is None or interval.high is None:
        return Evidence(where, interval, UNSURE, published, note, beyond)
    return Evidence(where, interval, judge(interval.low, interval.high), published, note, beyond)


def no_worse(low: float, high: float) -> str:
    """Return the verdict on "the difference is at most MARGIN below"."""
    return HOLDS if low > -MARGIN else FAILS if high < -MARGIN else UNSURE


def more(low: float, high: float) -> str:
    """Return the verdict on "the difference is above 0"."""
    return HOLDS if low > 0 else FAILS if high < MARGIN else UNSURE


def turns_more(low: float, high: float) -> str:
    """Return the verdict on "the difference is above 0, in degrees or percent of the angle between classes"."""
    return HOLDS if low > 0 else FAILS if high < TURN else UNSURE


def far_below(low: float, high: float) -> str:
    """Return the verdict on "the difference is above GULF"."""
    return HOLDS if low > GULF else FAILS if high < GULF else UNSURE
