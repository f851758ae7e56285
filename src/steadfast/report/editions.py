"""The runs of a report, by what they are runs of. Full runs are one edition, quick ones another: they never mix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from ..config import Config
from ..paper import Cell
from .records import Record, protocol

QUICK = "quick, scaled down"


@dataclass(frozen=True)
class Edition:
    """All full runs, or all quick ones, found by the protocol of any of their seeds."""

    quick: bool
    runs: tuple[Record, ...]
    groups: dict[Config, tuple[Record, ...]]  # by protocol, each in the order of seeds
    alike: tuple[tuple[Record, ...], ...]  # every set of runs that differ in their seed alone

    @property
    def mark(self) -> str:
        return QUICK if self.quick else ""

    def of(self, config: Config) -> tuple[Record, ...]:
        """The runs of this configuration, with any seed."""
        return self.groups.get(key(config), ())

    def of_cell(self, cell: Cell) -> tuple[Record, ...]:
        """The runs of this entry of the paper's tables."""
        return self.of(cell.config())


def editions(records: Iterable[Record]) -> list[Edition]:
    """The full edition, then the quick one; one without runs is left out, but never both."""
    every = list(records)
    made = [_edition([r for r in every if r.quick is quick], quick) for quick in (False, True)]
    return [edition for edition in made if edition.runs] or made[:1]


def _edition(records: list[Record], quick: bool) -> Edition:
    """Runs that differ in more than the seed are never averaged: of two scalings, or of two strengths where
    none is published, the one with more seeds is shown."""
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
    """The protocol that a run counts under; for a quick run, the one that it is a scaled-down version of."""
    full = protocol(config)
    if quick:
        full = protocol(replace(full, quick=False, epochs=None))
    return replace(full, seed=0)
