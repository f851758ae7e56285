"""The paper's tables as data, and the config that makes each cell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from .config import Config

TABLES = ("table1", "table2", "table3")
SEEDS = 10  # the paper's runs a cell


@dataclass(frozen=True)
class Cell:
    """One entry of a table: what the paper reports, and the run that makes it (for any seed)."""

    table: str
    row: str  # "ewc", "replay+simplex", ...
    benchmark: str
    memory: int | None
    slots: int | None  # pre-allocated classes (Tables 2 and 3)
    mean: float | None  # None where the paper has no number
    std: float | None

    def config(self, seed: int = 0, **changes: Any) -> Config:
        """The run of this cell with one seed."""
        method, _, head = self.row.partition("+")
        fields: dict[str, Any] = {"method": method, "memory": self.memory, "slots": self.slots, "seed": seed}
        if head:
            fields["head"] = head
        return Config(self.benchmark, **{**fields, **changes})


@cache
def cells(table: str | None = None) -> tuple[Cell, ...]:
    """Every cell of one table, or of all three, in the paper's order."""
    text = files("steadfast").joinpath("paper_tables.json").read_text(encoding="utf-8")
    return tuple(_cells(json.loads(text), [table] if table else list(TABLES)))


def _cells(tables: dict[str, Any], wanted: list[str]) -> Iterator[Cell]:
    for table in wanted:
        for entry in tables[table]:
            yield Cell(
                table, entry["method"], entry["benchmark"], entry["memory"], entry.get("preallocated"),
                entry["mean"], entry["std"],
            )


def published(config: Config) -> Cell | None:
    """The paper's cell of which this run is one seed, if there is one: same protocol, any seed."""
    wanted = config.resolved()
    rows = (wanted.method, f"{wanted.method}+{wanted.head}")
    for cell in cells():
        if cell.benchmark == wanted.benchmark and cell.row in rows and cell.config(wanted.seed).resolved() == wanted:
            return cell
    return None
