"""Every method with the simplex and with its native head, under one protocol: does a fixed head help its rivals?

`configs` returns the runs of `holdfast reproduce rivals`; `rows` returns the table from the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Any

from ..methods import METHODS
from ..options import declared
from ..runs.benchmarks import BENCHMARKS
from ..runs.config import Config
from ..runs.records import Record

FIXED = "simplex"
NATIVE = {"replay": "expanding"}  # elsewhere a method's default head; replay's own default is the simplex
FAMILIES = {
    "bounds": ("finetune", "joint"),
    "memory": ("replay", "er-ace", "der", "der++", "gem", "agem"),
    "distillation": ("lwf", "icarl", "lucir"),
    "bias": ("il2m", "wa"),
    "penalties": ("ewc", "online-ewc", "si", "mas"),
    "streaming": ("ncm", "slda", "ranpac", "solved"),
}
BENCHMARK = "split-digits"
SEEDS = {"split-digits": 3}  # elsewhere one
MEMORIES = {"split-mnist": 100}  # elsewhere the benchmark's own


def heads_of(method: str) -> tuple[str, ...]:
    """Return the heads to compare: the simplex and the method's native head, once if they are the same."""
    return tuple(dict.fromkeys((FIXED, NATIVE.get(method, METHODS[method].head))))


def config(benchmark: str, method: str, head: str, seed: int = 0, **changes: Any) -> Config:
    """Return one run of the comparison."""
    size = MEMORIES.get(benchmark)
    if size is not None and "memory" in {each.name for each in declared(METHODS.options(method))}:
        changes = {"memory": size, **changes}
    return Config(benchmark, method=method, head=head, seed=seed, **changes)


def configs(seeds: int | None, benchmarks: Sequence[str] = (), **changes: Any) -> list[Config]:
    """Return every run of the comparison; by default three seeds on split-digits and one elsewhere."""
    return [
        config(name, method, head, seed, **changes)
        for name in benchmarks or (BENCHMARK,)
        for seed in range(seeds or SEEDS.get(name, 1))
        for family in FAMILIES.values()
        for method in family
        for head in heads_of(method)
    ]


@dataclass(frozen=True)
class Side:
    """The runs of one method with one head."""

    head: str
    runs: tuple[Record, ...]
    usual: float | None  # seconds per step of replay with the same head

    @property
    def accuracy(self) -> float:
        return fmean(run.accuracy for run in self.runs)

    @property
    def std(self) -> float | None:
        return pstdev([run.accuracy for run in self.runs]) if len(self.runs) > 1 else None

    @property
    def forgetting(self) -> float | None:
        return self._mean("forgetting")

    @property
    def turned(self) -> float | None:
        """Return how far old classes turned, in percent of the angle between classes: comparable between heads."""
        known = [run.relative_drift for run in self.runs if run.relative_drift is not None]
        return fmean(known) if len(known) == len(self.runs) else None

    @property
    def compatibility(self) -> float | None:
        """Return AM, the mean over all pairs of models: what a search in an earlier model's gallery finds.

        Older records do not have it; nor, as below, the bytes and the steps. The mean is over those that do."""
        found = [run.result["compatibility"]["am"] for run in self.runs if run.result.get("compatibility")]
        return fmean(found) if found else None

    @property
    def kept(self) -> float | None:
        """Return the bytes kept from task to task: samples, logits, statistics, importances."""
        return self._mean("kept_bytes")

    @property
    def time(self) -> float | None:
        """Return the time per step relative to replay with the same head."""
        own = seconds_per_step(self.runs)
        return None if own is None or not self.usual else own / self.usual

    def _mean(self, name: str) -> float | None:
        values = [run.result.get(name) for run in self.runs]
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        return fmean(numbers) if numbers else None


@dataclass(frozen=True)
class Row:
    """One method on one benchmark, with its heads side by side; None for a head without runs."""

    benchmark: str
    family: str
    method: str
    fixed: Side | None
    native: Side | None

    @property
    def sides(self) -> tuple[Side | None, Side | None]:
        return self.fixed, self.native

    @property
    def gain(self) -> float | None:
        """Return the accuracy with the simplex minus that with the native head, over the seeds that both have."""
        if self.fixed is None or self.native is None:
            return None
        fixed, native = ({run.config.seed: run.accuracy for run in side.runs} for side in (self.fixed, self.native))
        both = fixed.keys() & native.keys()
        return fmean(fixed[seed] - native[seed] for seed in both) if both else None


def rows(runs: Iterable[Record]) -> list[Row]:
    """Return the table's rows in the order of `FAMILIES`; methods and benchmarks without runs are left out.

    A benchmark is left out too if it has runs of fewer than two methods."""
    found: dict[tuple[str, str, str], list[Record]] = {}
    for run in runs:
        if (place := _place(run.config)) is not None:
            found.setdefault(place, []).append(run)
    table: list[Row] = []
    for name in (each for each in BENCHMARKS if len({place[1] for place in found if place[0] == each}) > 1):
        for family, methods in FAMILIES.items():
            for method in methods:
                row = _row(name, family, method, found)
                table += [row] if any(row.sides) else []
    return table


def _row(name: str, family: str, method: str, found: dict[tuple[str, str, str], list[Record]]) -> Row:
    sides: dict[str, Side] = {}
    for head in heads_of(method):
        if here := tuple(found.get((name, method, head), ())):
            replayed = found.get((name, "replay", FIXED if head == FIXED else NATIVE["replay"]), ())
            sides[head] = Side(head, here, seconds_per_step(replayed))
    native = heads_of(method)[-1]
    return Row(name, family, method, sides.get(FIXED), None if native == FIXED else sides.get(native))


def _place(full: Config) -> tuple[str, str, str] | None:
    """Return the (benchmark, method, head) of a run, or None if it is not part of the comparison."""
    if full.benchmark not in BENCHMARKS or full.validation or not any(full.method in f for f in FAMILIES.values()):
        return None
    head = str(full.head)
    if head not in heads_of(full.method):
        return None
    wanted = config(full.benchmark, full.method, head, full.seed, quick=full.quick).resolved()
    if full.quick:  # a quick run may scale the epochs further
        wanted = replace(wanted, epochs=full.epochs)
    return (full.benchmark, full.method, head) if wanted == full else None


def seconds_per_step(runs: Sequence[Record]) -> float | None:
    """Return the mean training time of one step, or None if no record says its number of steps."""
    times = [run.seconds / run.result["steps"] for run in runs if run.result.get("steps")]
    return fmean(times) if times else None
