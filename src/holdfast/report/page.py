"""Build one self-contained HTML page from a folder of records, and the same as Markdown, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from .. import __version__, files
from ..paper import ablation as beyond
from ..paper import rivals
from ..paper.claims import claims
from ..paper.editions import Edition, editions
from ..paper.evidence import Claim
from ..paper.feature_plots import feature_picture
from ..paper.questions import Question, questions
from ..paper.svg import Picture
from ..quantities import duration, signed
from ..runs import records
from ..runs.records import Record, Records
from . import compatibility, exports, figures, turning
from . import rivals as rival_table
from .best import Best, best
from .others import Group, describe, others
from .tables import Table, Tally, tables, tally

Tell = Callable[[str], None]
FIRST_STEPS = (
    ("holdfast run split-mnist --memory 100", "one run of the paper's method, about ten minutes on one core"),
    ("holdfast reproduce all --quick", "the whole sweep scaled down, an hour or two on two cores"),
    ("holdfast reproduce table1 --benchmark split-mnist --seeds 3", "a column of Table 1 as the paper ran it"),
    ("holdfast report", "then this page again"),
)


@dataclass(frozen=True)
class Chapter:
    """All tables, figures and verdicts of one edition."""

    edition: Edition
    tables: list[Table]
    tally: Tally
    claims: list[Claim]
    questions: list[Question]
    pictures: list[Picture]
    best: list[Best]
    compatibility: list[compatibility.Row]
    turning: list[Picture]  # of the features, task by task
    ablation: list[dict[str, Any]]  # rows of `paper.ablation`
    rivals: list[rivals.Row]  # every method with both heads
    others: dict[str, list[Group]]  # runs that are not in the paper's tables, by benchmark

    @property
    def prefix(self) -> str:
        """Return a prefix that makes the ids of the two editions distinct."""
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
    """Build all tables, figures and verdicts; the same records give the same report, byte for byte."""
    chapters = []
    for edition in editions(found.runs):
        tell("drawing how accuracy evolves")
        pictures = figures.evolution(edition)
        made = tables(edition)
        ablation = beyond.rows(run.result for run in edition.runs)
        chapters.append(Chapter(
            edition, made, tally(made), claims(edition), questions(edition), pictures, best(edition),
            compatibility.rows(edition), turning.pictures(edition), ablation, rivals.rows(edition.runs),
            others(edition),
        ))
    tell("drawing the features")
    drawn = [feature_picture(record, f"features-{index}") for index, record in enumerate(found.features)]
    return Report(chapters, found, drawn)


def write(folder: Path | None, out: Path, tell: Tell = lambda text: None) -> tuple[Report, list[Path]]:
    """Read the records, build the report and write its four files; return it and their paths."""
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
    """Return the HTML page; it loads nothing from elsewhere."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("holdfast.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"signed": signed, "duration": duration, "slug": slug}
    return environment.get_template("report.html").render(
        report=report, compatibility_explained=compatibility.EXPLAINED,
        version=__version__, first_steps=FIRST_STEPS, group_title=group_title, heads=beyond.HEADS,
        variant_title=beyond.title, rival_table=rival_table,
    )


def group_title(runs: tuple[Record, ...]) -> str:
    """Return the title of a set of runs that differ only in their seed."""
    config = runs[0].config
    memory = [f"M={config.get('memory')}"] if config.get("memory") else []
    return ", ".join([config.benchmark, describe(config), *memory, f"K={config.slots}"])


def slug(text: str) -> str:
    """Return the text as a CSS class name."""
    return text.replace(" ", "-")
