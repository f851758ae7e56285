"""Commands for the user's own data: learn, predict, embed, inspect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from .. import backbones, files, hardware
from ..errors import BadConfig
from ..hardware import Machine
from ..quantities import counted
from ..signals import Stopping
from . import samples
from .model_progress import say
from .options import complaints, with_machine
from .versions import BetterThan, NoWorseBy, keep_if_good

if TYPE_CHECKING:
    from ..estimator import IncrementalClassifier

ModelArgument = Annotated[Path, typer.Argument(help="the model's folder", show_default=False)]


@with_machine("device", "threads")
def learn(
    machine: Machine,
    sources: Annotated[
        list[Path],
        typer.Argument(help="folders whose subfolders are the classes; or tables, arrays, - for standard input",
                       show_default=False),
    ],
    model: Annotated[Path, typer.Option("--model", help="the model's folder; created if missing", show_default=False)],
    text: Annotated[str | None, typer.Option("--text", help="column of texts in a table")] = None,
    label: Annotated[str | None, typer.Option("--label", help="column of labels, or a file of them")] = None,
    embedder: Annotated[
        str | None, typer.Option("--embedder", help="sentence-transformers:NAME_OR_FOLDER, timm:NAME or onnx:FILE")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="never download an embedder")] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="do not keep the embedder's vectors on disk")] = False,
    again: Annotated[bool, typer.Option("--again", help="also learn more samples of known classes")] = False,
    method: Annotated[str | None, typer.Option("--method", help="solved, or replay: train a network; with --embedder "
                                               "timm:NAME that one, from its weights  (default: by the rest)")] = None,
    backbone: Annotated[str | None, typer.Option("--backbone", help="train this network on images by replay  "
                                                   "(default: none; they get patch features)")] = None,
    head: Annotated[str | None, typer.Option("--head", help="the classifier  (default: simplex)")] = None,
    slots: Annotated[int | None, typer.Option("--slots", help="the largest number of classes  (default: 1000)")] = None,
    memory: Annotated[int | None, typer.Option("--memory", help="samples kept  (default: 2000 or more)")] = None,
    size: Annotated[int | None, typer.Option("--size", help="pixels per side  (default: their own, or 64)")] = None,
    held_back: Annotated[float | None, typer.Option("--held-back", help="share of the memory that is never trained "
                                                    "on, for measurements  (default: 0.1)")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="passes over the images  (default: automatic)")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="random seed  (default: 0)")] = None,
    keep_progress: Annotated[bool, typer.Option("--keep-progress", help="at Ctrl-C or a kill, keep the training of "
                                                "this batch, so that the same command goes on from it")] = False,
    better_than: BetterThan = None,
    no_worse_by: NoWorseBy = None,
) -> None:
    """Learn classes from images, texts or vectors; later calls add new classes.

    [dim]holdfast learn photos/ --model m/[/]         photos/cat/*.jpg, photos/dog/*.jpg
    [dim]holdfast learn more-photos/ --model m/[/]    later: adds new classes
    [dim]holdfast learn intents.csv --text question --label intent --model m/[/]
    [dim]holdfast learn vectors.npz --model m/[/]     arrays `vectors` and `labels`
    """
    from ..estimator import progress, versions
    from ..estimator.gate import Gate
    from ..estimator.model_files import NAME
    from .teaching import teach, tell_room

    gate = Gate(better_than, no_worse_by)
    asked = {"backbone": backbone, "head": head, "slots": slots, "memory": memory, "image_size": size,
             "held_back": held_back, "epochs": epochs, "random_state": seed, "method": method}
    asked = {name: value for name, value in asked.items() if value is not None}
    new = not (model / NAME).exists()
    if method == "replay" and backbone is None and (trained := samples.trained_through(embedder, offline, new)):
        asked, embedder = {**trained, **asked}, None
    check_parameters(asked)
    hardware.use_threads(machine.threads)
    rows = samples.read_rows(sources, text, label, embedder, model)
    if embedder is None and new:
        embedder = samples.usual_embedder(rows, asked, offline)
    with versions.locked(model), Stopping() as stopping:
        clf = _open_or_new(model, asked, embedder, machine.device, offline)
        clf.cache = not no_cache
        before = getattr(clf, "model_", None)
        kept = progress.Progress(model / progress.NAME) if keep_progress else None
        count = teach(clf, rows, again, model, stopping, kept)
        keep_if_good(clf, before, model, gate)
        (model / progress.NAME).unlink(missing_ok=True)  # also that of another batch: the model has changed
    last = clf.model_.history[-1]
    took = f"{last['seconds']:.1f} s by the method {clf.method_}"
    say(f"Learned {counted(count, rows.kind)} in {took}; {len(clf.classes_)} classes in {model}.")
    if last["accuracy"] is not None:
        held = counted(last["held_back"], f"held-back {rows.kind}")
        say(f"On {held} of all classes: {last['accuracy']:.1f} % right.")
    say(clf.stability_.answer)
    tell_room(clf)


def check_parameters(asked: dict[str, Any]) -> None:
    """Refuse wrong names and numbers before anything is read."""
    from ..estimator import IncrementalClassifier, settings

    settings.read(IncrementalClassifier(**asked), image=True)


@with_machine("device", "threads")
def predict(
    machine: Machine,
    model: ModelArgument,
    sources: Annotated[list[Path] | None, typer.Argument(help="images, tables, arrays, folders, or -")] = None,
    text: Annotated[str | None, typer.Option("--text", help="column of texts in a table, or the table itself")] = None,
    label: samples.LabelToLeaveOut = None,
    json: Annotated[bool, typer.Option("--json", help="print one line of JSON per sample")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="print CSV")] = False,
    reject: Annotated[
        float | None, typer.Option("--reject", help="reject unknown inputs, at the cost of this share of known ones")
    ] = None,
    embedder: samples.EmbedderPlace = None,
    offline: Annotated[bool, typer.Option("--offline", help="never download an embedder")] = False,
) -> None:
    """Say what the samples are: label, probability and novelty of each.

    [dim]holdfast predict m/ photo.jpg another.jpg[/]
    [dim]holdfast predict m/ inbox/ --json --reject 0.05[/]
    [dim]holdfast predict m/ questions.csv --text question --csv[/]
    """
    from ..estimator import IncrementalClassifier

    if json and as_csv:
        raise BadConfig("--json and --csv exclude each other; leave one of them out.")
    form = "json" if json else "csv" if as_csv else "table"
    hardware.use_threads(machine.threads)
    clf = IncrementalClassifier.load(model, device=machine.device, embedder=embedder, offline=offline)
    limit = None if reject is None else clf.model_.threshold(reject)
    rows, embedded = samples.looked(clf, samples.read_rows(sources or [], text, label, clf.embedder))
    samples.show_answers(samples.answers(clf, rows, embedded, reject), form, limit)


@with_machine("device", "threads")
def embed(
    machine: Machine,
    model: ModelArgument,
    sources: Annotated[list[Path], typer.Argument(help="images, tables, arrays, folders, or -", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="the .npy file for the vectors")] = Path("vectors.npy"),
    text: Annotated[str | None, typer.Option("--text", help="column of texts in a table")] = None,
    label: samples.LabelToLeaveOut = None,
    unit: Annotated[bool, typer.Option("--unit", help="normalise the vectors to length one")] = False,
    embedder: samples.EmbedderPlace = None,
    offline: Annotated[bool, typer.Option("--offline", help="never download an embedder")] = False,
) -> None:
    """Write the samples' vectors to a .npy file, and their names in the same order to .ids.json beside it.

    [dim]holdfast embed m/ inbox/ -o vectors.npy --unit[/]
    """
    import io

    from ..estimator import IncrementalClassifier

    hardware.use_threads(machine.threads)
    clf = IncrementalClassifier.load(model, device=machine.device, embedder=embedder, offline=offline)
    rows, embedded = samples.looked(clf, samples.read_rows(sources, text, label, clf.embedder))
    vectors = clf.as_vectors(embedded, unit=unit)
    content = io.BytesIO()
    np.save(content, vectors, allow_pickle=False)
    ids = output.with_suffix(".ids.json")
    files.write_whole(output, content.getvalue())
    files.write_json(ids, [samples.name_of(rows, row) for row in range(len(vectors))])
    say(f"{len(vectors)} vectors of {vectors.shape[1]} numbers in {output}, the samples' names in {ids}.")


def _open_or_new(
    model: Path, asked: dict[str, Any], embedder: str | None, device: str, offline: bool
) -> IncrementalClassifier:
    """Return the model of a folder, or a new one; raise BadConfig if the command asks for another than was begun."""
    from ..estimator import IncrementalClassifier
    from ..estimator.model_files import NAME

    if not (model / NAME).exists():
        return IncrementalClassifier(**asked, embedder=embedder, device=device, offline=offline)
    clf = IncrementalClassifier.load(model, device=device, embedder=embedder, offline=offline)
    if clf.embedder is not None:
        clf.check_embedder()
    if "epochs" in asked:  # may change between batches
        if clf.method_ == "solved":
            say("--epochs has no effect: this model is solved, not trained.", complaints)
            del asked["epochs"]
        else:
            clf.set_params(epochs=asked.pop("epochs"))
    if "backbone" in asked:
        asked["backbone"] = backbones.unweighted(asked["backbone"])
    if changed := [name for name, value in asked.items() if getattr(clf, name) != value]:
        raise BadConfig(
            f"{', '.join(changed)} cannot change: the model in {model} was started with "
            f"{', '.join(f'{name}={getattr(clf, name)!r}' for name in changed)}. Leave them out of the command."
        )
    return clf
