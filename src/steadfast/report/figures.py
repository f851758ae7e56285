"""Pictures for a page: how accuracy evolves, as SVG that stands in HTML, the same bytes from the same records."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import pstdev
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .. import paper, plots
from .editions import Edition
from .tables import NAMES, Entry

MARKS = {
    "replay+simplex": "o", "replay+expanding": "s", "replay+preallocated": "D", "gem": "^",
    "ewc": "v", "online-ewc": "P", "si": "X", "mas": "*",
}
STYLE: Any = {**plots.STYLE, "svg.fonttype": "none", "svg.hashsalt": "steadfast"}  # text stays text


@dataclass(frozen=True)
class Picture:
    """An SVG with what it shows in words."""

    caption: str
    svg: str


def evolution(edition: Edition) -> list[Picture]:
    """A figure for each benchmark and memory size with runs: mean over seeds, a band of one std around it."""
    pictures = []
    entries = [Entry(cell, edition.of_cell(cell)) for cell in paper.cells("table1")]
    for benchmark in dict.fromkeys(entry.cell.benchmark for entry in entries):
        here = [entry for entry in entries if entry.cell.benchmark == benchmark and entry.runs]
        memories: Sequence[int | None] = sorted({entry.cell.memory for entry in here if entry.cell.memory})
        for memory in memories or [None] * bool(here):
            shown = [entry for entry in here if entry.cell.memory in (None, memory)]
            title = benchmark + (f", memory {memory}" if memory else "")
            caption = f"{title}: average accuracy after each task" + (f" ({edition.mark})" if edition.mark else "")
            name = f"{'quick-' * edition.quick}evolution-{benchmark}-{memory or 0}"
            with rc_context(STYLE):
                figure = _evolution(title + (f"\n{edition.mark}" if edition.mark else ""), shown)
                pictures.append(Picture(caption, inline(figure, name, caption)))
    return pictures


def _evolution(title: str, entries: Iterable[Entry]) -> Figure:
    figure = Figure(figsize=(4.7, 4.1))
    draw_evolution(figure.subplots(), title, entries)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure


def draw_evolution(axes: Axes, title: str, entries: Iterable[Entry]) -> None:
    """A line an entry with its band; the paper's own number as an open mark at the end."""
    for entry in entries:
        colour, mark = plots.COLOURS[entry.cell.row], MARKS[entry.cell.row]
        columns = list(zip(*(run.averages for run in entry.runs)))  # a tuple a step, with a value a run
        steps = list(range(1, len(columns) + 1))
        means = [sum(column) / len(column) for column in columns]
        stds = [pstdev(column) for column in columns]
        label = f"{NAMES[entry.cell.row]} ({len(entry.runs)})"
        axes.plot(steps, means, marker=mark, ms=5, lw=1.8, color=colour, label=label)
        if len(entry.runs) > 1:
            low, high = ([m + sign * s for m, s in zip(means, stds)] for sign in (-1, 1))
            axes.fill_between(steps, low, high, color=colour, alpha=0.18, lw=0)
        if entry.cell.mean is not None:
            axes.plot(steps[-1:], [entry.cell.mean], marker=mark, ms=9, mfc="none", mec=colour, mew=1.4, ls="none",
                      clip_on=False)
    axes.set(xlabel="tasks learned", ylabel="average accuracy (%)", ylim=(0, 103))
    axes.set_title(title, fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def inline(figure: Figure, prefix: str, label: str) -> str:
    """The figure as SVG inside HTML: ids of its own, no size but its shape, no date, read out as its label."""
    buffer = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    svg = re.sub(r"<style[^>]*>\*\{([^}]*)\}</style>", r"<style>.plot *{\1}</style>", svg)
    head, rest = svg.split(">", 1)
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    return f'{head} class="plot" role="img" aria-label="{html.escape(label)}">{rest.strip()}'
