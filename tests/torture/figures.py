"""The figures of the last `make torture`: stored in docs/reliability.json, shown by docs/reliability.md.

    python tests/torture/figures.py      write the figures of the last run into the page
"""

from __future__ import annotations

import json
import platform
from datetime import date
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
FIGURES, PAGE = DOCS / "reliability.json", DOCS / "reliability.md"


def read() -> dict[str, dict[str, Any]]:
    return json.loads(FIGURES.read_text()) if FIGURES.exists() else {}


def keep(name: str, **figures: Any) -> None:
    """Replace the figures of one torture test by those of this run."""
    import torch

    told = read()
    told[name] = {**figures, "on": str(date.today()), "torch": torch.__version__, "python": platform.python_version()}
    FIGURES.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    if PAGE.exists():
        PAGE.write_text(rendered(PAGE.read_text(), told))


def rendered(page: str, told: dict[str, dict[str, Any]]) -> str:
    """Return the page with each `<!--NAME-->...<!--/-->` filled by the figures called NAME."""
    pieces = page.split("<!--")
    out = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("-->")
        if name == "/":
            out.append(f"/-->{rest}")
        elif name in SENTENCES:
            out.append(f"{name}-->{SENTENCES[name].format(**told[name]) if name in told else 'not run yet'}")
        else:
            out.append(piece)
    return "<!--".join(out)


SENTENCES = {
    "kills": "{kills:,} kills ({events} kinds of moment, {timed} at random times) in {runs} runs: all bit-identical",
    "commands": "{kills} kills of `holdfast run` itself: bit-identical",
    "disk": "{faults:,} injected faults: {clear:,} clear errors, {absorbed:,} without effect; then bit-identical",
    "damage": "{flips:,} flipped bits and {cuts:,} truncations of six kinds of file: {wrong} wrong answers",
    "fuzz": "{inputs:,} inputs: {refused:,} refused by our own exceptions, {accepted:,} read, {escaped} others; "
            "slowest {slowest:.2f} s, peak +{growth:.0f} MB under a limit of +{limit} MB",
    "sweep": "{runs} runs at once, {kills} killed, all stopped and resumed: the bits of each run by itself",
    "soak": "{tasks} tasks: {slope:+.1f} kB per task (limit {allowed:.0f}), {report:+.0f} kB with the rows of results; "
            "a step of the last fifth takes {ratio:.2f} times the time of one of the first fifth",
    "threads": "1 and 2 threads: {same}",
}


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(), read()))
