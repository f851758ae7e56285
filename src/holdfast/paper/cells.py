"""The paper's tables as data, and the config that makes each cell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ..runs.config import Config

TABLES = ("table1", "table2", "table3")
SEEDS = 10  # the paper's runs per cell


@dataclass(frozen=True)
class Cell:
    """One entry of a table: the paper's numbers, and the config that reproduces it."""

    table: str
    row: str  # "ewc", "replay+simplex", ...
    benchmark: str
    memory: int | None
    slots: int | None  # pre-allocated classes (Tables 2 and 3)
    mean: float | None  # None where the paper has no number
    std: float | None

    def config(self, seed: int = 0, **changes: Any) -> Config:
        """Return the config of this cell for one seed."""
        method, _, head = self.row.partition("+")
        fields: dict[str, Any] = {"method": method, "slots": self.slots, "seed": seed}
        fields |= {"head": head} if head else {}
        fields |= {"memory": self.memory} if self.memory is not None else {}
        return Config(self.benchmark, **{**fields, **changes})


@cache
def cells(table: str | None = None) -> tuple[Cell, ...]:
    """Return every cell of one table, or of all three, in the paper's order."""
    text = files("holdfast.paper").joinpath("paper_tables.json").read_text(encoding="utf-8")
    return tuple(_cells(json.loads(text), [table] if table else list(TABLES)))


def _cells(tables: dict[str, Any], wanted: list[str]) -> Iterator[Cell]:
    for table in wanted:
        for entry in tables[table]:
            yield Cell(
                table, entry["method"], entry["benchmark"], entry["memory"], entry.get("preallocated"),
                entry["mean"], entry["std"],
            )


def published(config: Config) -> Cell | None:
    """Return the paper's cell with the same protocol as this run, whatever its seed, or None."""
    wanted = config.resolved()
    rows = (wanted.method, f"{wanted.method}+{wanted.head}")
    for cell in cells():
        if cell.benchmark == wanted.benchmark and cell.row in rows and cell.config(wanted.seed).resolved() == wanted:
            return cell
    return None
