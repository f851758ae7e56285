"""Small HTML tables, for notebooks. Everything that is shown is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "", note: str = "") -> str:
    """Return an HTML table with a caption above and a note below; numbers are aligned by the right."""
    cells = "".join(f"<th style='text-align:right'>{escape(str(name))}</th>" for name in head)
    lines = "".join(
        "<tr>" + "".join(f"<td style='text-align:right'>{escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    above = f"<caption style='text-align:left;caption-side:top'><b>{escape(caption)}</b></caption>" if caption else ""
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table>{above}<thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>{below}"
