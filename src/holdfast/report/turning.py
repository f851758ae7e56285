"""Plot how far old classes' features turned after each task, for the heads and recipes of replay side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..paper.editions import Edition
from ..paper.svg import STYLE, Picture, inline
from ..runs import plots
from ..runs.records import Record
from .others import Group

MARKS = "osDv^P*X"
HELD = {(False, True): "#56B4E9", (True, False): "#009E73", (True, True): "#000000"}  # by strong recipe and sphere
DISTILLED = {"distill contrast": "#CC79A7", "distill features": "#8C6D31", "distill logits": "#999933"}


def turned(run: Record) -> list[float] | None:
    """Return the mean turning of old classes after each task but the first, in percent of the angle between classes.

    A class is old after the task that taught it. None if the record does not say."""
    drift, apart = run.result.get("drift"), run.result.get("separation")
    if not drift or not apart or len(drift) < 2:
        return None
    found = []
    for before, now, angle in zip(drift, drift[1:], apart[1:]):
        known = [value for old, value in zip(before, now) if old is not None and value is not None]
        if not known or not angle:
            return None
        found.append(100 * fmean(known) / angle)
    return found


def groups(edition: Edition) -> dict[str, list[Group]]:
    """Return the sets of replay runs that say how their features turned, by benchmark, memory and length."""
    found: dict[str, list[Group]] = {}
    for runs in edition.alike:
        known = tuple(run for run in runs if run.config.method == "replay" and turned(run) is not None
                      and run.result.get("compatibility"))
        if known:
            found.setdefault(Group(known).place, []).append(Group(known))
    return {place: sorted(each, key=lambda group: group.name) for place, each in sorted(found.items()) if len(each) > 1}


def pictures(edition: Edition) -> list[Picture]:
    """Draw one figure per benchmark and memory size with at least two heads or recipes."""
    made = []
    for index, (place, found) in enumerate(groups(edition).items()):
        caption = f"{place}: how far old classes' features turned" + (f" ({edition.mark})" if edition.mark else "")
        with rc_context(STYLE):
            figure = Figure(figsize=(4.7, 3.1 + 0.2 * len(found)))
            draw(figure.subplots(), place, found)
            figure.legend(loc="outside lower center", ncols=1, fontsize=8, frameon=False)
            made.append(Picture(caption, inline(figure, f"{'quick-' * edition.quick}turning-{index}", caption)))
    return made


def draw(axes: Axes, title: str, found: Iterable[Group]) -> None:
    """Draw one line per group: the mean over seeds. A head has the same colour in every figure."""
    for index, group in enumerate(found):
        columns: Sequence[tuple[float, ...]] = list(zip(*(turned(run) or [] for run in group.runs)))
        steps = list(range(2, len(columns) + 2))
        name = group.recipe.removeprefix("replay + ").replace("vertex-probability", "sphere, p =")
        axes.plot(steps, [fmean(column) for column in columns], marker=MARKS[index % len(MARKS)], ms=5, lw=1.8,
                  color=_colour(name), label=f"{name} ({len(group.runs)})")
    axes.set(xlabel="tasks learned", ylabel="turned (% of the angle\nbetween classes)")
    axes.set_ylim(bottom=0)
    axes.set_title(title, fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _colour(name: str) -> str:
    """Return the colour of a head, or of what holds the features of a simplex."""
    held = HELD.get(("strong recipe" in name, "sphere" in name))
    distilled = next((colour for what, colour in DISTILLED.items() if what in name), None)
    return held or distilled or plots.COLOURS.get(f"replay+{name.split(',')[0]}", "#777777")
