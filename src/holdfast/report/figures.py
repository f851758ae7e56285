"""Plot accuracy over the tasks: one figure per benchmark and memory size, with every method that was run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import pstdev

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..paper import cells as paper
from ..paper.editions import Edition
from ..paper.svg import STYLE, Picture, inline
from ..runs import plots
from ..runs.records import Record
from .others import Group, others
from .tables import NAMES, Entry

MARKS = {
    "replay+simplex": "o", "replay+expanding": "s", "replay+preallocated": "D", "gem": "^",
    "ewc": "v", "online-ewc": "P", "si": "X", "mas": "*",
}
MORE_MARKS = "<>hpd8HX"
ZOOM = 60  # if every value is above this, the axis starts at 50, so that the curves can be told apart
MOST_OTHERS = 6  # sets of runs outside the paper's tables in one figure
DASHES = {"ewc": (0, (1, 1)), "online-ewc": (0, (4, 2)), "si": (0, (1, 2)), "mas": (0, (6, 1, 1, 1))}  # these overlap


@dataclass(frozen=True)
class Line:
    """The runs of one method, and the style of their line."""

    label: str
    runs: tuple[Record, ...]
    colour: str
    mark: str
    dash: object = "-"
    paper: float | None = None  # the paper's final number


def of_entry(entry: Entry) -> Line:
    """Return the line of an entry of the paper's tables, in the method's colour."""
    row = entry.cell.row
    return Line(NAMES[row], entry.runs, plots.COLOURS[row], MARKS[row], DASHES.get(row, "-"), entry.cell.mean)


def of_group(group: Group, index: int) -> Line:
    """Return the line of other runs, in colours and marks that repeat late."""
    colour = plots.PALETTE[(index + 3) % len(plots.PALETTE)]
    return Line(group.name, group.runs, colour, MORE_MARKS[index % len(MORE_MARKS)], (0, (3, 1, 1, 1)))


def evolution(edition: Edition) -> list[Picture]:
    """Draw one figure per benchmark and memory size with runs: mean over seeds, with a band of one std."""
    pictures = []
    entries = [entry for cell in paper.cells("table1") if (entry := Entry(cell, edition.of_cell(cell))).runs]
    extra = others(edition)
    for benchmark in dict.fromkeys([*(entry.cell.benchmark for entry in entries), *extra]):
        here = [entry for entry in entries if entry.cell.benchmark == benchmark]
        groups = extra.get(benchmark, [])
        sizes = sorted({size for size in (*(e.cell.memory for e in here), *(g.memory for g in groups)) if size})
        for memory in [*sizes] or [None]:  # type: ignore[list-item]
            lines = [of_entry(entry) for entry in here if entry.cell.memory in (None, memory)]
            also = [group for group in groups if group.memory in (None, memory)]
            shown = sorted((group for group in also if not group.unusual), key=_rank)[:MOST_OTHERS]
            lines += [of_group(group, index) for index, group in enumerate(shown)]
            title = benchmark + (f", memory {memory}" if memory else "")
            caption = f"{title}: average accuracy after each task" + (f" ({edition.mark})" if edition.mark else "")
            if len(also) > len(shown):
                caption += f"; {len(also) - len(shown)} more sets of runs are in the table below"
            name = f"{'quick-' * edition.quick}evolution-{_id(benchmark)}-{memory or 0}"
            with rc_context(STYLE):
                figure = _evolution(title + (f"\n{edition.mark}" if edition.mark else ""), lines)
                pictures.append(Picture(caption, inline(figure, name, caption)))
    return pictures


def _rank(group: Group) -> tuple[bool, int, float]:
    """Order sets of runs: replay first, which the paper is about, then those with most seeds, then the best."""
    return group.config.method != "replay", -len(group.runs), -group.ours.estimate


def _id(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def _evolution(title: str, lines: list[Line]) -> Figure:
    columns = 2 if max((len(line.label) for line in lines), default=0) < 34 else 1
    rows = -(-len(lines) // columns)
    figure = Figure(figsize=(4.7, 3.3 + 0.2 * rows))
    draw_evolution(figure.subplots(), title, lines)
    figure.legend(loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    return figure


def draw_evolution(axes: Axes, title: str, lines: Iterable[Line]) -> None:
    """Draw each line with its band, and the paper's number as an open mark at the end."""
    lowest = 100.0
    for line in lines:
        columns = list(zip(*(run.averages for run in line.runs)))  # per task, one value per run
        steps = list(range(1, len(columns) + 1))
        means = [sum(column) / len(column) for column in columns]
        stds = [pstdev(column) for column in columns]
        lowest = min(lowest, *means, 100.0 if line.paper is None else line.paper)
        label = f"{line.label} ({len(line.runs)})"
        axes.plot(steps, means, marker=line.mark, ms=5, lw=1.8, color=line.colour, ls=line.dash, label=label)
        if len(line.runs) > 1:
            low, high = ([m + sign * s for m, s in zip(means, stds)] for sign in (-1, 1))
            axes.fill_between(steps, low, high, color=line.colour, alpha=0.18, lw=0)
        if line.paper is not None:
            axes.plot(steps[-1:], [line.paper], marker=line.mark, ms=9, mfc="none", mec=line.colour, mew=1.4, ls="none",
                      clip_on=False)
    axes.set(xlabel="tasks learned", ylabel="average accuracy (%)", ylim=(50, 101.5) if lowest > ZOOM else (0, 103))
    axes.set_title(title, fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
