"""The paper's claims, tested over seeds: each with its statistic, its confidence interval and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ..runs.config import Config
from ..runs.records import Record
from . import cells as paper
from .cells import Cell
from .editions import Edition, key
from .intervals import Interval, difference

HOLDS, FAILS, UNSURE, NOT_RUN = "holds", "does not hold", "not enough runs", "not run"
MARGIN = 1.0  # points of accuracy: the smallest difference that matters
TURN = 1.0  # degrees, or percent of the angle between classes: the smallest drift that matters
GULF = 10.0  # points below replay with the smallest memory that count as failing
PENALTIES = ("ewc", "online-ewc", "si", "mas")

Values = dict[int, float]  # by seed
Judge = Callable[[float, float], str]
Measure = Callable[[Record], float | None]
_MOVES: tuple[tuple[str, str, Measure], ...] = (
    ("weights", "°", lambda run: run.head_drift),
    ("features", " %", lambda run: run.relative_drift),
)


@dataclass(frozen=True)
class Evidence:
    """One condition under which a claim was tested."""

    where: str
    interval: Interval | None  # None: not run
    verdict: str
    paper: float | None = None  # the same statistic from the paper's means
    note: str = ""


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
        seen = {each.verdict for each in self.tested}
        if FAILS in seen:
            return FAILS
        return HOLDS if seen == {HOLDS} else UNSURE

    @property
    def count(self) -> str:
        """Return the number of conditions per verdict, in one line."""
        if not self.tested:
            return f"none of {len(self.evidence)} conditions run"
        told = {HOLDS: "holds in", FAILS: "does not hold in", UNSURE: "not enough runs in"}
        counts = {verdict: sum(each.verdict == verdict for each in self.tested) for verdict in told}
        words = ", ".join(f"{told[verdict]} {count}" for verdict, count in counts.items() if count)
        return f"{words} of {len(self.evidence)} conditions"

    @property
    def scope(self) -> str:
        """Return the conditions under which the claim holds, fails, or was not tested."""
        groups = {
            verdict: [each.where for each in self.evidence if each.verdict == verdict]
            for verdict in (HOLDS, FAILS, UNSURE, NOT_RUN)
        }
        words = {HOLDS: "Holds on", FAILS: "Does not hold on", UNSURE: "Not enough runs on", NOT_RUN: "Not run"}
        return " ".join(f"{words[verdict]}: {'; '.join(where)}." for verdict, where in groups.items() if where)


def claims(edition: Edition) -> list[Claim]:
    """Return the five claims with their evidence."""
    return [_as_good(edition), _memory(edition), _preallocating(edition), _geometry(edition), _penalties(edition)]


def _as_good(edition: Edition) -> Claim:
    pairs = [(cell, _cell("replay+expanding", cell.benchmark, cell.memory)) for cell in _table1("replay+simplex")]
    return Claim(
        "The fixed simplex is as good as an expanding classifier",
        f"Accuracy of simplex minus expanding. Holds if the interval is above −{MARGIN:g} point, fails if below it.",
        "points",
        tuple(
            _judged(_place(a), _accuracy(edition, a), _accuracy(edition, b), _no_worse, _less(a.mean, b.mean))
            for a, b in pairs
        ),
    )


def _memory(edition: Edition) -> Claim:
    evidence = []
    for benchmark in dict.fromkeys(cell.benchmark for cell in _table1("replay+simplex")):
        lost, published = {}, {}
        for row in ("replay+simplex", "replay+expanding"):
            small, large = sorted(_table1(row, benchmark), key=lambda cell: cell.memory or 0)
            lost[row] = _minus(_accuracy(edition, large), _accuracy(edition, small))
            published[row] = _less(large.mean, small.mean)
        spared = _less(published["replay+expanding"], published["replay+simplex"])
        where = f"{benchmark}, M={large.memory} to {small.memory}"
        evidence.append(_judged(where, lost["replay+expanding"], lost["replay+simplex"], _more, spared))
    return Claim(
        "Less memory hurts it less",
        "Accuracy lost with less memory: expanding minus simplex. Holds if the interval is above 0; otherwise fails "
        f"if it is below {MARGIN:g} point.",
        "points",
        tuple(evidence),
    )


def _preallocating(edition: Edition) -> Claim:
    """Test the claim on the paper's Tables 2 and 3, and on other replay runs that differ only in their slots."""
    planned = {key(cell.config()): cell for table in ("table2", "table3") for cell in paper.cells(table)}
    families: dict[Config, set[int]] = {}
    for config in [*planned, *edition.groups]:
        if config.head == "simplex" and config.method == "replay" and config.slots:
            families.setdefault(replace(config, slots=None), set()).add(config.slots)
    evidence = []
    for family, sizes in families.items():
        few = replace(family, slots=min(sizes))
        for size in sorted(sizes)[1:]:
            many = replace(family, slots=size)
            shown = [planned[config].mean if config in planned else None for config in (many, few)]
            a, b = (_values(edition.groups.get(config, ())) for config in (many, few))
            where = f"{family.benchmark}, M={family.get('memory')}, K={few.slots} to {size}"
            evidence.append(_judged(where, a, b, _no_worse, _less(*shown)))
    return Claim(
        "Pre-allocating 10 to 1000 classes costs nothing",
        "Accuracy of the simplex with many slots minus with the fewest. Holds if the interval is above "
        f"−{MARGIN:g} point, fails if below it.",
        "points",
        tuple(evidence),
    )


def _geometry(edition: Edition) -> Claim:
    evidence = []
    for a in _table1("replay+simplex"):
        b = _cell("replay+expanding", a.benchmark, a.memory)
        fixed, free = edition.of_cell(a), edition.of_cell(b)
        for what, unit, of in _MOVES:
            still, moved = _known(fixed, of), _known(free, of)
            if what == "features" and not (still and moved):  # older records have only degrees
                unit, still, moved = "°", _known(fixed, _degrees), _known(free, _degrees)
            note = f"simplex {_mean(still):.1f}{unit}, expanding {_mean(moved):.1f}{unit}" if still and moved else ""
            evidence.append(_judged(f"{_place(a)}, {what}", moved, still, _turns_more, None, note))
    return Claim(
        "The geometry does not move where a trainable head's does",
        "How far old classes turned between being learned and the end: expanding head minus simplex. Weights are "
        "measured in degrees (fixed weights cannot turn). Mean features are measured in percent of the mean angle "
        "between classes, because the two heads have different spaces. Holds if the interval is above 0; otherwise "
        f"fails if it is below {TURN:g}.",
        "difference",
        tuple(evidence),
    )


def _penalties(edition: Edition) -> Claim:
    evidence = []
    for row in PENALTIES:
        for cell in _table1(row):
            rival = min(_table1("replay+simplex", cell.benchmark), key=lambda c: c.memory or 0)
            evidence.append(_judged(
                f"{row} on {cell.benchmark} (replay: M={rival.memory})",
                _accuracy(edition, rival), _accuracy(edition, cell), _far_below, _less(rival.mean, cell.mean),
            ))
    return Claim(
        "Replay beats the regularisation methods by far",
        "Accuracy of replay with the simplex and the smallest memory, minus the method's. Holds if the interval is "
        f"above {GULF:g} points, fails if below it.",
        "points",
        tuple(evidence),
    )


def _judged(where: str, a: Values, b: Values, judge: Judge, published: float | None, note: str = "") -> Evidence:
    interval = difference(a, b)
    if interval is None:
        return Evidence(where, None, NOT_RUN, published, note)
    if interval.low is None or interval.high is None:
        return Evidence(where, interval, UNSURE, published, note)
    return Evidence(where, interval, judge(interval.low, interval.high), published, note)


def _no_worse(low: float, high: float) -> str:
    return HOLDS if low > -MARGIN else FAILS if high < -MARGIN else UNSURE


def _more(low: float, high: float) -> str:
    return HOLDS if low > 0 else FAILS if high < MARGIN else UNSURE


def _turns_more(low: float, high: float) -> str:
    return HOLDS if low > 0 else FAILS if high < TURN else UNSURE


def _far_below(low: float, high: float) -> str:
    return HOLDS if low > GULF else FAILS if high < GULF else UNSURE


def _table1(row: str, benchmark: str | None = None) -> list[Cell]:
    return [cell for cell in paper.cells("table1") if cell.row == row and benchmark in (None, cell.benchmark)]


def _cell(row: str, benchmark: str, memory: int | None) -> Cell:
    return next(cell for cell in _table1(row, benchmark) if cell.memory == memory)


def _place(cell: Cell) -> str:
    return f"{cell.benchmark}, M={cell.memory}"


def _values(runs: Iterable[Record]) -> Values:
    return {run.seed: run.accuracy for run in runs}


def _accuracy(edition: Edition, cell: Cell) -> Values:
    return _values(edition.of_cell(cell))


def _known(runs: Iterable[Record], measure: Measure) -> Values:
    return {run.seed: value for run in runs if (value := measure(run)) is not None}


def _degrees(run: Record) -> float | None:
    return run.drift


def _minus(a: Values, b: Values) -> Values:
    return {seed: a[seed] - b[seed] for seed in a.keys() & b.keys()}


def _less(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _mean(values: Values) -> float:
    return sum(values.values()) / len(values)
