"""Progress is shown in a terminal and in a notebook, by the same watcher, for runs and for the estimator."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import holdfast
from conftest import make_tiny_config
from holdfast import IncrementalClassifier

X, Y = np.random.default_rng(0).normal(size=(40, 4)), ["ant", "bee"] * 20


def terminal() -> Console:
    return Console(file=io.StringIO(), width=120, force_terminal=False, force_jupyter=False)


def told(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_run_shows_its_tasks_epochs_and_accuracy_and_a_finished_run_shows_nothing(run_tiny: Any) -> None:
    config, first, second = make_tiny_config(method="finetune", epochs=2), terminal(), terminal()
    with holdfast.progress(first) as watcher:
        result = run_tiny(config, watcher=watcher)
    tasks = len(result["accuracy_matrix"])
    assert re.search(rf"task {tasks}/{tasks} .* {2 * tasks}/{2 * tasks} epochs .* new samples/s", told(first))
    assert f"accuracy {result['final_average_accuracy']:.1f} %" in told(first)
    with holdfast.progress(second) as watcher:
        run_tiny(config, watcher=watcher)
    assert told(second) == ""


def test_teaching_shows_the_embedded_samples_and_the_epochs() -> None:
    console = terminal()
    with holdfast.progress(console) as watcher:
        model = IncrementalClassifier(embedder=lambda rows: np.stack(rows), slots=4, epochs=3, cache=False)
        model.partial_fit(list(X), Y, watcher=watcher)
    assert re.search(r"embedding .* 40/40 samples", told(console))
    assert re.search(r"learning .* 3/3 +epochs", told(console))


BOOK = """
import numpy as np, holdfast
from holdfast import IncrementalClassifier
X, Y = np.random.default_rng(0).normal(size=(40, 4)), ["<ant>", "bee"] * 20
model = IncrementalClassifier(embedder=lambda rows: np.stack(rows), slots=4, epochs=3, cache=False)
with holdfast.progress() as watcher:
    model.partial_fit(list(X), Y, watcher=watcher)
"""


@pytest.mark.slow
def test_a_notebook_shows_each_bar_once_with_its_last_state(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the extra notebooks is not installed")
    pytest.importorskip("ipykernel", reason="the extra notebooks is not installed")
    nbclient = pytest.importorskip("nbclient", reason="the extra notebooks is not installed")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(BOOK)])
    nbclient.NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
                            ).execute()
    pages = [output["data"]["text/html"] for output in book.cells[0].outputs]
    assert [output.output_type for output in book.cells[0].outputs] == ["display_data"] * 2, book.cells[0].outputs
    assert "<progress value='40' max='40'" in pages[0] and "embedding · 40/40 samples" in pages[0]
    assert "<progress value='3' max='3'" in pages[1] and "learning · 3/3 epochs" in pages[1]
