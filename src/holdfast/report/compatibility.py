"""The table of compatibility: how well each model of a run searches the galleries of earlier models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

from ..paper.editions import Edition
from ..runs.records import Record
from .others import Group

EXPLAINED = (
    "A gallery is embedded by the model after task j and searched with queries embedded by the model after task i, "
    "over the classes that both know. M[i][j] is the percentage of queries whose nearest gallery vector has the right "
    "class. AC: share of the pairs i > j with M[i][j] at least M[j][j]. AM: mean of all entries. BC: mean over i of "
    "M[T][i] − M[i][i]. FC: mean over i of M[i][i−1] − M[i][i], of which the first is a search among fewer classes. "
    "Turned: how far old classes' mean features turned, of the angle between classes. (Biondi et al., CL2R)"
)


@dataclass(frozen=True)
class Row:
    """The measures of the runs that differ only in their seed, as means over seeds."""

    where: str
    name: str
    seeds: int
    accuracy: str
    turned: str
    ac: float
    am: float
    bc: float
    fc: float
    matrix: list[list[float]]  # M against single samples, of the first seed
    lowest: float = 0.0  # entry of all matrices with the same `where`

    def shade(self, value: float) -> float:
        """Return the darkness of an entry in the heat map: 0 for the lowest entry of the table, 1 for 100 %."""
        return 1.0 if self.lowest >= 100 else (value - self.lowest) / (100 - self.lowest)


def rows(edition: Edition) -> list[Row]:
    """Return one row per set of replay runs that measured compatibility, by benchmark, memory and length.

    The other methods are in the table of rivals, with AM."""
    replayed = [runs for runs in edition.alike if runs[0].config.method == "replay"]
    found = [_row(runs) for runs in replayed if any(run.result.get("compatibility") for run in runs)]
    lowest: dict[str, float] = {}
    for row in found:
        lowest[row.where] = min(lowest.get(row.where, 100.0), *(value for line in row.matrix for value in line))
    return sorted((replace(row, lowest=lowest[row.where]) for row in found), key=lambda row: (row.where, row.name))


def _row(runs: tuple[Record, ...]) -> Row:
    measured = tuple(run for run in runs if run.result.get("compatibility"))
    group = Group(measured)
    values = [run.result["compatibility"] for run in measured]
    turned = [run.result["mean_drift"] for run in measured if run.result.get("mean_drift") is not None]
    apart = [run.result["separation"][-1] for run in measured if run.result.get("separation")]
    ac, am, bc, fc = (fmean(value[name] for value in values) for name in ("ac", "am", "bc", "fc"))
    far = f"{fmean(turned):.0f}° of {fmean(apart):.0f}°" if turned and apart else "–"
    return Row(group.place, group.recipe, len(measured), group.text(), far, ac, am, bc, fc, values[0]["matrix"])


def markdown(found: list[Row]) -> list[str]:
    """Return the table's lines."""
    return [
        "| benchmark | runs | seeds | accuracy | turned | AC | AM | BC | FC |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
        *(
            f"| {r.where} | {r.name} | {r.seeds} | {r.accuracy} | {r.turned} | {r.ac:.0f} % | {r.am:.2f} | "
            f"{r.bc:+.2f} | {r.fc:+.2f} |"
            for r in found
        ),
    ]
