"""The picture of a model: how far each class has moved, and what a search in an old index finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from ..plots import PALETTE, STYLE
from .stability import Stability

MOST_BARS = 40


def draw(history: list[dict[str, Any]], now: Stability, path: Path) -> Path:
    """Two panels: degrees moved since learned, by class; recall in the stored and a refreshed index, by batch."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.2))
        left, right = figure.subplots(1, 2)
        known = [c for c in now.classes if c.moved_since_learned is not None][:MOST_BARS]
        left.bar([str(c.label) for c in known], [c.moved_since_learned or 0.0 for c in known], color=PALETTE[0])
        left.set(ylabel="moved since learned (degrees)", title="How far each class's mean vector has turned")
        left.tick_params("x", rotation=60 if len(known) > 8 else 0)
        reports = [(i + 1, r["stability"]) for i, r in enumerate(history) if r.get("stability")]
        kinds = (("recall_refreshed", "rebuilt index", PALETTE[1]), ("recall", "old index", PALETTE[0]))
        for key, label, colour in kinds:
            points = [(i, 100 * s[key]) for i, s in reports if s.get(key) is not None]
            if points:
                right.plot(*zip(*points), "o-", color=colour, label=label)
        right.set(xlabel="batches learned", ylabel="recall@1 (%)", ylim=(0, 103), title="What a search finds")
        if right.lines:
            right.legend(frameon=False)
        figure.savefig(path)
    return path
