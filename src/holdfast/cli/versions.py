"""`holdfast history` and `holdfast rollback`, and the gate of `learn`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from .model_progress import say
from .options import complaints, console

if TYPE_CHECKING:
    from ..estimator import IncrementalClassifier
    from ..estimator.gate import Gate

REJECTED = 3  # exit code of a model that the gate refused
ModelArgument = Annotated[Path, typer.Argument(help="the model's folder", show_default=False)]
BetterThan = Annotated[
    float | None, typer.Option("--keep-if-better-than", help="share of held-back samples that the new model must get "
                               "right to replace the old one, such as 0.9; else exit code 3")
]
NoWorseBy = Annotated[
    float | None, typer.Option("--no-worse-by", help="largest loss on held-back samples of the classes known before, "
                               "such as 0.02; else exit code 3")
]


def keep_if_good(clf: IncrementalClassifier, before: Any, model: Path, gate: Gate) -> None:
    """Write the new model; if the gate rejects it, keep it aside, say so and exit with REJECTED."""
    from ..estimator.gate import admit

    version, verdict = admit(gate, before, clf, model)
    if gate.asked:
        say(verdict.reason)
    if not verdict.passed:
        say(f"Not kept: the model in {model} is as it was. The new one is version {version.number}, set aside; "
            f"`holdfast rollback {model} {version.number}` uses it anyway.", complaints)
        raise typer.Exit(REJECTED)


def history(model: ModelArgument) -> None:
    """List the versions of a model that are kept: the last few, and those that a gate rejected."""
    from ..estimator import versions

    table = Table("version", "made", "classes", "batches", "held-back right", "")
    for each in versions.history(model):
        right = "-" if each.accuracy is None else f"{each.accuracy:.1%}"
        state = "in use" if each.current else "rejected" if each.rejected else ""
        made = datetime.fromtimestamp(each.made).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(str(each.number), made, str(each.classes), str(each.batches), right, state)
    console.print(table)


def rollback(
    model: ModelArgument,
    number: Annotated[int | None, typer.Argument(help="the version  (default: the one before)")] = None,
) -> None:
    """Use an older version of a model again; the others stay, until they are beyond the last few.

    [dim]holdfast rollback m/[/]      [dim]the version before the one in use[/]
    [dim]holdfast rollback m/ 3[/]    [dim]version 3, as `holdfast history m/` lists it[/]
    """
    from ..estimator import versions

    versions.history(model)  # before a lock makes a folder of a wrong name
    with versions.locked(model):
        chosen = versions.rollback(model, number)
    batches = f"{chosen.batches} batch{'es' * (chosen.batches != 1)}"
    say(f"Version {chosen.number} is in use: {chosen.classes} classes, {batches}.")
