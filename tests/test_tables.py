"""Texts and vectors from files people have, and the commands that take them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from holdfast import IncrementalClassifier
from holdfast.cli.main import app
from holdfast.data import tables
from holdfast.errors import BadInput, HoldfastError, UnknownName

ROWS = [("is it cold", "weather"), ("pay, please", "money")]


def write(folder: Path, kind: str) -> Path:
    path = folder / f"rows.{kind}"
    if kind in ("csv", "tsv"):
        mark = "," if kind == "csv" else "\t"
        path.write_text("\n".join(mark.join(f'"{word}"' for word in row) for row in [("text", "label"), *ROWS]))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS))
    else:
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"text": [t for t, _ in ROWS], "label": [y for _, y in ROWS]}), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_texts_are_read_from_every_kind_of_table(tmp_path: Path, kind: str) -> None:
    rows = tables.read([write(tmp_path, kind)], "text", "label")
    assert list(zip(rows.samples, rows.labels)) == ROWS


def test_a_folder_of_texts_has_its_labels_in_its_folders(tmp_path: Path) -> None:
    for text, label in ROWS:
        (tmp_path / label).mkdir()
        (tmp_path / label / "one.txt").write_text(text)
    rows = tables.read([tmp_path], None, None)
    assert sorted(zip(rows.samples, rows.labels)) == sorted(ROWS)


@pytest.mark.parametrize("kind", ["csv", "npz", "npy", "parquet", "lists.parquet", "jsonl"])
def test_vectors_are_read_from_tables_and_arrays(tmp_path: Path, kind: str) -> None:
    vectors, labels = np.array([[1.5, 2], [3, 4]], np.float32), ["a", "b"]
    path, column = tmp_path / f"vectors.{kind}", "label"
    if kind == "csv":
        path.write_text("x,y,label\n1.5,2,a\n3,4,b\n")
    elif kind == "npz":
        np.savez(path, vectors=vectors, label=labels)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"v": v, "label": y}) + "\n" for v, y in zip(vectors.tolist(), labels)))
    elif kind.endswith("parquet"):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        numbers = {"x": vectors[:, 0], "y": vectors[:, 1]} if kind == "parquet" else {"vector": vectors.tolist()}
        parquet.write_table(arrow.table({**numbers, "label": labels}), path)
    else:
        np.save(path, vectors)
        (tmp_path / "labels.txt").write_text("a\nb\n")
        column = str(tmp_path / "labels.txt")
    rows = tables.read([path], None, column)
    assert np.array_equal(np.stack(rows.samples), vectors) and rows.labels == labels


@pytest.mark.parametrize(
    ("content", "text", "label", "says"),
    [
        ("text,label\n,a\n", "text", "label", "Row 1 of .* has no text"),
        ("text,label\nhello,\n", "text", "label", "Row 1 of .* has no label"),
        ("text,label\nhello,a\n", None, "label", "'hello' where a number should be; name the column of texts"),
        ("", "text", "label", "There are no rows"),
    ],
)
def test_what_cannot_be_read_is_named_by_row(
    tmp_path: Path, content: str, text: str | None, label: str | None, says: str
) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(BadInput, match=says):
        tables.read([tmp_path / "a.csv"], text, label)


def test_a_wrong_column_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'text'"):
        tables.read([write(tmp_path, "csv")], "txt", "label")


def test_a_pickle_in_a_numpy_file_is_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(BadInput, match="cannot be read as a NumPy file"):
        tables.read([tmp_path / "a.npy"], None, None)


@pytest.mark.parametrize(
    ("content", "says"), [(b"PK\x03\x04 and no more", "not a zip file"), (b"PK\x05\x06" + bytes(18), "vectors")],
    ids=["truncated", "without arrays"],
)
def test_a_damaged_numpy_file_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(BadInput, match=rf"a\.npz cannot be read as a NumPy file: .*{says}"):
        tables.read([tmp_path / "a.npz"], None, None)


def test_a_missing_file_of_labels_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    with pytest.raises(BadInput, match=r"file that --label names; species cannot be read"):
        tables.read([tmp_path / "a.npy"], None, "species")


def test_a_pipe_that_is_no_utf8_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8"))
    with pytest.raises(BadInput, match="standard input cannot be read as text: 'utf-8'"):
        tables.lines()


# The commands.


def command(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)
    if isinstance(done.exception, HoldfastError):
        raise done.exception
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.output


@pytest.fixture
def vectors(tmp_path: Path) -> dict[str, Path]:
    """Three classes of vectors in two batches, and a test set with a stranger."""
    draws = np.random.default_rng(0)
    centres = draws.normal(size=(4, 8)) * 6
    made = {}
    for name, classes in {"first": (0, 1), "second": (2,), "test": (0, 1, 2, 3)}.items():
        labels = np.repeat(classes, 40)
        points = centres[labels] + draws.normal(size=(len(labels), 8))
        made[name] = tmp_path / f"{name}.npz"
        np.savez(made[name], vectors=points.astype(np.float32), labels=np.array([f"class {k}" for k in labels]))
    np.savez(tmp_path / "bare.npz", vectors=np.zeros((3, 8), np.float32))
    made["bare"] = tmp_path / "bare.npz"
    return made


def test_vectors_are_learned_predicted_and_evaluated_on_the_command_line(
    vectors: dict[str, Path], tmp_path: Path
) -> None:
    model = tmp_path / "m"
    assert "2 classes" in command("learn", vectors["first"], "--model", model)
    told = command("learn", vectors["second"], vectors["first"], "--model", model)
    assert "Skipped, because the model knows them already" in told
    assert "3 classes" in told and "by the method solved" in told
    lines = [json.loads(line) for line in command("predict", model, vectors["test"], "--json").splitlines()]
    assert len(lines) == 160 and lines[0]["label"] == "class 0" and 0.9 < lines[0]["probability"] <= 1
    assert command("predict", model, vectors["test"], "--csv").startswith("sample,label,probability,novelty\n")
    refused = command("predict", model, vectors["test"], "--json", "--reject", "0.05").splitlines()
    assert sum(json.loads(line)["label"] is None for line in refused[120:]) == 40
    told = command("evaluate", model, vectors["test"])
    assert "100.0 % of 120 samples right" in told and "40 samples are of classes that the model does not know" in told
    assert (model / "evaluation.png").stat().st_size > 5000


def test_a_table_with_labels_is_predicted_without_them(vectors: dict[str, Path], tmp_path: Path) -> None:
    with np.load(vectors["first"]) as found:
        rows = [",".join([*map(str, vector), label]) for vector, label in zip(found["vectors"], found["labels"])]
    (tmp_path / "first.csv").write_text("\n".join([",".join([*"abcdefgh", "species"]), *rows]))
    command("learn", tmp_path / "first.csv", "--label", "species", "--model", tmp_path / "m")
    told = command("predict", tmp_path / "m", tmp_path / "first.csv", "--label", "species", "--csv")
    assert len(told.splitlines()) == 81 and "class 1" in told
    told = command("embed", tmp_path / "m", tmp_path / "first.csv", "--label", "species", "-o", tmp_path / "v.npy")
    assert "80 vectors of 8 numbers" in told
    with pytest.raises(BadInput, match="Some samples have no label"):
        command("evaluate", tmp_path / "m", vectors["bare"])


def test_evaluate_shows_every_class(tmp_path: Path) -> None:
    labels = np.repeat([f"class {k}" for k in range(12)], 4)
    points = np.random.default_rng(0).normal(size=(48, 5)) + 9 * np.eye(12, 5)[np.arange(48) // 4]
    np.savez(tmp_path / "many.npz", vectors=points.astype(np.float32), labels=labels)
    command("learn", tmp_path / "many.npz", "--model", tmp_path / "m")
    told = command("evaluate", tmp_path / "m", tmp_path / "many.npz")
    assert all(f"class {k} " in told for k in range(12))


def test_the_same_flags_are_accepted_again_and_others_refused(vectors: dict[str, Path], tmp_path: Path) -> None:
    model = tmp_path / "m"
    command("learn", vectors["first"], "--model", model, "--slots", "50")
    command("learn", vectors["second"], "--model", model, "--slots", "50")
    with pytest.raises(HoldfastError, match=r"slots cannot change: .* with slots=50"):
        command("learn", vectors["second"], "--model", model, "--slots", "60", "--again")
    assert len(IncrementalClassifier.load(model).classes_) == 3


def test_epochs_for_a_solved_model_are_answered_and_leave_it_usable(vectors: dict[str, Path], tmp_path: Path) -> None:
    model = tmp_path / "m"
    command("learn", vectors["first"], "--model", model)
    assert "--epochs has no effect" in command("learn", vectors["second"], "--model", model, "--epochs", "3")
    clf = IncrementalClassifier.load(model)
    assert (clf.method_, clf.epochs, len(clf.classes_)) == ("solved", "auto", 3)


def test_samples_without_labels_are_refused(vectors: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="There is no label for"):
        command("learn", vectors["bare"], "--model", tmp_path / "m")
    assert not (tmp_path / "m").exists()
