"""Texts and vectors from tables: CSV, TSV, JSON lines, Parquet, NumPy files, folders of .txt, standard input."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ..errors import BadInput, nearest
from ..quantities import some
from . import folders

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
ARRAYS = (".npy", ".npz")
LONGEST = 1_000_000  # letters of one text


@dataclass
class Rows:
    """Samples with their labels (None where the source has none) and where each came from."""

    samples: list[Any] = field(default_factory=list)  # texts, or vectors
    labels: list[str | None] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def extend(self, more: Rows) -> None:
        self.samples += more.samples
        self.labels += more.labels
        self.places += more.places

    def only(self, rows: Sequence[int]) -> Rows:
        """Return these rows."""
        return Rows(
            [self.samples[row] for row in rows], [self.labels[row] for row in rows], [self.places[row] for row in rows]
        )

    @property
    def kind(self) -> str:
        """Return what the samples are: texts, images or vectors."""
        first = self.samples[0] if len(self.samples) else ""
        return "texts" if isinstance(first, str) else "images" if isinstance(first, Path) else "vectors"


def is_table(path: Path) -> bool:
    """Return True for a source that this module reads: a table, an array, standard input, a folder of .txt files."""
    if str(path) == "-" or path.suffix.lower() in (*TABLES, *ARRAYS):
        return True
    texts = path.is_dir() and next(path.rglob("*.txt"), None) is not None
    return texts and not folders.below(path)  # notes beside images are no samples


def read(sources: Sequence[Path], text: str | None, label: str | None) -> Rows:
    """Read texts (with `text`, the name of their column) or vectors from all sources.

    `label` names the column of labels; in a folder, the subfolder is the label."""
    rows = Rows()
    for source in sources:
        rows.extend(_one(source, text, label))
    if not rows.samples:
        raise BadInput(f"There are no rows in {some([_shown(str(each)) for each in sources])}: a table has the names "
                       f"of its columns in its first line, then one row per line.")
    return rows


def columns(source: Path) -> list[str]:
    """Return the names of a table's columns; none for standard input, which can be read only once."""
    if source.suffix.lower() not in TABLES or not source.is_file():
        return []
    with _as_bad_input(source):
        return [str(name) for name in next(_records(source, source.suffix.lower()), {})]


def lines() -> Rows:
    """Read one text per line of standard input; empty lines are left out."""
    with _as_bad_input(Path("-")):
        texts = [line.strip() for line in sys.stdin if line.strip()]
    if not texts:
        raise BadInput("There is no text on standard input: write one text per line.")
    return Rows(list(texts), [None] * len(texts), [f"-:{number}" for number in range(1, len(texts) + 1)])


@contextmanager
def _as_bad_input(source: Path) -> Iterator[None]:
    try:
        yield
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        form = source.suffix.lower()[1:] or "text"
        raise BadInput(f"{_shown(str(source))} cannot be read as {form}: {error}") from error


def _one(source: Path, text: str | None, label: str | None) -> Rows:
    if str(source) != "-" and not source.exists():
        raise BadInput(f"There is no file or folder {source}.")
    if source.is_dir():
        return _folder(source)
    suffix = source.suffix.lower()
    if suffix in ARRAYS:
        return _arrays(source, label)
    with _as_bad_input(source):
        table = list(_records(source, suffix))
    return _from_records(str(source), table, text, label)


def _records(source: Path, suffix: str) -> Iterator[dict[str, Any]]:
    """Yield one dictionary per row."""
    if suffix == ".parquet":
        try:
            import pyarrow.parquet as parquet
        except ImportError as error:
            raise BadInput("Parquet needs pyarrow, which is not installed: pip install 'holdfast[parquet]'") from error
        yield from parquet.read_table(source).to_pylist()
        return
    lines: Iterable[str] = sys.stdin if str(source) == "-" else io.StringIO(source.read_text(encoding="utf-8-sig"))
    content = list(lines)
    if suffix in (".jsonl", ".ndjson") or (str(source) == "-" and content and content[0].lstrip().startswith("{")):
        for number, line in enumerate(content, 1):
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"line {number} is no JSON object")
                yield row
        return
    csv.field_size_limit(LONGEST)
    yield from csv.DictReader(content, delimiter="\t" if suffix == ".tsv" else ",", strict=True)


def _from_records(name: str, table: list[dict[str, Any]], text: str | None, label: str | None) -> Rows:
    columns = list(table[0]) if table else []
    for wanted in (text, label):
        if table and wanted is not None and wanted not in columns:
            raise nearest(f"column in {_shown(name)}", wanted, map(str, columns))
    found = [_label(row.get(label), name, number) if label else None for number, row in enumerate(table, 1)]
    places = [f"{name}:{number}" for number in range(1, len(table) + 1)]
    if text is not None:
        return Rows([_text(row.get(text), name, number) for number, row in enumerate(table, 1)], found, places)
    numbers = [column for column in columns if column != label]
    vectors = [_vector([row.get(column) for column in numbers], name, number) for number, row in enumerate(table, 1)]
    return Rows(vectors, found, places)


def _shown(name: str) -> str:
    return "standard input" if name == "-" else name


def _text(value: Any, name: str, row: int) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"Row {row} of {_shown(name)} has no text: {value!r}. Fill it, or leave the row out.")
    return value


def _label(value: Any, name: str, row: int) -> str:
    if value is None or not str(value).strip():
        raise BadInput(f"Row {row} of {_shown(name)} has no label. Fill it, or leave the row out.")
    return str(value)


def _vector(cells: list[Any], name: str, row: int) -> np.ndarray:
    """Return the numbers of a row; a cell of Parquet or JSON may hold a list of them."""
    values = [value for cell in cells for value in (cell if isinstance(cell, list) else [cell])]
    try:
        return np.array([float(value) for value in values], np.float32)
    except (TypeError, ValueError):
        bad = next(value for value in values if not _is_number(value))
        raise BadInput(
            f"Row {row} of {_shown(name)} has {bad!r} where a number should be; name the column of texts with --text, "
            f"or the column of labels with --label."
        ) from None


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _folder(folder: Path) -> Rows:
    """Read every .txt below a folder; the first folder below it is the label."""
    rows = Rows()
    for path in sorted(folder.rglob("*.txt")):
        parts = path.relative_to(folder).parts
        rows.samples.append(_text(path.read_text(encoding="utf-8", errors="replace"), str(path), 1))
        rows.labels.append(parts[0] if len(parts) > 1 else None)
        rows.places.append(str(path))
    return rows


def _arrays(path: Path, label: str | None) -> Rows:
    """Read vectors from .npz (arrays `vectors` and `labels`) or .npy (labels in the file that `label` names)."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if path.suffix.lower() == ".npz":
            vectors = loaded["vectors" if "vectors" in loaded else next(iter(loaded.files), "vectors")]
            labels = loaded.get(label or "labels")
        else:
            vectors, labels = loaded, None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise BadInput(f"{path} cannot be read as a NumPy file: {str(error)[:200]}") from error
    if label and path.suffix.lower() == ".npy":
        labels = _label_file(Path(label))
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        raise BadInput(f"{path} holds {vectors.dtype} of shape {vectors.shape}; vectors have one row per sample.")
    if labels is not None and len(labels) != len(vectors):
        raise BadInput(f"{path} has {len(vectors)} vectors, but {len(labels)} labels.")
    names: list[str | None] = [None] * len(vectors) if labels is None else [str(each) for each in labels]
    return Rows(list(vectors.astype(np.float32)), names, [f"{path}:{row}" for row in range(len(vectors))])


def _label_file(path: Path) -> list[Any]:
    try:
        if path.suffix.lower() == ".npy":
            return np.load(path, allow_pickle=False).tolist()
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"The labels of a .npy file are in a file that --label names; {path} cannot be read: "
                       f"{str(error)[:200]}") from error
