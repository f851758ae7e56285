"""Runs of methods, heads, recipes and settings that are not in the paper's tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from ..methods import recipes
from ..paper import cells
from ..paper.editions import Edition, key
from ..paper.intervals import Interval, mean
from ..quantities import number
from ..runs.config import Config
from ..runs.records import Record

SHOWN_ELSEWHERE = {"method", "head", "memory", "slots", "seed", "quick"}
PLACE = ("backbone", "epochs", "slots")


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    runs: tuple[Record, ...]

    @property
    def config(self) -> Config:
        return self.runs[0].config

    @property
    def name(self) -> str:
        return describe(self.config)

    @property
    def place(self) -> str:
        """Return what runs must share to be compared: benchmark, memory, and what is unusual in `PLACE`."""
        memory = [f"M={self.memory}"] if self.memory else []
        return ", ".join([self.config.benchmark, *memory, *self.unusual])

    @property
    def unusual(self) -> list[str]:
        """Return the network, epochs and slots that are not the benchmark's own."""
        return [f"{name} {value}" for name, value in _flags(self.config).items() if name in PLACE]

    @property
    def recipe(self) -> str:
        """Return the description without what the place says."""
        return describe(self.config, PLACE)

    @property
    def key(self) -> str:
        """Return the id of these runs on the page."""
        return f"runs-{self.runs[0].hash}"

    @property
    def memory(self) -> int | None:
        return self.config.get("memory") or None

    @property
    def ours(self) -> Interval:
        return mean([run.accuracy for run in self.runs])

    @property
    def std(self) -> float | None:
        return pstdev([run.accuracy for run in self.runs]) if len(self.runs) > 1 else None

    @property
    def forgetting(self) -> float | None:
        return self._mean([run.result.get("forgetting") for run in self.runs])

    @property
    def drift(self) -> float | None:
        return self._mean([run.drift for run in self.runs])

    def text(self) -> str:
        return number(self.ours.estimate, self.std)

    @staticmethod
    def _mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return fmean(known) if known else None


def others(edition: Edition) -> dict[str, list[Group]]:
    """Return the groups of runs that are not in the paper's tables, by benchmark."""
    shown = {key(cell.config()) for cell in cells.cells()}
    found: dict[str, list[Group]] = {}
    for runs in edition.alike:
        if edition.groups.get(key(runs[0].config, quick=edition.quick)) is runs and (
            key(runs[0].config, quick=edition.quick) in shown
        ):
            continue
        found.setdefault(runs[0].config.benchmark, []).append(Group(runs))
    return {name: sorted(groups, key=lambda g: (g.memory or 0, g.name)) for name, groups in sorted(found.items())}


def describe(config: Config, without: Sequence[str] = ()) -> str:
    """Return a short description of a run: `replay + simplex, strong recipe`, `gem + expanding, gem-replay`."""
    words = [f"{config.method} + {config.head}"]
    strong = _strong(config)
    if strong:
        words.append("strong recipe")
    left = [f"{name} {value}".strip() for name, value in _flags(config).items()
            if name not in (*SHOWN_ELSEWHERE, *without) and not (strong and name.replace("-", "_") in strong)]
    return ", ".join([*words, *left])


def _flags(config: Config) -> dict[str, str]:
    """Return the flags of the run's command, with their values."""
    return dict(re.findall(r" --([\w-]+)(?: (?!--)(\S+))?", config.command()))


def _strong(config: Config) -> dict[str, object]:
    """Return the strong recipe's options on this benchmark if the run has all of them, else {}."""
    if config.method != "replay" or not config.protocol.strong:
        return {}
    strong = recipes.expand("strong", {}, augment=str(config.augment), strong=config.protocol.strong)
    return strong if all(config.get(name) == value for name, value in strong.items()) else {}
