"""Read and predict texts, vectors and images: tables, arrays, folders, standard input."""

from __future__ import annotations

import csv
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Column, Table

from .. import files
from ..data import folders, tables
from ..data.tables import Rows
from ..errors import BadConfig, BadInput
from ..quantities import some
from .model_progress import bar_of, embedding, look, read, say, tell_left_out
from .options import complaints, console

if TYPE_CHECKING:
    from ..estimator import IncrementalClassifier

TEXT = "sentence-transformers:sentence-transformers/all-MiniLM-L6-v2"  # the default for texts
PHOTO = "timm:mobilenetv3_small_100"  # the default for photographs if timm is installed
BEST = 3  # labels with their probabilities in an answer
EmbedderPlace = Annotated[
    str | None, typer.Option("--embedder", help="the model's embedder, if its files are somewhere else by now")
]
LabelToLeaveOut = Annotated[
    str | None, typer.Option("--label", help="column of labels in a table of vectors; it is left out")
]
SMALL = 64  # pixels per side up to which images are no photographs


def read_rows(
    sources: list[Path], text: str | None, label: str | None, embedder: Any, model: Path | None = None
) -> Rows:
    """Read the samples: tables and arrays, folders of .txt, or images.

    With `model`, the folder of the model that learns, images must be in folders of classes, and `model` is none."""
    if text is not None and Path(text).is_file() and not sources:  # `--text questions.csv`: the file itself
        sources, text = [Path(text)], _only_column(Path(text), label)
    if sources and all(tables.is_table(source) for source in sources):
        if text is None and _has_text(embedder):
            text = next((_only_column(each, label) for each in sources if each.suffix.lower() in tables.TABLES), None)
            if label is None and text is None and [str(each) for each in sources] == ["-"]:
                return tables.lines()
        return tables.read(sources, text, label)
    if model is not None:
        return _images(folders.classes(sources, besides=model))
    for source in sources:
        if not source.exists() and str(source) != "-":
            raise BadInput(f"There is no file or folder {source}.")
    if not sources:
        raise BadInput("Give samples: images or folders of them, tables, arrays, or - for standard input.")
    found = folders.classes(sources) if any(child.is_dir() for source in sources for child in _children(source)) else {}
    if found:
        return _images(found)
    images = folders.files(sources)
    return Rows(list(images), [None] * len(images), [str(path) for path in images])


def _images(found: dict[str, list[Path]]) -> Rows:
    pairs = [(path, name) for name, paths in found.items() for path in paths]
    return Rows([path for path, _ in pairs], [name for _, name in pairs], [str(path) for path, _ in pairs])


def _children(source: Path) -> list[Path]:
    return list(source.iterdir()) if source.is_dir() else []


def _has_text(embedder: Any) -> bool:
    return isinstance(embedder, str) and embedder.startswith("sentence-transformers:")


def _only_column(source: Path, label: str | None) -> str | None:
    """Return the name of the column of texts: the only one besides the labels, or else the first."""
    return next((name for name in tables.columns(source) if name != label), None)


def text_embedder(clf_embedder: str | None, offline: bool) -> str:
    """Return the embedder for texts, and say which if none was named."""
    if clf_embedder is not None:
        return clf_embedder
    if offline:
        raise BadConfig("Texts need an embedder; offline, give a folder: --embedder sentence-transformers:FOLDER.")
    say(f"Texts are embedded by {TEXT}; --embedder names another.", complaints)
    return TEXT


def photo_embedder(paths: list[Path], offline: bool) -> str | None:
    """Return the embedder for a new model of photographs if timm is installed, and say what is used and why.

    Images of up to SMALL pixels per side are no photographs: a pretrained network expects larger ones."""
    if not folders.any_longer(paths, SMALL):
        say(f"No side is longer than {SMALL} pixels, so the images are learned on patch features, without a pretrained "
            f"network.", complaints)
        return None
    installed = importlib.util.find_spec("timm") is not None
    if offline or not installed:
        better = "--embedder timm:NAME@FILE.safetensors" if installed else "pip install 'holdfast[timm]'"
        say(f"The photographs are learned on patch features of the first batch. A pretrained network is usually far "
            f"better: {better}, or --embedder onnx:FILE.", complaints)
        return None
    say(f"The photographs are embedded by {PHOTO}, a network trained on ImageNet; --embedder names another.",
        complaints)
    return PHOTO


def trained_through(embedder: str | None, offline: bool, new: bool = True) -> dict[str, Any]:
    """Return the parameters by which replay trains the embedder's network from its weights; {} if it stays frozen."""
    if embedder is None:
        return {}
    kind, _, name = embedder.partition(":")
    if kind != "timm":
        say(f"{kind} stays frozen: replay trains a small network on its vectors.", complaints)
        return {}
    from ..backbones.adapted import PUBLISHED
    from ..embedders import absolute, open_embedder

    weighted = absolute(embedder) if "@" in name else f"timm:{name}@{PUBLISHED}"
    if not new:  # the model has weights and preprocessing of its own
        return {"backbone": weighted}
    opened: Any = open_embedder(embedder, offline=offline, device="cpu")  # checks the name and the weights
    mean, std = (part.flatten().tolist() for part in (opened.mean, opened.std))
    return {"backbone": weighted, "image_size": opened.size, "normalise": (mean, std)}


def usual_embedder(rows: Rows, asked: dict[str, Any], offline: bool) -> str | None:
    """Return the embedder of a new model if none is named: for texts and photographs, unless a network is trained."""
    if rows.kind == "texts":
        return text_embedder(None, offline)
    if rows.kind == "images" and not {"backbone", "head", "image_size", "epochs"} & asked.keys():
        return photo_embedder(list(rows.samples), offline)
    return None


def stacked(vectors: list[Any]) -> np.ndarray:
    """Return vectors as one array, or raise BadInput if their lengths differ."""
    if len(lengths := {len(vector) for vector in vectors}) > 1:
        raise BadInput(f"The vectors have {some(sorted(lengths))} numbers; give all of them the same length.")
    return np.stack(vectors)


@contextmanager
def as_bad_input() -> Iterator[None]:
    """Raise scikit-learn's complaints about samples, such as a wrong number of features, as our own."""
    try:
        yield
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(str(error)) from error


def looked(clf: IncrementalClassifier, rows: Rows) -> tuple[Rows, Any]:
    """Return the rows that could be read, and the model's vectors of them; unreadable images are left out."""
    if not len(clf.classes_):
        raise BadConfig("Every class of this model has been forgotten: teach it one with learn first.")
    check_kind(clf, rows)
    if rows.kind == "images" and clf.embedder is None:
        found = read([Path(path) for path in rows.samples], clf.model_.shape)
        _check_some(found.paths)
        return rows.only(positions(rows.samples, found.paths)), look(clf, found)
    if rows.kind == "images":
        rows = readable(rows)
        _check_some(rows.samples)
    with bar_of(clf.embedder is not None) as bar, embedding(clf, bar, len(rows.samples)):
        samples: Any = stacked(rows.samples) if rows.kind == "vectors" and clf.embedder is None else rows.samples
        with as_bad_input():
            return rows, clf.embed_tensor(samples)


def readable(rows: Rows, stop: Any = lambda: False) -> Rows:
    """Return the rows whose images can be decoded, and list the others."""
    with bar_of() as bar:
        line = bar.add_task("checking", total=len(rows.samples), unit="images")
        bad = folders.unreadable([Path(path) for path in rows.samples], lambda: bar.advance(line), stop)
    tell_left_out([why for _, why in bad])
    broken = {path for path, _ in bad}
    return rows.only([row for row, path in enumerate(rows.samples) if Path(path) not in broken])


def check_kind(clf: IncrementalClassifier, rows: Rows) -> None:
    """Raise BadInput if the model takes other samples than these."""
    inner = getattr(clf, "model_", None)
    if clf.embedder is not None:
        opened = clf.check_embedder()
        takes = {"text": "texts"}.get(opened.takes, opened.takes)
        by = f" by its embedder {clf.embedder}" if isinstance(clf.embedder, str) else " by its embedder"
    elif inner is not None:
        takes, by = "images" if len(inner.shape) == 3 else "vectors", ""
    else:
        return
    if rows.kind != takes and takes != "samples":
        remedy = {"vectors": "; name the column of texts with --text",
                  "images": "; texts come in a table, in a folder of .txt files, or through a pipe with -"}
        more = remedy.get(rows.kind, "") if takes == "texts" else ""
        raise BadInput(f"These are {rows.kind}, but the model takes {takes}{by}{more}.")


def _check_some(found: Sequence[Any]) -> None:
    if not found:
        raise BadInput("None of these could be read as an image.")


def positions(every: Sequence[Any], some_of_them: Sequence[Path]) -> list[int]:
    """Return where each of `some_of_them`, in order, stands in `every`."""
    rest, found = iter(enumerate(every)), []
    for wanted in some_of_them:
        found.append(next(row for row, path in rest if Path(path) == wanted))
    return found


def name_of(rows: Rows, row: int) -> str:
    """Return a sample's text or path, or for a vector its place."""
    sample = rows.samples[row]
    return str(sample) if isinstance(sample, str | Path) else rows.places[row]


def answers(clf: IncrementalClassifier, rows: Rows, embedded: Any, reject: float | None) -> list[dict[str, Any]]:
    """Return label, probability, novelty and the best three of each row; no label where it is none of the classes."""
    inner, labels = clf.model_, clf.classes_.tolist()
    limit = None if reject is None else inner.threshold(reject)
    chances, novelty = inner.chances(embedded).cpu().numpy(), inner.novelty(embedded).cpu().tolist()
    found = []
    for row, new in enumerate(novelty):
        best = np.argsort(-chances[row], kind="stable")[:BEST].tolist()
        strange = limit is not None and new > limit
        found.append({
            "sample": name_of(rows, row), "label": None if strange else labels[best[0]],
            "probability": None if strange else float(chances[row, best[0]]), "novelty": float(new),
            "best": [[labels[at], float(chances[row, at])] for at in best],
        })
    return found


def show_answers(found: list[dict[str, Any]], form: str, limit: float | None = None) -> None:
    """Print the answers: a table, CSV, or JSON lines, one per sample. `limit` is the novelty that is rejected."""
    if form == "json":
        for each in found:
            typer.echo(files.dumps(each))
    elif form == "csv":
        names = ("sample", "label", "probability", "novelty")
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(["" if each[name] is None else each[name] for name in names] for each in found)
    else:
        novelty = "novelty" if limit is None else f"novelty (up to {limit:.3g})"
        table = Table(Column("sample", overflow="fold"), Column("class", overflow="fold"), "probability", novelty)
        for each in found:
            name = "[dim]none of these[/]" if each["label"] is None else escape(str(each["label"]))
            sure = "-" if each["probability"] is None else f"{100 * each['probability']:.1f} %"
            sample = each["sample"] if len(each["sample"]) <= 70 else each["sample"][:67] + "..."
            table.add_row(escape(sample), name, sure, f"{each['novelty']:.3g}")
        console.print(table)
