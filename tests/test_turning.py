"""The figure of turning: old classes after each task, in percent of the angle between classes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from matplotlib.figure import Figure

from holdfast.learning import compatibility
from holdfast.paper.editions import editions
from holdfast.report import compatibility as compatibility_table
from holdfast.report import exports, page, turning
from holdfast.runs import records
from holdfast.runs.config import Config
from holdfast.runs.records import Record
from records_factory import make_record

MATRIX = [[100.0] * (i + 1) for i in range(5)]


def made(config: Config, drift: list[list[float | None]], apart: list[float | None], seed: int = 0) -> Record:
    each = dataclasses.replace(config, seed=seed)
    more: dict[str, Any] = {"drift": drift, "separation": apart, "compatibility": compatibility.summary(MATRIX, MATRIX)}
    return records.checked(each.name, {**make_record(each, 80.0), **more})


def test_a_class_counts_from_the_task_after_its_own() -> None:
    drift = [[0.0, None, None], [10.0, 0.0, None], [20.0, 40.0, 0.0]]
    run = made(Config("split-digits"), drift, [None, 50.0, 80.0])
    assert turning.turned(run) == pytest.approx([100 * 10 / 50, 100 * 30 / 80])


def test_a_record_without_angles_has_no_line() -> None:
    assert turning.turned(made(Config("split-digits"), [[0.0], [5.0]], [None, None])) is None
    assert turning.turned(made(Config("split-digits"), [[0.0]], [50.0])) is None


def test_heads_and_recipes_of_replay_stand_side_by_side() -> None:
    drift: list[list[float | None]] = [[0.0, None], [10.0, 0.0]]
    plain, sphere = Config("split-digits"), Config("split-digits", vertex_probability=0.9)
    runs = [made(each, drift, [None, 50.0], seed) for each in (plain, sphere) for seed in (0, 1)]
    runs.append(made(Config("split-digits", method="der"), drift, [None, 50.0]))  # another method
    edition = editions(runs)[0]
    (groups,) = turning.groups(edition).values()
    assert [(group.name, len(group.runs)) for group in groups] == [
        ("replay + simplex", 2), ("replay + simplex, vertex-probability 0.9", 2)
    ]
    (picture,) = turning.pictures(edition)
    assert "sphere, p = 0.9 (2)" in picture.svg and "split-digits, M=50" in picture.caption
    text = exports.markdown(page.build(records.Records(runs=runs)))
    assert "| split-digits, M=50 | replay + simplex, vertex-probability 0.9 | 2 |" in text


def test_runs_of_another_length_are_not_compared() -> None:
    drift: list[list[float | None]] = [[0.0, None], [10.0, 0.0]]
    configs = [Config("split-digits", vertex_probability=p, epochs=epochs) for p in (None, 0.9) for epochs in (None, 1)]
    found = turning.groups(editions([made(each, drift, [None, 50.0]) for each in configs])[0])
    assert list(found) == ["split-digits, M=50", "split-digits, M=50, epochs 1"]
    assert [group.recipe for group in found["split-digits, M=50, epochs 1"]] == [
        "replay + simplex", "replay + simplex, vertex-probability 0.9"
    ]


def test_a_search_that_finds_little_has_a_heat_map_too() -> None:
    """CIFAR-100 finds under half; the squares tell its entries apart, in one scale for all runs of a table."""
    poor, better = ([[low + i] * (i + 1) for i in range(5)] for low in (20.0, 40.0))
    runs = []
    for config, matrix in ((Config("split-digits"), poor), (Config("split-digits", vertex_probability=0.9), better)):
        more: dict[str, Any] = {"compatibility": compatibility.summary(matrix, matrix)}
        runs.append(records.checked(config.name, {**make_record(config, 80.0), **more}))
    plain, sphere = compatibility_table.rows(editions(runs)[0])
    assert [plain.shade(value) for value in (20.0, 60.0, 100.0)] == [0.0, 0.5, 1.0]
    assert sphere.lowest == plain.lowest == 20.0
    assert dataclasses.replace(plain, lowest=100.0).shade(100.0) == 1.0, "a table of perfect searches"


def test_recipes_of_one_figure_have_colours_of_their_own() -> None:
    held = [{}, {"distill": "contrast"}, {"distill": "features"}, {"vertex_probability": 0.9}]
    drift: list[list[float | None]] = [[0.0, None], [10.0, 0.0]]
    runs = [made(Config("split-digits", **each), drift, [None, 50.0]) for each in held]
    (groups,) = turning.groups(editions(runs)[0]).values()
    axes = Figure().subplots()
    turning.draw(axes, "split-digits", groups)
    assert len({line.get_color() for line in axes.lines}) == len(held)
