"""The pictures of docs/speed.md, drawn from what the benchmarks recorded; the same bytes from the same records."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from holdfast.paper.svg import STYLE
from holdfast.runs import plots
from speed_tables import Row, against, network

Rows = Mapping[str, Sequence[Row]]  # of each benchmark
Dot = tuple[str, Row, bool]  # what it is, the numbers, and whether it is drawn open
BLUE, ORANGE, GREEN, RED = plots.PALETTE[:4]
POLYTOPES = {"simplex": (BLUE, "o"), "orthoplex": (GREEN, "s"), "cube": (RED, "D")}


def heads(found: Rows) -> Figure:
    """Time and memory over the number of classes, and over the cube's dimension."""
    rows = found["head_cost"]
    figure = Figure(figsize=(9, 7.4))
    (time, memory), (cube_time, cube_memory) = figure.subplots(2, 2, sharex="row")
    for name in ("simplex", "orthoplex"):
        here = [row for row in rows if row["name"] == name and row["slots"] >= 100]
        _lines(time, here, "time", "slots", 1e3)
        _lines(memory, here, "memory", "slots", 1e-6)
    cubes = [row for row in rows if row["name"] == "cube" and row["slots"] == 2 ** row["dim"]]
    _lines(cube_time, cubes, "time", "dim", 1e3)
    _lines(cube_memory, cubes, "memory", "dim", 1e-6)
    for axes, title in ((time, "time of loss and gradient"), (memory, "peak memory")):
        axes.set(xscale="log", xlabel="classes K")
        axes.set_title(title, fontsize=11)
    for axes in (cube_time, cube_memory):
        axes.set(xlabel="the cube's dimension d, for 2$^d$ classes", xticks=sorted({row["dim"] for row in cubes}))
    for axes in (time, cube_time):
        axes.set(yscale="log", ylabel="milliseconds")
    for axes in (memory, cube_memory):
        axes.set(yscale="log", ylabel="MB")
        axes.legend(fontsize=9, frameon=False, handlelength=3.2)
    for axes in (time, memory, cube_time, cube_memory):
        axes.minorticks_off()
    return figure


def _lines(axes: Axes, rows: Sequence[Row], what: str, over: str, scale: float) -> None:
    """Closed form as a full line, dense as a dashed one; with open marks what dense would need where it was not run."""
    if not rows:
        return
    name = rows[0]["name"]
    colour, mark = POLYTOPES[name]
    for way, line, told in (("closed", "-", "closed form"), ("dense", "--", "dense")):
        here = [row for row in rows if row["what"] == f"{way}, {what}"]
        x, y = [row[over] for row in here], [row["median"] * scale for row in here]
        axes.plot(x, y, line, marker=mark, ms=5, lw=1.8, color=colour, label=f"{name}, {told}")
    wanted = [row for row in rows if row["what"] == f"dense, {what} by arithmetic"]
    if wanted:
        x, y = [row[over] for row in wanted], [row["median"] * scale for row in wanted]
        label = f"{name}, dense would need"
        axes.plot(x, y, ":", marker=mark, ms=6, lw=1.2, color=colour, mfc="white", label=label)


def loop(found: Rows) -> Figure:
    """The share of the bare loop reached, and how many times as fast as Avalanche."""
    shares = [(network(row), row, row["compiled"]) for row in found["loop_speed"]
              if row["what"] == "holdfast / bare loop"]
    avalanche = [(f"{network(row)}\n{told}", row, row["tuned"]) for row in found["against_avalanche"]
                 if (told := against(row))]
    return _side_by_side(
        Panel(shares, BLUE, "share of the bare loop's speed (%)", scale=100, told="{:.0f} %"),
        Panel(avalanche, ORANGE, "times as fast as Avalanche", {"xlim": (0, None)}),
    )


def methods(found: Rows) -> Figure:
    """A step of each method in steps of fine-tuning, and seeds batched against a process each."""
    steps = [(row["name"], row, False) for row in found["method_cost"]
             if row["what"] == "step / finetune's" and row["name"] != "finetune"]
    seeds = [(f"{network(row)}, {row['seeds']} seeds\nbatches of {row['batch']}", row, False)
             for row in found["multi_seed"] if row["what"] == "batched / processes"]
    ticks = {"xscale": "log", "xticks": [1, 2, 5, 10], "xticklabels": ["1", "2", "5", "10"]}
    return _side_by_side(
        Panel(steps, BLUE, "a step, in steps of fine-tuning", ticks),
        Panel(seeds, GREEN, "speed of batched seeds / a process each", {"xlim": (0, None)}),
    )


@dataclass
class Panel:
    """Ratios: dots at the medians, quartiles as whiskers, the first on top; a line where both are equal."""

    dots: Sequence[Dot]
    colour: str
    label: str
    more: Mapping[str, object] = field(default_factory=dict)  # for the axes
    scale: float = 1
    told: str = "{:.2f}"

    def draw(self, axes: Axes) -> None:
        axes.axvline(self.scale, color="black", lw=1, zorder=0)
        for place, (_, row, open_mark) in enumerate(self.dots):
            middle = row["median"] * self.scale
            low, high = (value * self.scale for value in row.get("quartiles", [row["median"]] * 2))
            axes.errorbar([middle], [place], xerr=[[middle - low], [high - middle]], fmt="o", ms=7, capsize=4, lw=1.6,
                          color=self.colour, mfc="white" if open_mark else self.colour)
            axes.annotate(self.told.format(middle), (middle, place), (0, 8), textcoords="offset points", ha="center",
                          fontsize=9, bbox={"fc": "white", "ec": "none", "pad": 0.6})
        axes.set_yticks(range(len(self.dots)), [name for name, _, _ in self.dots])
        axes.set(xlabel=self.label, ylim=(len(self.dots) - 0.5, -0.6), **self.more)
        axes.minorticks_off()
        axes.grid(axis="y", visible=False)


def _side_by_side(*panels: Panel) -> Figure:
    """Those that have dots, and room for all of them."""
    drawn = [panel for panel in panels if panel.dots]
    figure = Figure(figsize=(9, 1.2 + 0.45 * max(len(panel.dots) for panel in drawn)))
    for panel, axes in zip(drawn, figure.subplots(1, len(drawn), squeeze=False)[0]):
        panel.draw(axes)
    return figure


PICTURES: dict[str, tuple[tuple[str, ...], Callable[[Rows], Figure]]] = {  # of which benchmarks, and how to draw it
    "speed-heads.svg": (("head_cost",), heads),
    "speed-loop.svg": (("loop_speed", "against_avalanche"), loop),
    "speed-methods.svg": (("method_cost", "multi_seed"), methods),
}


def svg(name: str, found: Rows, about: str) -> str:
    """A picture's text, with no date in it and `about` as its description."""
    buffer = io.StringIO()
    with rc_context(STYLE):
        figure = PICTURES[name][1](found)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Description": about})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
