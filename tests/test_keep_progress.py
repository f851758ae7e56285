"""`learn --keep-progress`: an interrupted batch goes on from its training state to the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from holdfast import files
from holdfast.cli.main import app
from holdfast.errors import Stopped
from holdfast.estimator import IncrementalClassifier
from holdfast.estimator.model_files import NAME
from holdfast.estimator.progress import NAME as PROGRESS
from holdfast.estimator.progress import Progress
from holdfast.learning.training import Watcher

EPOCHS = 6


def points(classes: tuple[int, ...]) -> tuple[np.ndarray, list[str]]:
    draws = np.random.default_rng(classes[0])
    labels = np.repeat(classes, 60)
    return (labels[:, None] * 3 + draws.normal(size=(len(labels), 8))).astype(np.float32), [f"c{k}" for k in labels]


def fresh() -> IncrementalClassifier:
    return IncrementalClassifier(slots=6, memory=100, method="replay", epochs=EPOCHS, batch=32, device="cpu")


def stopping_after(steps: int) -> Watcher:
    done: list[int] = []
    return Watcher(step=done.append, stop=lambda: len(done) >= steps)


def bits(clf: IncrementalClassifier) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in clf.model_.state()[0].items()}


@pytest.mark.parametrize("steps", [1, 7, 20])
def test_a_batch_goes_on_to_the_bits_of_one_that_was_not_stopped(tmp_path: Path, steps: int) -> None:
    """The second batch is stopped, so that its memory and held-back samples exist before it."""
    whole = fresh().partial_fit(*points((0, 1))).partial_fit(*points((2, 3)))
    stopped = fresh().partial_fit(*points((0, 1)))
    with pytest.raises(Stopped):
        stopped.partial_fit(*points((2, 3)), watcher=stopping_after(steps), progress=Progress(tmp_path / "p"))
    assert stopped.model_.taught == 1
    progress = Progress(tmp_path / "p")
    stopped.partial_fit(*points((2, 3)), progress=progress)
    assert progress.epoch is not None and bits(stopped) == bits(whole)


def test_another_batch_or_setting_begins_anew(tmp_path: Path) -> None:
    clf = fresh()
    with pytest.raises(Stopped):
        clf.partial_fit(*points((0, 1)), watcher=stopping_after(20), progress=Progress(tmp_path / "p"))
    kept = (tmp_path / "p").read_bytes()
    for other, batch in ((fresh(), (0, 2)), (fresh().set_params(epochs=EPOCHS + 1), (0, 1)),
                         (fresh().set_params(random_state=1), (0, 1))):
        (tmp_path / "p").write_bytes(kept)
        progress = Progress(tmp_path / "p")
        other.partial_fit(*points(batch), progress=progress)
        assert progress.epoch is None
    (tmp_path / "p").write_bytes(kept[: len(kept) // 2])  # torn
    progress = Progress(tmp_path / "p")
    torn = fresh().partial_fit(*points((0, 1)), progress=progress)
    assert progress.epoch is None and bits(torn) == bits(fresh().partial_fit(*points((0, 1))))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_the_same_command_goes_on_after_a_real_signal(tmp_path: Path, number: signal.Signals) -> None:
    vectors, labels = points((0, 1, 2))
    np.savez(tmp_path / "v.npz", vectors=vectors, labels=labels)
    model = tmp_path / "m"
    words = ["learn", str(tmp_path / "v.npz"), "--model", str(model), "--epochs", "400", "--memory", "100",
             "--slots", "6", "--threads", "1", "--device", "cpu", "--keep-progress"]
    process = subprocess.Popen([sys.executable, "-m", "holdfast", *words], stderr=subprocess.PIPE, text=True,
                               env=os.environ | {"COLUMNS": "200"})
    until = time.monotonic() + 120
    while not (model / PROGRESS).exists():
        assert process.poll() is None and time.monotonic() < until, "it ended before its first epoch"
        time.sleep(0.01)
    process.send_signal(number)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), told
    if number == signal.SIGINT:
        assert "the progress of this batch is kept, and the same command goes on from it" in told
    at = files.read_tensors(model / PROGRESS)[1]["position"]["epoch"]
    assert not (model / NAME).exists() and 1 <= at < 400

    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert f"Went on from epoch {at + 1}" in " ".join(done.output.split())
    assert IncrementalClassifier.load(model).classes_.tolist() == ["c0", "c1", "c2"]
    assert not (model / PROGRESS).exists()


def test_without_the_option_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, labels = points((0, 1))
    np.savez(tmp_path / "v.npz", vectors=vectors, labels=labels)
    real = Watcher.__init__

    def pressing(self: Watcher, **given: object) -> None:
        real(self, **given)  # type: ignore[arg-type]
        self.step = lambda samples: signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Watcher, "__init__", pressing)
    words = ["learn", str(tmp_path / "v.npz"), "--model", str(tmp_path / "m"), "--epochs", "50", "--device", "cpu"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 130 and "nothing was learned yet." in " ".join(done.stderr.split())
    assert not (tmp_path / "m").exists()
