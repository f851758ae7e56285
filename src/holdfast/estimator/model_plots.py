"""Plot how far each class of a model has moved, and the recall of a search in an old index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..runs.plots import PALETTE, STYLE
from .explain import Confusion
from .stability import Stability

MOST_BARS = 40
MOST_PAIRS = 12
WIDEST = 50  # letters of all names that fit side by side
FEWEST_DEGREES = 10.0  # minimum length of the axis, so that a small movement looks small


def draw(history: list[dict[str, Any]], now: Stability, path: Path, pairs: Sequence[Confusion] = ()) -> Path:
    """Write two panels: degrees moved per class, and recall per batch in the stored and in a refreshed index.

    The vectors of a solved model never move, so its left panel shows the confused `pairs` of classes instead."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        if now.frozen:
            _confused(left, pairs)
        else:
            _movement(left, now)
        _recall(right, history)
        figure.savefig(path)
    return path


def _confused(axes: Axes, pairs: Sequence[Confusion]) -> None:
    """Draw one bar per confused pair of classes, most often first."""
    shown = list(pairs[:MOST_PAIRS])[::-1]
    axes.barh(range(len(shown)), [100 * each.times / each.samples for each in shown], color=PALETTE[0])
    names = [f"{short(str(each.first))} / {short(str(each.second))}" for each in shown]
    axes.set_yticks(range(len(shown)), names, fontsize="small")
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="confused (% of their held samples)", title="The classes that are confused most")
    if not shown:
        axes.set_xlim(0, 100)
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color="grey")


def _movement(axes: Axes, now: Stability) -> None:
    """Draw one bar per class in order of arrival; above MOST_BARS classes, only those that moved most."""
    moved = {str(c.label): c.moved_since_learned for c in now.classes if c.moved_since_learned is not None}
    most = sorted(moved, key=lambda name: -moved[name])[:MOST_BARS]
    shown = [name for name in moved if name in {*most}]
    axes.bar(range(len(shown)), [moved[name] for name in shown], color=PALETTE[0])
    names = [short(name) for name in shown]
    wide = sum(len(name) + 2 for name in names) > WIDEST
    axes.set_xticks(range(len(shown)), names, rotation=60 if wide else 0, ha="right" if wide else "center")
    axes.tick_params("x", labelsize="small" if len(shown) > 20 else "medium")
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
    axes.set_ylim(0, max([FEWEST_DEGREES, *(1.05 * moved[name] for name in shown)]))
    few = f"the {MOST_BARS} of {len(moved)} classes that moved most" if len(moved) > MOST_BARS else ""
    without = [short(str(c.label)) for c in now.classes if c.moved_since_learned is None]
    some = ", ".join(without[:6]) + (f" and {len(without) - 6} more" if len(without) > 6 else "")
    blind = f"not measured (no held-back samples): {some}" if without else ""
    axes.set(ylabel="moved since learned (degrees)", title="How far each class's mean vector has turned")
    axes.set_xlabel("\n".join(note for note in (few, blind) if note), fontsize="small")


def _recall(axes: Axes, history: list[dict[str, Any]]) -> None:
    reports = [(i + 1, r["stability"]) for i, r in enumerate(history) if r.get("stability")]
    for key, label, style, colour in (
        ("recall_refreshed", "rebuilt index", "o-", PALETTE[1]), ("recall", "old index", "o--", PALETTE[0]),
    ):
        points = [(i, 100 * s[key]) for i, s in reports if s.get(key) is not None]
        if points:
            axes.plot(*zip(*points), style, color=colour, label=label)
    axes.set(xlabel="batches learned", ylabel="recall@1 (%)", ylim=(0, 103), title="What a search finds")
    axes.set_xlim(0.5, max(len(history), 1) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if axes.lines:
        axes.legend(frameon=False)


def short(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:15]}…"
