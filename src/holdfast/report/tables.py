"""The paper's three tables with our numbers beside them, one entry per cell."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from statistics import pstdev

from ..paper import cells as paper
from ..paper.cells import Cell
from ..paper.editions import Edition
from ..paper.intervals import Interval, mean
from ..quantities import number, signed
from ..runs.records import Record

NAMES = {
    "ewc": "EWC",
    "online-ewc": "Online EWC",
    "si": "SI",
    "mas": "MAS",
    "gem": "GEM",
    "replay+expanding": "Replay, expanding",
    "replay+preallocated": "Replay, pre-allocated",
    "replay+simplex": "Replay, simplex",
}
TITLES = {
    "table1": "Table 1: final average accuracy, all methods",
    "table2": "Table 2: pre-allocating more classes, split-cifar10",
    "table3": "Table 3: pre-allocating more classes, split-cifar100",
}


@dataclass(frozen=True)
class Entry:
    """One cell: the paper's number, ours, and the runs behind ours."""

    cell: Cell
    runs: tuple[Record, ...]

    @property
    def name(self) -> str:
        return NAMES.get(self.cell.row, self.cell.row)

    @property
    def key(self) -> str:
        """Return the id of the cell's runs on the page."""
        return f"runs-{self.runs[0].hash}" if self.runs else ""

    @property
    def ours(self) -> Interval | None:
        return mean([run.accuracy for run in self.runs]) if self.runs else None

    @property
    def std(self) -> float | None:
        return pstdev([run.accuracy for run in self.runs]) if self.runs else None

    @property
    def difference(self) -> float | None:
        """Return our mean minus the paper's."""
        return None if self.ours is None or self.cell.mean is None else self.ours.estimate - self.cell.mean

    @property
    def outside(self) -> bool | None:
        """Return True if the paper's mean is outside our 95 % interval, None if there is no interval."""
        if self.ours is None or self.cell.mean is None:
            return None
        inside = self.ours.holds(self.cell.mean)
        return None if inside is None else not inside

    @property
    def place(self) -> str:
        memory = f", M={self.cell.memory}" if self.cell.memory else ""
        slots = f", K={self.cell.slots}" if self.cell.slots else ""
        return f"{self.cell.benchmark}{memory}{slots}"

    def paper_text(self) -> str:
        if self.cell.mean is None:
            return "none"
        return number(self.cell.mean, self.cell.std)

    def ours_text(self) -> str:
        return "not run" if self.ours is None else number(self.ours.estimate, self.std if len(self.runs) > 1 else None)

    def difference_text(self) -> str:
        return "" if self.difference is None else signed(self.difference)

    def verdict(self) -> str:
        """Return the result of the comparison in a few words."""
        if not self.runs:
            return "not run"
        if self.cell.mean is None:
            return "no number in the paper"
        if self.outside is None:
            return "one seed, no interval"
        return "paper outside our interval" if self.outside else "paper inside our interval"


@dataclass(frozen=True)
class Part:
    """The entries of one table that belong together: one benchmark, or one memory size."""

    caption: str
    column: str  # the column in which the rows of one method differ: "memory" or "slots"
    entries: tuple[Entry, ...]

    @property
    def done(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.runs]

    @property
    def left(self) -> list[Entry]:
        return [entry for entry in self.entries if not entry.runs]


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    parts: tuple[Part, ...]

    @property
    def entries(self) -> list[Entry]:
        return [entry for part in self.parts for entry in part.entries]

    @property
    def missing(self) -> int:
        return sum(len(part.left) for part in self.parts)

    @property
    def missing_where(self) -> str:
        """Return how many cells of each part are not run, in words."""
        return ", ".join(f"{part.caption} {len(part.left)}" for part in self.parts if part.left)


def tables(edition: Edition) -> list[Table]:
    """Return the three tables with the runs of this edition."""
    return [_table(name, edition) for name in paper.TABLES]


def _table(name: str, edition: Edition) -> Table:
    entries = [Entry(cell, edition.of_cell(cell)) for cell in paper.cells(name)]
    column = "memory" if name == "table1" else "slots"

    def place(entry: Entry) -> tuple[str, int]:
        return entry.cell.benchmark, (entry.cell.memory or 0) if column == "slots" else 0

    order = list(dict.fromkeys(place(entry) for entry in entries))
    ordered = sorted(entries, key=lambda entry: order.index(place(entry)))
    parts = tuple(
        Part(where[0] + (f", memory {where[1]}" if where[1] else ""), column, tuple(members))
        for where, members in groupby(ordered, place)
    )
    return Table(name, TITLES[name], parts)


@dataclass(frozen=True)
class Tally:
    """The number of cells in the paper, run, judged, and with the paper's mean inside our interval."""

    cells: int
    run: int
    judged: int  # with two seeds or more and a number in the paper
    inside: int


def tally(made: list[Table]) -> Tally:
    entries = [entry for table in made for entry in table.entries]
    judged = [entry for entry in entries if entry.outside is not None]
    return Tally(
        len(entries), sum(bool(entry.runs) for entry in entries), len(judged), sum(not e.outside for e in judged)
    )
