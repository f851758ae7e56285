"""Teach a model the classes of texts, vectors or images, with progress bars and Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..data.tables import Rows
from ..errors import BadInput, Stopped
from ..estimator import settings, versions
from ..estimator.model import Model
from ..estimator.progress import Progress
from ..quantities import counted, some
from ..signals import Stopping
from . import samples
from .model_progress import learning, read, say
from .options import complaints

if TYPE_CHECKING:
    from ..estimator import IncrementalClassifier


def teach(
    clf: IncrementalClassifier, rows: Rows, again: bool, model: Path, stopping: Stopping,
    progress: Progress | None = None,
) -> int:
    """Teach the rows' classes that are new, or all of them with `again`; return the number of samples learned."""
    if unlabelled := [place for place, label in zip(rows.places, rows.labels) if label is None]:
        raise BadInput(f"There is no label for {some(unlabelled)}: name their column with --label, "
                       f"store an array `labels`, or put each file into the folder of its class.")
    samples.check_kind(clf, rows)
    known = set() if again else {*map(str, getattr(clf, "classes_", []))}
    if left := sorted({str(label) for label in rows.labels} & known):
        say(f"Skipped, because the model knows them already (--again learns more of them): {some(left, 10)}")
    rows = rows.only([row for row, label in enumerate(rows.labels) if label not in known])
    if not rows.samples:
        raise typer.Exit
    with _stoppable(clf, model, stopping, progress):
        data, rows = _data(clf, rows, stopping)
        versions.check_room(model, _bytes_kept(clf, data))
        with learning(clf, len(rows.samples), stopping) as watcher, samples.as_bad_input():
            clf.partial_fit(data, [str(label) for label in rows.labels], watcher=watcher, progress=progress)
    if progress is not None and progress.epoch is not None:
        say(f"Went on from epoch {progress.epoch} of the batch that was stopped.")
    return len(rows.samples)


def tell_room(clf: IncrementalClassifier) -> None:
    """Say so if the memory of replay keeps few samples of each class."""
    if isinstance(clf.model_, Model) and (room := clf.model_.room_per_class()) < settings.PER_CLASS:
        say(f"The memory has room for {counted(room, 'samples')} of each class; a model that is begun with a larger "
            f"--memory forgets less.")


def _bytes_kept(clf: IncrementalClassifier, data: Any) -> int:
    """Return how many bytes of these samples replay may keep in the model's file; 0 if the model is solved."""
    if not hasattr(data, "nbytes"):  # an embedder's samples: only their vectors are kept
        return 0
    method = clf.method_ if hasattr(clf, "model_") else settings.read(clf, image=data.ndim == 4).method
    if method == "solved":
        return 0
    if clf.memory is None:
        return min(data.nbytes, settings.MOST_BYTES)
    return data[: clf.memory].nbytes


def _data(clf: IncrementalClassifier, rows: Rows, stopping: Stopping) -> tuple[Any, Rows]:
    """Return what `partial_fit` takes, and the rows that could be read."""
    if rows.kind == "vectors" and clf.embedder is None:
        return samples.stacked(rows.samples), rows
    if rows.kind != "images":
        return rows.samples, rows
    every = {*rows.labels}
    if clf.embedder is None:
        shape = clf.model_.shape if hasattr(clf, "model_") else None
        found = read([Path(path) for path in rows.samples], shape, clf.image_size, stopping.asked)
        rows = rows.only(samples.positions(rows.samples, found.paths))
        data: Any = found.data
    else:
        rows = samples.readable(rows, stopping.asked)
        data = rows.samples
    if not rows.samples:
        raise BadInput("None of the images can be read; nothing was learned.")
    if lost := sorted(map(str, every - {*rows.labels})):
        say(f"No image of these classes could be read: {', '.join(lost)}", complaints)
    return data, rows


@contextmanager
def _stoppable(
    clf: IncrementalClassifier, model: Path, stopping: Stopping, progress: Progress | None
) -> Iterator[None]:
    """Turn a stop into a sentence that says what was kept, and an exit code."""
    try:
        yield
    except Stopped:
        left = f"the model in {model} is unchanged" if hasattr(clf, "model_") else "nothing was learned yet"
        if progress is not None and progress.path.exists():
            left += "; the progress of this batch is kept, and the same command goes on from it"
        say(f"Stopped; {left}.", complaints)
        raise typer.Exit(stopping.exit_code) from None
