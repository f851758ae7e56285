"""docs/reliability.md shows the figures of the last torture run; none is typed in by hand."""

from __future__ import annotations

import re

import figures


def test_the_figures_on_the_page_are_those_of_the_last_run() -> None:
    page = figures.PAGE.read_text()
    assert page == figures.rendered(page, figures.read()), "run `python tests/torture/figures.py`"
    assert set(re.findall(r"<!--(\w+)-->", page)) == figures.SENTENCES.keys()


def test_rendering_replaces_what_was_there() -> None:
    page = "| a | <!--commands-->stale<!--/--> | <!--note--> |"
    told = {"commands": {"kills": 7}}
    once = figures.rendered(page, told)
    assert "7 kills" in once and "stale" not in once and "<!--note-->" in once
    assert figures.rendered(once, told) == once


def test_the_page_names_every_dependency() -> None:
    text = (figures.DOCS.parent / "pyproject.toml").read_text()
    block = text[text.index("\ndependencies = [") : text.index("\n]\n", text.index("\ndependencies = ["))]
    names = re.findall(r'^    "([a-z0-9-]+)', block, flags=re.M)
    (told,) = re.findall(r"`pyproject.toml`: ([^.]*)\.", figures.PAGE.read_text().replace("\n", " "))
    assert re.split(r",\s+", told) == names
    assert "Fifteen" in figures.PAGE.read_text() and len(names) == 15
