"""Plot a run: accuracy over the tasks, and the movement of each class's features."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure  # not pyplot, which would change a notebook's backend

from .. import files

# Okabe and Ito's palette, safe for colour-blind readers; each method has the same colour everywhere.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C6D31", "#000000",
           "#882255", "#999933")
COLOURS = {
    "replay+simplex": "#0072B2",
    "replay+expanding": "#E69F00",
    "replay+preallocated": "#D55E00",
    "gem": "#009E73",
    "ewc": "#CC79A7",
    "online-ewc": "#8C6D31",
    "si": "#56B4E9",
    "mas": "#000000",
}
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 11,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 144,
}


class Picture(Figure):
    """A figure that a notebook shows even if pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def run_pictures(result: dict[str, Any], folder: Path) -> list[Path]:
    """Write `accuracy.png` and `drift.png` of one run; return their paths."""
    with matplotlib.rc_context(STYLE):
        return [
            _save(accuracy_figure(result), folder / "accuracy.png"),
            _save(drift_figure(result), folder / "drift.png"),
        ]


def accuracy_figure(result: dict[str, Any]) -> Picture:
    """Plot each task's accuracy since it was learned, and the average over the tasks seen."""
    matrix = result["accuracy_matrix"]
    figure = Picture(figsize=(7, 4.2))
    axes = figure.subplots()
    steps = range(1, len(matrix) + 1)
    for task in range(len(matrix[-1])):
        after = [i for i in steps if task < len(matrix[i - 1])]
        axes.plot(after, [matrix[i - 1][task] for i in after], ".-", alpha=0.55, lw=1.2,
                  color=PALETTE[task % len(PALETTE)], label=f"task {task + 1}")
    axes.plot(steps, result["average_accuracy"], "o-", color="black", lw=2.4, label="average")
    axes.set(xlabel="tasks learned", ylabel="test accuracy (%)", ylim=(0, 103), xticks=list(steps))
    axes.set_title(_title(result, f"{result['final_average_accuracy']:.1f} % after the last task"), fontsize=11)
    axes.legend(loc="lower left", ncols=2, fontsize=9, frameon=False)
    return figure


def drift_figure(result: dict[str, Any]) -> Picture:
    """Plot how many degrees each class's mean feature has turned since it was learned."""
    drift, labels = result["drift"], result["labels"]
    figure = Picture(figsize=(7, 4.2))
    axes = figure.subplots()
    steps = list(range(1, len(drift) + 1))
    many = len(labels) > 20
    for slot, label in enumerate(labels):
        known = [(i, drift[i - 1][slot]) for i in steps if drift[i - 1][slot] is not None]
        if known:
            axes.plot(*zip(*known), ".-", lw=1.2, alpha=0.3 if many else 0.8,
                      color=PALETTE[slot % len(PALETTE)], label=None if many else str(label))
    axes.set(xlabel="tasks learned", ylabel="turned since learned (degrees)", xticks=steps)
    axes.set_ylim(bottom=0)
    mean = result["mean_drift"]
    axes.set_title(_title(result, "nothing to drift" if mean is None else f"mean drift {mean:.1f}°"), fontsize=11)
    if not many:
        axes.legend(title="class", ncols=2, fontsize=8, frameon=False)
    return figure


def _title(result: dict[str, Any], summary: str) -> str:
    config = result["config"]
    memory = f", memory {config['memory']}" if config.get("memory") else ""
    return f"{config['benchmark']}, {config.get('method', 'replay')} + {config.get('head')}{memory}: {summary}"


def _save(figure: Figure, path: Path) -> Path:
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:])
    files.write_whole(path, content.getvalue())
    return path
