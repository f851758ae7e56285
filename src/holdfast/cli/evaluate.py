"""`holdfast evaluate`: how good a model is on labelled samples it has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from .. import hardware
from ..errors import BadInput
from ..hardware import Machine
from .model_progress import say
from .options import console, with_machine
from .samples import EmbedderPlace, answers, looked, read_rows

CONFUSED = 10  # pairs of classes that are shown
BINS = 10


@with_machine("device", "threads")
def evaluate(
    machine: Machine,
    model: Annotated[Path, typer.Argument(help="the model's folder", show_default=False)],
    sources: Annotated[list[Path], typer.Argument(help="labelled samples, as for learn", show_default=False)],
    text: Annotated[str | None, typer.Option("--text", help="column of texts in a table")] = None,
    label: Annotated[str | None, typer.Option("--label", help="column of labels in a table")] = None,
    reject: Annotated[float, typer.Option("--reject", help="share of known samples to refuse")] = 0.05,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="path of the picture  (default: in the model's folder)")
    ] = None,
    embedder: EmbedderPlace = None,
    offline: Annotated[bool, typer.Option("--offline", help="never download an embedder")] = False,
) -> None:
    """Measure a model on labelled samples: accuracy, per class, confusions, calibration, refusals; with a picture.

    [dim]holdfast evaluate m/ test.csv --text question --label intent[/]
    [dim]holdfast evaluate m/ test-photos/[/]
    """
    from ..estimator import IncrementalClassifier

    hardware.use_threads(machine.threads)
    clf = IncrementalClassifier.load(model, device=machine.device, embedder=embedder, offline=offline)
    rows, embedded = looked(clf, read_rows(sources, text, label, clf.embedder))
    if None in rows.labels:
        raise BadInput("Some samples have no label: name the column of labels with --label, or use folders of classes.")
    known = {*map(str, clf.classes_.tolist())}
    found = answers(clf, rows, embedded, None)
    truth = [str(each) for each in rows.labels]
    here = [i for i, name in enumerate(truth) if name in known]
    if not here:
        raise BadInput("The model knows none of these classes.")
    guess = [str(found[i]["label"]) for i in here]
    right = np.array([g == truth[i] for g, i in zip(guess, here)])
    chances = np.array([found[i]["probability"] for i in here])
    _show_classes([truth[i] for i in here], guess)
    error = _error(chances, right)
    say(f"{100 * right.mean():.1f} % of {len(here)} samples right; expected calibration error {error:.3f}.")
    if strange := len(truth) - len(here):
        say(f"{strange} samples are of classes that the model does not know; they did not count above.")
    _show_refusals(clf, found, here, reject)
    _draw(chances, right, [truth[i] for i in here], guess, picture or model / "evaluation.png")


def _show_classes(truth: list[str], guess: list[str]) -> None:
    """Print the accuracy of the ten worst classes, and the pairs that are confused most."""
    from ..estimator import explain

    rates = {name: np.mean([g == name for g, t in zip(guess, truth) if t == name]) for name in {*truth}}
    table = Table("class", "right", title="The classes with the fewest right", title_justify="left")
    for name in sorted(rates, key=lambda each: (rates[each], each))[:CONFUSED]:
        table.add_row(escape(name), f"{100 * rates[name]:.1f} %")
    console.print(table)
    if len(rates) > CONFUSED:
        say(f"and {len(rates) - CONFUSED} more classes.")
    names = sorted({*truth, *guess})
    at = {name: index for index, name in enumerate(names)}
    pairs = explain.confusions(names, np.array([at[t] for t in truth]), np.array([at[g] for g in guess]), ordered=True)
    if pairs:
        table = Table("is", "taken for", "times", title="Confused most", title_justify="left")
        for each in pairs[:CONFUSED]:
            table.add_row(escape(str(each.first)), escape(str(each.second)), str(each.times))
        console.print(table)


def _show_refusals(clf: Any, found: list[dict[str, Any]], here: list[int], reject: float) -> None:
    try:
        limit = clf.model_.threshold(reject)
    except BadInput as error:
        return say(str(error))
    refused = [each["novelty"] > limit for each in found]
    inside = {*here}
    text = f"With --reject {reject:g}, {100 * np.mean([refused[i] for i in here]):.1f} % of known samples are refused"
    strange = [refused[i] for i in range(len(found)) if i not in inside]
    say(text + (f", and {100 * np.mean(strange):.1f} % of unknown ones." if strange else "."))


def _error(chances: np.ndarray, right: np.ndarray) -> float:
    """Return the expected calibration error over equal bins."""
    at = np.minimum((chances * BINS).astype(int), BINS - 1)
    return float(sum(abs(chances[at == b].mean() - right[at == b].mean()) * np.mean(at == b) for b in {*at.tolist()}))


def _draw(chances: np.ndarray, right: np.ndarray, truth: list[str], guess: list[str], path: Path) -> None:
    """Draw how sure the model is against how often it is right, and the accuracy of each class."""
    import matplotlib
    from matplotlib.figure import Figure

    from ..runs.plots import PALETTE, STYLE

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.4), layout="constrained")
        left, other = figure.subplots(1, 2)
        at = np.minimum((chances * BINS).astype(int), BINS - 1)
        used = sorted({*at.tolist()})
        left.plot([0, 1], [0, 1], color="grey", lw=1, ls="--")
        points = [(chances[at == b].mean(), right[at == b].mean()) for b in used]
        left.plot(*zip(*points), "o-", color=PALETTE[0])
        left.set(xlabel="probability given", ylabel="share right", title="Calibration", xlim=(0, 1), ylim=(0, 1.02))
        rates = sorted(np.mean([g == name for g, t in zip(guess, truth) if t == name]) for name in {*truth})
        other.bar(range(len(rates)), [100 * rate for rate in rates], color=PALETTE[2], width=1.0)
        other.set(xlabel="classes, from the worst to the best", ylabel="right (%)", title="Accuracy by class")
        other.set_xticks([])
        figure.savefig(path)
    say(f"Drawn in {path}.")
