"""Figures as inline SVG for HTML; the same records give the same bytes."""

from __future__ import annotations

import html
import io
import re
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from ..runs import plots

STYLE: Any = {**plots.STYLE, "svg.fonttype": "none", "svg.hashsalt": "holdfast"}  # keep text as text


@dataclass(frozen=True)
class Picture:
    """An SVG with its caption."""

    caption: str
    svg: str


def inline(figure: Figure, prefix: str, label: str) -> str:
    """Return the figure as inline SVG: unique ids, no fixed size, no date, a label for screen readers."""
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
