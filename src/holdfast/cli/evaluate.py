"""`holdfast evaluate`: how good a model is on labelled samples it has not seen."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Column, Table

from .. import hardware
from ..errors import BadInput
from ..hardware import Machine
from .model_progress import say
from .options import console, with_machine
from .samples import EmbedderPlace, answers, looked, read_rows

CONFUSED = 10  # pairs of classes that are shown
NAMED = 20  # classes with their names in the picture
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
    given = read_rows(sources, text, label, clf.embedder)
    if None in given.labels:
        raise BadInput("Some samples have no label: name the column of labels with --label, or use folders of classes.")
    rows, embedded = looked(clf, given)
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


def _rates(truth: list[str], guess: list[str]) -> dict[str, float]:
    """Return the percentage right of each class, the worst first."""
    counts, right = Counter(truth), Counter(t for t, g in zip(truth, guess) if t == g)
    rates = {name: 100 * right[name] / count for name, count in counts.items()}
    return dict(sorted(rates.items(), key=lambda each: (each[1], each[0])))


def _show_classes(truth: list[str], guess: list[str]) -> None:
    """Print the accuracy of each class, the worst first, and the pairs that are confused most."""
    from ..estimator import explain

    counts = Counter(truth)
    table = Table(Column("class", overflow="fold"), "samples", "right")
    for name, rate in _rates(truth, guess).items():
        table.add_row(escape(name), str(counts[name]), f"{rate:.1f} %")
    console.print(table)
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
    """Draw how sure the model is against how often it is right, the accuracy of the worst classes, and confusions."""
    import matplotlib
    from matplotlib.figure import Figure

    from ..estimator.model_plots import short
    from ..runs.plots import PALETTE, STYLE

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(15, 4.8), layout="constrained")
        left, middle, right_hand = figure.subplots(1, 3)
        at = np.minimum((chances * BINS).astype(int), BINS - 1)
        used = sorted({*at.tolist()})
        left.plot([0, 1], [0, 1], color="grey", lw=1, ls="--")
        points = [(chances[at == b].mean(), right[at == b].mean()) for b in used]
        left.plot(*zip(*points), "o-", color=PALETTE[0])
        left.set(xlabel="probability given", ylabel="share right", title="Calibration", xlim=(0, 1), ylim=(0, 1.02))
        rates = _rates(truth, guess)
        worst = list(rates)[:NAMED]
        middle.barh(range(len(worst)), [rates[name] for name in worst], color=PALETTE[2])
        middle.set_yticks(range(len(worst)), [short(name) for name in worst], fontsize=8)
        middle.invert_yaxis()
        title = "Accuracy by class" if len(worst) == len(rates) else f"The {NAMED} worst of {len(rates)} classes"
        middle.set(xlabel="right (%)", xlim=(0, 100), title=title)
        _draw_confusions(right_hand, truth, guess)
        figure.savefig(path)
    say(f"Drawn in {path}.")


def _draw_confusions(axes: Any, truth: list[str], guess: list[str]) -> None:
    """Draw the share of each class's samples that were taken for each other class, as a heat map."""
    from ..estimator.model_plots import short

    names = sorted({*truth, *guess})
    at = {name: index for index, name in enumerate(names)}
    counts = np.zeros((len(names), len(names)))
    np.add.at(counts, ([at[t] for t in truth], [at[g] for g in guess]), 1)
    share = 100 * counts / counts.sum(1, keepdims=True).clip(min=1)
    np.fill_diagonal(share, np.nan)  # right answers would outshine the rest
    most = max(np.nanmax(share), 1.0) if len(names) > 1 else 1.0
    axes.figure.colorbar(axes.imshow(share, cmap="Blues", vmin=0, vmax=most), ax=axes, shrink=0.8)
    axes.set_facecolor("#dddddd")
    axes.set(xlabel="answer", ylabel="class", title="Confusions (% of a class)")
    axes.grid(False)
    if len(names) <= NAMED:
        axes.set_xticks(range(len(names)), [short(name) for name in names], rotation=90, fontsize=8)
        axes.set_yticks(range(len(names)), [short(name) for name in names], fontsize=8)
    else:  # too many names to read; the table has them
        axes.set(xticks=[], yticks=[])
