"""`holdfast inspect`: what a model knows, what it confuses, and which samples are doubtful."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Column, Table

from ..errors import BadInput
from ..quantities import some
from .model_progress import say
from .options import console
from .samples import EmbedderPlace, looked, name_of, read_rows

SHOWN = 10  # rows of each table


def inspect(
    model: Annotated[Path, typer.Argument(help="the model's folder", show_default=False)],
    sources: Annotated[
        list[Path] | None,
        typer.Argument(help="labelled samples, as for learn, to find doubtful ones among them", show_default=False),
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="column of texts in a table")] = None,
    label: Annotated[str | None, typer.Option("--label", help="column of labels in a table")] = None,
    picture: Annotated[Path | None, typer.Option("--picture", help="plot file  (default: MODEL/model.png)")] = None,
    embedder: EmbedderPlace = None,
    offline: Annotated[bool, typer.Option("--offline", help="never download an embedder")] = False,
) -> None:
    """Show a model's classes, what it confuses, and the stability of each class. With samples, show doubtful ones.

    [dim]holdfast inspect m/[/]
    [dim]holdfast inspect m/ intents.csv --text question --label intent[/]
    """
    from ..estimator import IncrementalClassifier, explain
    from ..estimator.model_plots import draw

    clf = IncrementalClassifier.load(model, device="cpu", embedder=embedder, offline=offline)
    inner, names = clf.model_, clf.classes_.tolist()
    _show_classes(clf)
    say(f"{len(names)} classes, {inner.labels.free} of {inner.labels.capacity} slots left; {inner.describe()}")
    kept = inner.kept()
    if few := [str(name) for name in names if sum(kept[inner.labels.slots[name]]) < explain.FEW]:
        say(f"Fewer than {explain.FEW} samples, so answers are uncertain: {some(few)}.")
    pairs = []
    if len(names) > 1:
        truth, guess = explain.held_guesses(inner)
        pairs = explain.confusions(names, truth, guess)
        _show_confusions(pairs, len(truth))
    say(clf.stability_.answer)
    if sources:
        _show_doubts(clf, sources, text, label)
    say(f"Drawn in {draw(inner.history, clf.stability_, picture or model / 'model.png', pairs)}.")


def _show_classes(clf: Any) -> None:
    inner, report = clf.model_, {c.label: c for c in clf.stability_.classes}
    learned = "learned" if clf.method_ == "solved" else "remembered"
    moves = not clf.stability_.frozen  # frozen vectors never move, and an index of them needs no rebuilding
    measured = ("moved since learned", "recall", "if rebuilt") if moves else ("recall",)
    table = Table(Column("class", overflow="fold", min_width=9), "slot", learned, "held back", *measured)
    kept = inner.kept()
    for name in clf.classes_.tolist():
        slot, row = inner.labels.slots[name], report.get(name)
        cells = [row.moved_since_learned, row.recall, row.recall_refreshed] if row else [None] * 3
        units = (("°", 1), (" %", 100), (" %", 100))
        shown = ["-" if v is None else f"{scale * v:.1f}{unit}" for v, (unit, scale) in zip(cells, units)]
        table.add_row(escape(str(name)), str(slot), *map(str, kept[slot]), *(shown if moves else shown[1:2]))
    console.print(table)


def _show_confusions(pairs: list[Any], samples: int) -> None:
    if not pairs:
        say(f"No two classes are confused among {samples} held samples.")
        return
    table = Table("class", "and", "confused", "of held samples", title="Confused most", title_justify="left")
    for each in pairs[:SHOWN]:
        table.add_row(escape(str(each.first)), escape(str(each.second)), str(each.times), str(each.samples))
    console.print(table)
    if len(pairs) > SHOWN:
        say(f"and {len(pairs) - SHOWN} more pairs.")


def _show_doubts(clf: Any, sources: list[Path], text: str | None, label: str | None) -> None:
    """Show the given samples whose label is unlikely, and those nearest to the border between two classes."""
    from ..estimator import explain

    names = [str(each) for each in clf.classes_.tolist()]
    rows, embedded = looked(clf, read_rows(sources, text, label, clf.embedder))
    here = [i for i, each in enumerate(rows.labels) if each is not None and str(each) in names]
    if not here or len(names) < 2:
        raise BadInput("No sample has a label that the model knows: name the column of labels with --label.")
    chances = clf.model_.chances(embedded).cpu().numpy()[here]
    truth = np.array([names.index(str(rows.labels[i])) for i in here])
    for title, found in (
        (f"Suspicious labels: the model gives them less than {100 * explain.UNLIKELY:g} %",
         explain.suspicious(names, chances, truth, SHOWN)),
        ("Nearest to the border between two classes", explain.border(names, chances, truth, SHOWN)),
    ):
        if not found:
            say(f"None. ({title})")
            continue
        names_of = ("sample", "label", "probability", "rather", "probability")
        table = Table(*(Column(name, overflow="fold") for name in names_of), title=title, title_justify="left")
        for each in found:
            table.add_row(escape(name_of(rows, here[each.row])), escape(str(each.label)),
                          f"{100 * each.probability:.1f} %", escape(str(each.rival)),
                          f"{100 * each.rival_probability:.1f} %")
        console.print(table)
