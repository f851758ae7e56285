"""The runs of a report, grouped by protocol. Full runs and quick runs are separate editions and never mix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from ..runs.config import Config
from ..runs.records import Record, protocol
from .cells import Cell

QUICK = "quick, scaled down"


@dataclass(frozen=True)
class Edition:
    """All full runs, or all quick runs, grouped by protocol."""

    quick: bool
    runs: tuple[Record, ...]
    groups: dict[Config, tuple[Record, ...]]  # by protocol, each sorted by seed
    alike: tuple[tuple[Record, ...], ...]  # every set of runs that differ only in their seed

    @property
    def mark(self) -> str:
        return QUICK if self.quick else ""

    def of(self, config: Config) -> tuple[Record, ...]:
        """Return the runs of this config, with any seed."""
        return self.groups.get(key(config), ())

    def of_cell(self, cell: Cell) -> tuple[Record, ...]:
        """Return the runs of this entry of the paper's tables."""
        return self.of(cell.config())


def editions(records: Iterable[Record]) -> list[Edition]:
    """Return the full edition, then the quick one; leave out an empty one, unless both are empty."""
    every = list(records)
    made = [_edition([r for r in every if r.quick is quick], quick) for quick in (False, True)]
    return [edition for edition in made if edition.runs] or made[:1]


def _edition(records: list[Record], quick: bool) -> Edition:
    """Group runs by protocol. Runs that differ in more than the seed are never averaged.

    If two groups match one protocol (two quick scalings, or two strengths where none is published), the one with more
    seeds is used."""
    ordered = sorted(records, key=lambda record: (record.config.name, record.name))
    found: dict[Config, list[Record]] = {}
    for record in ordered:
        found.setdefault(replace(protocol(record.config), seed=0), []).append(record)
    alike = tuple(tuple(sorted(members, key=lambda record: record.seed)) for members in found.values())
    groups: dict[Config, tuple[Record, ...]] = {}
    for members in sorted(alike, key=len, reverse=True):
        groups.setdefault(key(members[0].config, quick=quick), members)
    return Edition(quick, tuple(ordered), groups, alike)


@lru_cache(maxsize=4096)
def key(config: Config, *, quick: bool = False) -> Config:
    """Return the protocol of a run without its seed; for a quick run, the full protocol that it scales down."""
    full = protocol(config)
    if quick:
        full = protocol(replace(full, quick=False, epochs=None))
    return replace(full, seed=0)
