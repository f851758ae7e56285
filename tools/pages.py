"""Places in the documentation that tools fill in: blocks between markers, and whether they are up to date."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def filled(text: str, tool: str, name: str, content: str) -> str:
    """The text with `content` between this tool's markers of this name."""
    pattern = rf"(<!-- {name}: made by tools/{tool} -->\n).*?(<!-- end -->)"
    made, count = re.subn(pattern, lambda m: f"{m[1]}\n{content}\n\n{m[2]}", text, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"There should be one place for {name!r}, and there are {count}.")
    return made


def table(*rows: list[str], numbers: int) -> str:
    """Markdown; the first row is the heading, and the last `numbers` columns are aligned to the right."""
    rule = ["---"] * (len(rows[0]) - numbers) + ["--:"] * numbers
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:]])


def out_of_date(wanted: Mapping[Path, str]) -> list[Path]:
    """Those that say something else now."""
    return [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]


def complain(stale: list[Path], tool: str) -> None:
    """Name what is out of date, and exit: 1 if anything is."""
    for path in stale:
        print(f"{path.relative_to(ROOT)} is out of date: run python tools/{tool}")
    sys.exit(bool(stale))
