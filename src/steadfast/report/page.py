"""One self-contained page from a folder of records, and the same as Markdown, CSV and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from .. import __version__, beyond, files
from ..quantities import duration
from . import exports, figures, records
from .claims import Claim, claims
from .editions import Edition, editions
from .feature_plots import feature_picture
from .figures import Picture
from .questions import Question, questions
from .records import Record, Records
from .tables import Table, Tally, signed, tables, tally

Tell = Callable[[str], None]
FIRST_STEPS = (
    ("steadfast run split-mnist --memory 100", "one run of the paper's method, some ten minutes on one core"),
    ("steadfast reproduce all --quick", "the whole sweep scaled down, an hour or two on two cores"),
    ("steadfast reproduce table1 --benchmark split-mnist --seeds 3", "a column of Table 1 as the paper ran it"),
    ("steadfast report", "then this page again"),
)


@dataclass(frozen=True)
class Chapter:
    """Everything made from the runs of one edition."""

    edition: Edition
    tables: list[Table]
    tally: Tally
    claims: list[Claim]
    questions: list[Question]
    pictures: list[Picture]
    ablation: list[dict[str, Any]]  # rows of `beyond`

    @property
    def prefix(self) -> str:
        """Keeps the ids of two editions apart."""
        return "quick-" if self.edition.quick else ""


@dataclass(frozen=True)
class Report:
    chapters: list[Chapter]
    found: Records
    feature_pictures: list[Picture]

    @property
    def empty(self) -> bool:
        return not self.found.runs


def build(found: Records, tell: Tell = lambda text: None) -> Report:
    """All tables, figures and verdicts; the same records give the same report, byte for byte."""
    chapters = []
    for edition in editions(found.runs):
        tell("drawing how accuracy evolves")
        pictures = figures.evolution(edition)
        made = tables(edition)
        ablation = beyond.rows(run.result for run in edition.runs)
        chapters.append(Chapter(edition, made, tally(made), claims(edition), questions(edition), pictures, ablation))
    tell("drawing the features")
    drawn = [feature_picture(record, f"features-{index}") for index, record in enumerate(found.features)]
    return Report(chapters, found, drawn)


def write(folder: Path | None, out: Path, tell: Tell = lambda text: None) -> tuple[Report, list[Path]]:
    """Read the records, build the report, write its four files; returns it and where they are."""
    tell("reading the records")
    found = records.read(folder) if folder is not None else Records()
    report = build(found, tell)
    tell("writing")
    contents = {
        "report.html": page(report),
        "report.md": exports.markdown(report),
        "report.csv": exports.csv_text(report),
        "tables.tex": exports.latex(report),
    }
    for name, text in contents.items():
        files.write_whole(out / name, text.encode())
    return report, [out / name for name in contents]


def page(report: Report) -> str:
    """The HTML page: nothing in it comes from elsewhere."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("steadfast.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"signed": signed, "duration": duration, "slug": slug}
    return environment.get_template("report.html").render(
        report=report, version=__version__, first_steps=FIRST_STEPS, group_title=group_title, heads=beyond.HEADS,
        variant_title=beyond.title,
    )


def group_title(runs: tuple[Record, ...]) -> str:
    """What a set of runs that differ in their seed has in common, shortly."""
    config = runs[0].config
    words = [config.benchmark, f"{config.method} + {config.head}"]
    words += [f"loss over {config.over}"] if config.over else []
    words += [f"M={config.memory}"] if config.memory else []
    words += [f"K={config.slots}"]
    said = {"method", "head", "over", "memory", "slots", "seed", "quick"}
    flags = re.findall(r" --([\w-]+)(?: (?!--)(\S+))?", config.command())
    return ", ".join([*words, *(f"{name} {value}".strip() for name, value in flags if name not in said)])


def slug(text: str) -> str:
    """A word for a class name in the page."""
    return text.replace(" ", "-")
