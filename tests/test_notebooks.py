"""The notebooks run from top to bottom on their small data, show pictures, and are stored with their outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="the extra notebooks is not installed")
pytest.importorskip("nbclient", reason="the extra notebooks is not installed")
pytest.importorskip("ipykernel", reason="the extra notebooks is not installed")
BOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def pictures(book: object) -> int:
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]  # type: ignore[attr-defined]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_there_are_three_notebooks() -> None:
    assert [path.stem for path in BOOKS] == ["new_intents", "new_products", "the_paper"]


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_its_pictures_and_without_errors(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert pictures(book) >= 2
    assert not [output for cell in book.cells for output in cell.get("outputs", []) if output.output_type == "error"]
    assert "/work/" not in path.read_text() and "/root/" not in path.read_text(), "a path of somebody's machine"


@pytest.mark.slow
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.delenv("HOLDFAST_TEXT", raising=False)
    book = nbformat.read(path, as_version=4)
    stored = pictures(book)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=600, kernel_name="python3", resources=resources).execute()
    assert pictures(book) == stored
