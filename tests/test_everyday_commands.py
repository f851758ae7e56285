"""Everyday use of the model commands: pipes, other directories, moved embedders, one pass over held samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.embedders import absolute
from holdfast.embedders.base import Embedder
from holdfast.errors import BadConfig, BadInput
from holdfast.estimator import IncrementalClassifier, gate
from holdfast.estimator.solved import SolvedModel

TEXTS = {"a": ["aaa", "aaaa", "aab", "aaab"], "z": ["zzz", "zzzz", "zzy", "zzzy"]}


class Letters(Embedder):
    """Count letters, in place of a model of sentence-transformers in a folder."""

    kind, takes, digest = "sentence-transformers", "text", "0" * 64

    def __init__(self, folder: str) -> None:
        self.name = Path(folder).name
        if not Path(folder).is_dir():
            raise BadConfig(f"There is no folder {folder}.")

    def embed(self, samples: Any) -> Any:
        return np.array([[text.count(letter) for letter in "abyz"] for text in samples], np.float32)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of texts, taught with an embedder in a relative folder."""
    monkeypatch.setattr("holdfast.estimator.embedding.open_embedder",
                        lambda named, **rest: Letters(named.partition(":")[2]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters").mkdir()
    rows = [f"{text},{label}" for label, texts in TEXTS.items() for text in texts]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows]))
    ran("learn", "t.csv", "--text", "text", "--label", "label", "--model", "m",
        "--embedder", "sentence-transformers:letters")
    return tmp_path / "m"


def ran(*words: object, typed: str | None = None) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in words], input=typed)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def labels(done: Any) -> list[str]:
    return [json.loads(line)["label"] for line in done.stdout.splitlines()]


def test_each_line_of_a_pipe_is_a_text(model: Path) -> None:
    assert labels(ran("predict", model, "-", "--json", typed="aaa\n\nzzzz\n")) == ["a", "z"]
    piped = ran("predict", model, "-", "--text", "text", "--json", typed="text\nzzz\n")
    assert labels(piped) == ["z"]
    with pytest.raises(BadInput, match="no text on standard input: write one text per line"):
        ran("predict", model, "-", typed="\n")


def test_the_column_of_texts_is_found_in_every_kind_of_table(model: Path, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "zzz"}\n{"question": "aaa"}\n')
    assert labels(ran("predict", model, tmp_path / "q.jsonl", "--json")) == ["z", "a"]
    assert labels(ran("predict", model, "--text", tmp_path / "q.jsonl", "--json")) == ["z", "a"]


def test_a_model_finds_its_embedder_from_another_directory(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert labels(ran("predict", model, "-", "--json", typed="aaa\n")) == ["a"]


def test_an_embedder_that_moved_is_named_to_every_command(model: Path, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "letters").rename(tmp_path / "far" / "letters")
    with pytest.raises(BadConfig, match="no folder"):
        ran("predict", model, "-", typed="aaa\n")
    named = ("--embedder", f"sentence-transformers:{tmp_path / 'far' / 'letters'}")
    assert labels(ran("predict", model, "-", "--json", *named, typed="aaa\n")) == ["a"]
    table = ("t.csv", "--text", "text", "--label", "label", *named)
    assert "100.0 % of 8 samples right" in ran("evaluate", model, *table).stdout
    assert "Nearest to the border" in ran("inspect", model, *table).stdout
    assert "8 vectors of 4 numbers" in ran("embed", model, "t.csv", "--text", "text", *named).stdout


def test_only_local_embedders_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("x.onnx", "w.safetensors"):
        (tmp_path / name).touch()
    assert absolute("onnx:x.onnx?size=8") == f"onnx:{tmp_path / 'x.onnx'}?size=8"
    assert absolute("timm:small@w.safetensors") == f"timm:small@{tmp_path / 'w.safetensors'}"
    for named in ("timm:small", "sentence-transformers:somebody/model", "onnx:gone.onnx"):
        assert absolute(named) == named
    assert absolute(len) is None


def test_a_file_that_is_no_table_is_answered_with_what_would_be(model: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("aaa")
    with pytest.raises(BadInput, match=r"the model takes texts.*; texts come in a table, in a folder of \.txt files"):
        ran("predict", model, tmp_path / "note.txt")


def test_two_forms_of_output_exclude_each_other(model: Path) -> None:
    with pytest.raises(BadConfig, match="--json and --csv exclude each other"):
        ran("predict", model, "t.csv", "--json", "--csv")


def test_a_model_among_the_photographs_is_no_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with an embedder: the model's folder holds pictures, such as that of `evaluate`."""
    def small(samples: Any) -> Any:
        return np.stack([np.asarray(Image.open(path).convert("RGB").resize((2, 2))).ravel() for path in samples])

    def opened(named: str, **rest: Any) -> Embedder:
        from holdfast.embedders.own import Own

        made = Own(small, device="cpu")
        made.takes = "images"
        return made

    monkeypatch.setattr("holdfast.estimator.embedding.open_embedder", opened)
    for name, colour in (("red", (200, 0, 0)), ("blue", (0, 0, 200)), ("m", (9, 9, 9))):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (8, 8), tuple(part + number for part in colour)).save(tmp_path / name / f"{number}.png")
    ran("learn", tmp_path, "--model", tmp_path / "m", "--embedder", "onnx:any.onnx", "--no-cache")
    assert IncrementalClassifier.load(tmp_path / "m").classes_.tolist() == ["blue", "red"]


def test_a_gate_scores_the_held_samples_of_each_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, seen, real = np.random.default_rng(0), [], SolvedModel.held_answers
    monkeypatch.setattr(SolvedModel, "held_answers", lambda self: (seen.append(self), real(self))[1])
    y = np.repeat([0, 1, 2], 40)
    X = (y[:, None] * 4 + draws.normal(size=(120, 6))).astype(np.float32)
    clf = IncrementalClassifier(slots=5).partial_fit(X[y < 2], y[y < 2])
    before = clf.model_
    clf.partial_fit(X[y == 2], y[y == 2])
    verdict = gate.judge(gate.Gate(better_than=0.5, no_worse_by=0.1), before, clf.model_)
    assert verdict.passed and verdict.before is not None and verdict.after is not None
    assert [each is before for each in seen] == [False, True]


def test_bars_show_the_rate() -> None:
    from rich.progress import Progress

    from holdfast.cli.model_progress import Rate

    now = iter(range(0, 1000, 2))
    bar = Progress(get_time=lambda: float(next(now)))
    line = bar.add_task("embedding", total=100, unit="samples")
    for _ in range(3):
        bar.advance(line, 10)
    (task,) = bar.tasks
    assert Rate().render(task).plain == f"{task.speed:,.1f}/s" and 0 < task.speed < 10  # type: ignore[operator]
