"""The best result of each benchmark and memory size, whatever made it."""

from __future__ import annotations

from dataclasses import dataclass

from ..paper import cells
from ..paper.editions import Edition
from .others import Group

UPPER_BOUNDS = ("joint",)  # sees all data at once, so it does not compete


@dataclass(frozen=True)
class Best:
    where: str
    name: str
    text: str
    runs: int
    paper: float | None  # the paper's best number there


def best(edition: Edition) -> list[Best]:
    """Return the group of runs with the highest mean, per benchmark and memory; several seeds before one."""
    found: dict[tuple[str, int], Group] = {}
    for runs in edition.alike:
        group = Group(runs)
        if group.config.method in UPPER_BOUNDS or group.config.benchmark == "split-digits" or not group.memory:
            continue
        place = (group.config.benchmark, group.memory)
        if place not in found or _rank(group) > _rank(found[place]):
            found[place] = group
    return [
        Best(f"{benchmark}, M={memory}", group.name, group.text(), len(group.runs), _paper(benchmark, memory))
        for (benchmark, memory), group in sorted(found.items())
    ]


def _rank(group: Group) -> tuple[bool, float]:
    return len(group.runs) > 1, group.ours.estimate


def _paper(benchmark: str, memory: int) -> float | None:
    here = [cell.mean for cell in cells.cells() if (cell.benchmark, cell.memory) == (benchmark, memory)]
    return max((mean for mean in here if mean is not None), default=None)
