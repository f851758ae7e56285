"""For people's own folders of images: learn, predict, embed, inspect."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import filelock
import numpy as np
import torch
import torch.nn.functional as F
import typer
from rich.markup import escape
from rich.table import Table

from .. import files, folders, performance
from ..errors import BadConfig, BadInput, RunLocked
from ..quantities import byte_size
from ..signals import Stopping
from ..training import Stopped
from .model_progress import learning, look, read, say
from .options import DeviceOption, ThreadsOption, complaints, console

if TYPE_CHECKING:
    from ..estimator import IncrementalClassifier

ModelArgument = Annotated[Path, typer.Argument(help="the model's folder", show_default=False)]
ImagesArgument = Annotated[list[Path], typer.Argument(help="images, or folders of them", show_default=False)]


def learn(
    photos: Annotated[list[Path], typer.Argument(help="folders whose subfolders are the classes", show_default=False)],
    model: Annotated[Path, typer.Option("--model", help="the model's folder: made, or added to", show_default=False)],
    again: Annotated[bool, typer.Option("--again", help="learn more of classes that the model knows already")] = False,
    backbone: Annotated[str | None, typer.Option("--backbone", help="the network  (default: resnet20)")] = None,
    head: Annotated[str | None, typer.Option("--head", help="the classifier  (default: simplex)")] = None,
    slots: Annotated[int | None, typer.Option("--slots", help="classes there is room for  (default: 1000)")] = None,
    memory: Annotated[int | None, typer.Option("--memory", help="images to remember  (default: 2000)")] = None,
    size: Annotated[int | None, typer.Option("--size", help="pixels a side  (default: theirs, or 64)")] = None,
    held_back: Annotated[float | None, typer.Option("--held-back", help="share of the memory that is not trained on, "
                                                    "to measure with  (default: 0.1)")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="passes over the images  (default: enough)")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="all randomness comes from this  (default: 0)")] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
) -> None:
    """Learn the classes of a folder of images; again with more folders, and they are added.

    [dim]steadfast learn photos/ --model m/[/]          [dim]photos/cat/*.jpg, photos/dog/*.jpg, ...[/]
    [dim]steadfast learn more-photos/ --model m/[/]     [dim]new classes are added, known ones are left alone[/]
    """
    asked = {"backbone": backbone, "head": head, "slots": slots, "memory": memory, "image_size": size,
             "held_back": held_back, "epochs": epochs, "random_state": seed}
    asked = {name: value for name, value in asked.items() if value is not None}
    performance.use_threads(threads)
    found = folders.classes(photos, besides=model)
    with _locked(model), Stopping() as stopping:
        clf = _open_or_new(model, asked, device)
        known = set() if again else {*found} & {*map(str, getattr(clf, "classes_", []))}
        if known:
            names = ", ".join(sorted(known))
            say(f"Known already, left alone (--again learns more of them): {names}")
        wanted = [(name, path) for name, paths in found.items() if name not in known for path in paths]
        if not wanted:
            raise typer.Exit
        try:
            images = read([path for _, path in wanted], _shape(clf), size, stopping.asked)
            label_of = {path: name for name, path in wanted}
            labels = [label_of[path] for path in images.paths]
            if not labels:
                raise BadInput("None of the images can be read; nothing was learned.")
            if lost := sorted({name for name, _ in wanted} - {*labels}):
                say(f"No image of these classes could be read: {', '.join(lost)}", complaints)
            with learning(clf, len(labels), stopping) as watcher:
                clf.partial_fit(images.data, np.array(labels), watcher=watcher)
        except Stopped:
            left = f"the model in {model} is as it was" if hasattr(clf, "model_") else "nothing was learned yet"
            say(f"Stopped; {left}.", complaints)
            raise typer.Exit(stopping.exit_code) from None
        clf.save(model)
    learned = f"Learned {len(labels)} images of {len({*labels})} classes; {len(clf.classes_)} classes in {model}."
    say(learned)
    if (accuracy := clf.model_.history[-1]["accuracy"]) is not None:
        console.print(f"On {len(clf.model_.held)} held-back images of all classes: {accuracy:.1f} % right.")
    say(clf.stability_.answer)


def predict(
    model: ModelArgument,
    images: ImagesArgument,
    json: Annotated[bool, typer.Option("--json", help="one line of JSON an image")] = False,
    reject: Annotated[float | None, typer.Option("--reject", help='"none of these", wrongly for this share')] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
) -> None:
    """Say what is in the images.

    [dim]steadfast predict m/ photo.jpg another.jpg[/]
    [dim]steadfast predict m/ inbox/ --json --reject 0.05[/]
    """
    clf, found = _load_and_read(model, images, device, threads)
    inner = clf.model_
    limit = None if reject is None else inner.threshold(reject)
    embedded = look(clf, found)
    chances, novelty = inner.chances(embedded).cpu().numpy(), inner.novelty(embedded).cpu().tolist()
    labels = [None if limit is not None and new > limit else label
              for label, new in zip(clf.classes_[chances.argmax(1)].tolist(), novelty)]
    if json:
        for path, label, row, new in zip(found.paths, labels, chances, novelty):
            best = sorted(zip(row.tolist(), clf.classes_.tolist()), reverse=True)[:3]
            line = {
                "path": str(path), "label": label, "probability": best[0][0], "novelty": new,
                "best": [[name, chance] for chance, name in best],
            }
            typer.echo(files.dumps(line))
        return
    table = Table("image", "class", "probability", *([] if limit is None else [f"novelty (up to {limit:.2g})"]))
    for path, label, row, new in zip(found.paths, labels, chances, novelty):
        name = "[dim]none of these[/]" if label is None else escape(str(label))
        shown = [] if limit is None else [f"{new:.2g}"]
        table.add_row(escape(str(path)), name, f"{100 * row.max():.1f} %", *shown)
    console.print(table)


def embed(
    model: ModelArgument,
    images: ImagesArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="where the vectors go, as .npy")] = Path("vectors.npy"),
    unit: Annotated[bool, typer.Option("--unit", help="of length one")] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
) -> None:
    """Write the images' vectors to a .npy file, and their paths, in the same order, to .ids.json beside it."""
    import io

    clf, found = _load_and_read(model, images, device, threads)
    embedded = look(clf, found)
    vectors = (F.normalize(embedded, dim=1) if unit else embedded).cpu().numpy()
    content = io.BytesIO()
    np.save(content, vectors, allow_pickle=False)
    ids = output.with_suffix(".ids.json")
    files.write_whole(output, content.getvalue())
    files.write_json(ids, [str(path) for path in found.paths])
    written = f"{len(vectors)} vectors of {vectors.shape[1]} numbers in {output}, their paths in {ids}."
    say(written)


def inspect(
    model: ModelArgument,
    picture: Annotated[Path | None, typer.Option("--picture", help="where it goes  (default: model.png in it)")] = None,
) -> None:
    """Show a model: its classes, slots, memory, how stable each class has been; and draw that."""
    from ..estimator import IncrementalClassifier
    from ..estimator.model_plots import draw

    clf = IncrementalClassifier.load(model, device="cpu")
    inner, report = clf.model_, {c.label: c for c in clf.stability_.classes}
    table = Table("class", "slot", "remembered", "held back", "moved since learned", "recall", "if rebuilt")
    slots = inner.labels.capacity
    counts = [torch.bincount(m.slots[: len(m)], minlength=slots).tolist() for m in (inner.memory, inner.held)]
    for label in clf.classes_.tolist():
        slot, row = inner.labels.slots[label], report.get(label)
        cells = [row.moved_since_learned, row.recall, row.recall_refreshed] if row else [None] * 3
        units = (("°", 1), (" %", 100), (" %", 100))
        shown = ["-" if v is None else f"{scale * v:.1f}{unit}" for v, (unit, scale) in zip(cells, units)]
        table.add_row(escape(str(label)), str(slot), str(counts[0][slot]), str(counts[1][slot]), *shown)
    console.print(table)
    kept = byte_size(inner.memory.bytes + inner.held.bytes)
    parameters = sum(p.numel() for p in inner.learner.parameters())
    shape = " x ".join(map(str, inner.learner.shape))
    say(
        f"{len(clf.classes_)} classes, {inner.labels.free} of {inner.labels.capacity} slots left; "
        f"{len(inner.memory)} of {inner.memory.capacity} samples remembered, {len(inner.held)} held back "
        f"({kept}); {inner.config.backbone} for {shape} inputs, {parameters:,} parameters; "
        f"learned in {inner.taught} batches."
    )
    say(clf.stability_.answer)
    say(f"Drawn in {draw(inner.history, clf.stability_, picture or model / 'model.png')}.")


def _open_or_new(model: Path, asked: dict[str, Any], device: str) -> IncrementalClassifier:
    from ..estimator import IncrementalClassifier
    from ..estimator.model_files import NAME

    if not (model / NAME).exists():
        return IncrementalClassifier(**asked, device=device)
    if asked:
        names = ", ".join(asked)
        raise BadConfig(f"{names} cannot change: there is a model in {model} already. Leave them out of the command.")
    return IncrementalClassifier.load(model, device=device)


def _load_and_read(
    model: Path, images: list[Path], device: str, threads: int | None
) -> tuple[IncrementalClassifier, folders.Images]:
    from ..estimator import IncrementalClassifier

    performance.use_threads(threads)
    clf = IncrementalClassifier.load(model, device=device)
    found = read(folders.files(images), _shape(clf))
    if not found.paths:
        raise BadInput("None of these could be read as an image.")
    return clf, found


def _shape(clf: IncrementalClassifier) -> tuple[int, ...] | None:
    shape = clf.model_.learner.shape if hasattr(clf, "model_") else None
    if shape is not None and len(shape) != 3:
        raise BadInput(f"This model learned from vectors of {shape[0]} numbers, not from images.")
    return shape


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time adds to a model; a folder that was made for it and has come to nothing goes again."""
    from ..estimator.model_files import NAME

    made = [path for path in (folder, *folder.parents) if not path.exists()]
    os.makedirs(folder, exist_ok=True)
    lock = folder / ".lock"
    try:
        with filelock.FileLock(lock, timeout=0):
            for path in folder.glob(f".{NAME}.*.part"):  # half a model, of a process that was killed
                path.unlink(missing_ok=True)
            yield
    except filelock.Timeout:
        raise RunLocked(f"Another process is adding to {folder}; wait for it, or stop it.") from None
    finally:
        if made and {path.name for path in folder.iterdir()} <= {lock.name}:
            with contextlib.suppress(OSError):
                lock.unlink(missing_ok=True)
                for path in made:
                    path.rmdir()
