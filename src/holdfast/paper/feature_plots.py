"""The 2-D feature figure: test features and class directions, one panel per step, and an animation."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from .. import files
from ..runs import plots
from . import svg as figures
from .editions import QUICK
from .svg import Picture

# Ten colours that are safe for colour-blind readers: Okabe and Ito's, and two of Tol's.
CLASS_COLOURS = (*plots.PALETTE[:7], "#000000", "#882255", "#999933")
UNSEEN = "#c8c8c8"
FRAME_MS = 1600


def feature_figure_of(record: dict[str, Any], steps: list[int] | None = None) -> Figure:
    """Draw one row per head and one column per step (all steps, or the given ones)."""
    heads = record["heads"]
    chosen = range(len(heads[0]["frames"])) if steps is None else steps
    figure = Figure(figsize=(2.55 * len(chosen) + 0.2, 2.95 * len(heads) + 0.1), layout="constrained")
    if record.get("quick"):
        figure.suptitle(QUICK, fontsize=9, color="#a33b00")
    grid = figure.subplots(len(heads), len(chosen), squeeze=False)
    for row, head in zip(grid, heads):
        for axes, step in zip(row, chosen):
            _panel(axes, head, head["frames"][step], record["labels"])
    return figure


def _panel(axes: Axes, head: dict[str, Any], frame: dict[str, Any], labels: list[str]) -> None:
    reach = 1.08 * _reach(frame)
    for slot, (x, y) in enumerate(frame["weights"]):
        seen = slot in frame["seen"]
        colour = CLASS_COLOURS[slot % len(CLASS_COLOURS)] if seen else UNSEEN
        axes.plot([0, x * reach], [0, y * reach], color=colour, lw=1.6 if seen else 0.8, zorder=3 if seen else 1)
        if seen:
            axes.annotate(str(labels[slot]), (x * reach * 1.1, y * reach * 1.1), ha="center", va="center",
                          fontsize=9, color=colour, fontweight="bold")
    for slot, cloud in zip(frame["seen"], frame["clouds"]):
        axes.plot(*zip(*cloud), ls="none", marker="o", ms=1.9, mew=0, alpha=0.55, zorder=2,
                  color=CLASS_COLOURS[slot % len(CLASS_COLOURS)])
    axes.set(xlim=(-1.2 * reach, 1.2 * reach), ylim=(-1.2 * reach, 1.2 * reach), aspect="equal", xticks=[], yticks=[])
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    turned = [value for value in frame["features_moved"] if value is not None]
    weights = [value for value in frame["weights_moved"] if value is not None]
    moved = "first classes" if not turned else (
        f"features turned {sum(turned) / len(turned):.0f}°, weights {sum(weights) / len(weights):.0f}°"
    )
    axes.set_title(f"{head['title']}, {len(frame['seen'])} classes, {frame['accuracy']:.0f} %\n{moved}", fontsize=8.5)


def _reach(frame: dict[str, Any]) -> float:
    """Return the radius within which 97 % of the features lie."""
    norms = sorted(math.hypot(x, y) for cloud in frame["clouds"] for x, y in cloud)
    return norms[int(0.97 * (len(norms) - 1))] or 1.0


def caption(record: dict[str, Any]) -> str:
    scaled = f" ({QUICK})" if record.get("quick") else ""
    return (
        f"Features of the test set of {record['dataset']} in two dimensions: {record['start']} classes, then "
        f"{record['add']} more, one at a time. Dots: features; lines: the head's directions "
        "(grey: classes not learned yet). Each panel has its own scale. Degrees: how far the "
        f"earlier classes turned in this step, on average.{scaled}"
    )


def feature_picture(record: dict[str, Any], prefix: str) -> Picture:
    """Return the figure for a page."""
    with rc_context(figures.STYLE):
        return Picture(caption(record), figures.inline(feature_figure_of(record), prefix, caption(record)))


def write_pictures(record: dict[str, Any], out: Path) -> list[Path]:
    """Write `features.svg`, `features.png` and the animation `features.gif`; return their paths."""
    with rc_context(figures.STYLE):
        figure = feature_figure_of(record)
        for name in ("features.svg", "features.png"):
            buffer = io.BytesIO()
            extra: dict[str, Any] = {"metadata": {"Date": None}} if name.endswith("svg") else {"dpi": 144}
            figure.savefig(buffer, format=name[-3:], **extra)
            files.write_whole(out / name, buffer.getvalue())
    files.write_whole(out / "features.gif", animation(record))
    return [out / name for name in ("features.svg", "features.png", "features.gif")]


def animation(record: dict[str, Any]) -> bytes:
    """Return a GIF with one frame per step and the heads stacked; the last frame stays longer."""
    frames = []
    with rc_context(figures.STYLE):
        for step in range(len(record["heads"][0]["frames"])):
            buffer = io.BytesIO()
            feature_figure_of(record, [step]).savefig(buffer, format="png", dpi=110)
            frames.append(Image.open(buffer).convert("RGB").quantize(64))
    times = [FRAME_MS] * (len(frames) - 1) + [2 * FRAME_MS]
    made = io.BytesIO()
    frames[0].save(made, format="GIF", save_all=True, append_images=frames[1:], duration=times, loop=0, disposal=2)
    return made.getvalue()
