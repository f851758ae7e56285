"""The questions that the paper leaves open, each answered by running both readings."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import pstdev
from typing import Any

from ..quantities import number, signed
from ..runs.config import Config
from ..runs.records import Record
from .editions import Edition
from .intervals import Interval, difference, mean


@dataclass(frozen=True)
class Reading:
    """One reading of the paper, its place in the question's table, and the runs that follow it."""

    row: str
    column: str  # "" in a table of one column
    config: Config
    runs: tuple[Record, ...]
    paper: float | None = None

    @property
    def name(self) -> str:
        return f"{self.row}, {self.column}" if self.column else self.row

    @property
    def text(self) -> str:
        values = [run.accuracy for run in self.runs]
        return number(mean(values).estimate, pstdev(values) if len(values) > 1 else None) if values else "not run"

    @property
    def values(self) -> dict[int, float]:
        return {run.seed: run.accuracy for run in self.runs}


@dataclass(frozen=True)
class Question:
    title: str
    ask: str
    readings: tuple[Reading, ...]
    answer: str

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(reading.column for reading in self.readings))

    @property
    def rows(self) -> dict[str, list[Reading]]:
        """Return the readings of each row, in the order of the columns."""
        rows: dict[str, list[Reading]] = {}
        for reading in self.readings:
            rows.setdefault(reading.row, []).append(reading)
        return rows


def questions(edition: Edition) -> list[Question]:
    """Return all questions: the 2x2 tables first, those of other benchmarks only if they have runs."""
    asked = [_two_by_two(edition, "permuted-mnist", 100, 81.43, 64.18)]
    for benchmark, memory in (("split-mnist", 100), ("split-mnist", 1100), ("permuted-mnist", 1100)):
        other = _two_by_two(edition, benchmark, memory, None, None)
        if other.readings[1].runs or other.readings[2].runs:
            asked.append(other)
    asked += [_rates(edition, *each) for each in _RATES]
    asked += [_slots(edition, "split-mnist", memory) for memory in (100, 1100)]
    return [*asked, *(_pair(edition, *each) for each in _PAIRS)]


# Benchmark, memory, the rates to compare, and the paper's numbers for simplex and expanding.
_RATES = (
    ("permuted-mnist", 100, (0.001, 0.0001, 0.00001), 81.43, 64.18),
    ("split-mnist", 100, (0.001, 0.0001), 82.32, 80.10),
    ("split-mnist", 1100, (0.001, 0.0001), 96.90, 96.25),
    ("split-cifar10", 1100, (0.001, 0.0001), 67.44, 66.93),
)


def _rates(
    edition: Edition, benchmark: str, memory: int, rates: tuple[float, ...], fixed: float, free: float
) -> Question:
    """Compare learning rates for both heads."""
    readings = []
    for rate in rates:
        for head, paper in (("simplex", fixed), ("expanding", free)):
            config = Config(benchmark, memory=memory, head=head, lr=rate)
            column = f"learning rate {rate:f}".rstrip("0")  # 0.00001, not 1e-05
            readings.append(Reading(head, column, config, edition.of(config), paper))
    return Question(
        f"Which learning rate? {benchmark}, M={memory}",
        "The paper states 0.001. The reference's scripts use 0.0001 on permuted-mnist, and with PyTorch 1.4.0 a bug in "
        "its schedule divides the rate by ten from the first epoch.",
        tuple(readings),
        _gaps(readings),
    )


def _gaps(readings: list[Reading]) -> str:
    """Return the difference between the heads at each rate at which both were run."""
    said = []
    for fixed, free in zip(readings[::2], readings[1::2]):
        effect = difference(fixed.values, free.values)
        if effect is not None:
            said.append(f"with {fixed.column}, {_points(effect)}")
    if not said:
        return "Not run yet."
    gap = signed((readings[0].paper or 0.0) - (readings[1].paper or 0.0))
    return f"Simplex minus expanding: {'; '.join(said)}; in the paper, {gap} points."


_SLOTS = (10, 50, 100, 1000)  # as in the paper's Table 2


def _slots(edition: Edition, benchmark: str, memory: int) -> Question:
    """Compare numbers of pre-allocated classes for both heads."""
    readings, said = [], []
    for row, head in (("simplex", "simplex"), ("trainable", "preallocated")):
        configs = [Config(benchmark, memory=memory, head=head, slots=slots) for slots in _SLOTS]
        some = [Reading(row, f"{slots} slots", config, edition.of(config)) for slots, config in zip(_SLOTS, configs)]
        effects = [(each.column, difference(each.values, some[0].values)) for each in some[1:]]
        said += [f"{row}, {column}: {_points(effect)}" for column, effect in effects if effect is not None]
        readings += some
    return Question(
        f"Does pre-allocating more classes cost accuracy? {benchmark}, M={memory}",
        "The paper asks this on split-cifar10 and split-cifar100 (Tables 2 and 3). Here a run takes minutes.",
        tuple(readings),
        f"Against {some[0].column}: {'; '.join(said)}." if said else "Not run yet.",
    )


def _two_by_two(edition: Edition, benchmark: str, memory: int, fixed: float | None, free: float | None) -> Question:
    def reading(row: str, head: str, over: str, paper: float | None) -> Reading:
        config = Config(benchmark, memory=memory, head=head, softmax_over=over)
        return Reading(row, f"loss over {over}", config, edition.of(config), paper)

    readings = (
        reading("simplex", "simplex", "all", fixed),
        reading("simplex", "simplex", "seen", None),
        reading("trainable", "preallocated", "all", None),
        reading("trainable", "expanding", "seen", free),
    )
    return Question(
        f"Fixed head or negatives? {benchmark}, M={memory}",
        "The paper's simplex sees all classes as negatives from the start, its expanding rival only the ones seen. "
        "Which of the two makes the difference?",
        readings,
        _effects(*(each.values for each in readings)),
    )


def _effects(fixed_all: Any, fixed_seen: Any, free_all: Any, free_seen: Any) -> str:
    effects = {
        "negatives add {} with the simplex": difference(fixed_all, fixed_seen),
        "negatives add {} with the trainable head": difference(free_all, free_seen),
        "the fixed head adds {} with the loss over all": difference(fixed_all, free_all),
        "the fixed head adds {} with the loss over the seen": difference(fixed_seen, free_seen),
    }
    said = [text.format(_points(effect)) for text, effect in effects.items() if effect is not None]
    if not said:
        return "Not run yet."
    text = "; ".join(said) + "."
    return text[0].upper() + text[1:]


def _points(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{signed(interval.estimate)} points (one seed, no interval)"
    return f"{signed(interval.estimate)} points (95 %: {signed(interval.low)} to {signed(interval.high)})"


_GEM = {"method": "gem", "memory": 100}
_PAIRS: tuple[tuple[str, str, str, tuple[str, dict[str, Any]], tuple[str, dict[str, Any]]], ...] = (
    (
        "Does GEM train on its memory as well? split-mnist, M=100",
        "The reference code trains on memory and new data together; the paper's equation on new data alone.",
        "split-mnist", ("new data alone", _GEM), ("memory as well", {**_GEM, "gem_replay": True}),
    ),
    (
        "Augmentation on CIFAR? split-cifar10, M=1100",
        "The paper is silent; the reference code crops and flips.",
        "split-cifar10", ("crop and flip", {"memory": 1100}), ("none", {"memory": 1100, "augment": "none"}),
    ),
    (
        "The order of the classes? split-cifar100, M=5600",
        "The reference code takes them in label order; the paper says random classes.",
        "split-cifar100", ("label order", {"memory": 5600}), ("shuffled", {"memory": 5600, "order": "shuffled"}),
    ),
    (
        "How much of a batch is remembered? split-cifar100, M=5600",
        "The text says half, 64 of 128; the reference code's loader comes to about 36 of 100 here.",
        "split-cifar100", ("64 of 128", {"memory": 5600}), ("46 of 128", {"memory": 5600, "memory_batch": 46}),
    ),
)


def _pair(
    edition: Edition, title: str, ask: str, benchmark: str, a: tuple[str, dict[str, Any]], b: tuple[str, dict[str, Any]]
) -> Question:
    configs = [(name, Config(benchmark, **fields)) for name, fields in (a, b)]
    first, second = (Reading(name, "", config, edition.of(config)) for name, config in configs)
    effect = difference(second.values, first.values)
    answer = "Not run yet." if effect is None else f"{second.name.capitalize()}: {_points(effect)}."
    return Question(title, ask, (first, second), answer)
