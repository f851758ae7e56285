"""The comparison of all methods with both heads: its runs, and its table in the report."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.cli.reproduce import configs_of
from holdfast.paper import rivals
from holdfast.report import exports, page
from holdfast.report import rivals as table
from holdfast.runs.config import Config
from holdfast.runs.records import Record, Records
from records_factory import make_record


def record(config: Config, accuracy: float, **changes: Any) -> Record:
    full = config.resolved()
    return Record(f"{full.name}.json", full, make_record(full, accuracy, **changes))


def of(method: str, head: str, accuracy: float, seed: int = 0, **changes: Any) -> Record:
    return record(rivals.config("split-digits", method, head, seed), accuracy, **changes)


def test_the_sweep_is_every_method_with_both_heads_and_three_seeds_on_digits() -> None:
    configs = configs_of("rivals", None, False)
    pairs = {(config.method, config.head) for config in configs}
    assert {config.seed for config in configs} == {0, 1, 2} and len(configs) == 3 * len(pairs)
    assert ("lucir", "cosine") in pairs and ("icarl", "expanding") in pairs and ("replay", "expanding") in pairs
    assert [pair for pair in pairs if pair[0] == "solved"] == [("solved", "simplex")]  # its native head is the simplex
    assert {config.benchmark for config in configs} == {"split-digits"}


def test_on_split_mnist_it_has_one_seed_and_the_papers_small_memory() -> None:
    configs = configs_of("rivals", None, False, ["split-mnist"])
    assert {config.seed for config in configs} == {0}
    memories = {config.method: config.resolved().get("memory") for config in configs}
    assert memories["icarl"] == memories["gem"] == 100 and memories["ewc"] is None and memories["slda"] is None


def test_the_seeds_come_one_after_the_other_so_that_every_cell_soon_has_a_run() -> None:
    seeds = [config.seed for config in configs_of("rivals", 2, False)]
    assert seeds == sorted(seeds)


def made() -> list[Record]:
    seconds: dict[str, Any] = {"separation": [90.0], "steps": 100}
    return [
        of("replay", "simplex", 90.0, seconds=10.0, kept_bytes=51200, **seconds),
        of("replay", "simplex", 92.0, 1, seconds=14.0, kept_bytes=51200, **seconds),
        of("replay", "expanding", 80.0, seconds=8.0, kept_bytes=51200, **seconds),
        of("icarl", "simplex", 85.0, seconds=18.0, kept_bytes=51800, drift=9.0, **seconds),
        of("icarl", "expanding", 88.0, seconds=16.0, kept_bytes=71200, drift=27.0, **seconds),
        of("solved", "simplex", 95.0, seconds=1.0, kept_bytes=2_000_000, **seconds),
    ]


def test_a_row_has_both_heads_side_by_side() -> None:
    replay, icarl, solved = rivals.rows(made())
    assert [row.method for row in (replay, icarl, solved)] == ["replay", "icarl", "solved"]
    assert replay.fixed is not None and replay.fixed.accuracy == pytest.approx(91.0)
    assert replay.fixed.std == pytest.approx(1.0) and replay.fixed.time == pytest.approx(1.0)
    assert icarl.gain == pytest.approx(-3.0)
    assert icarl.fixed is not None and icarl.native is not None
    assert icarl.fixed.time == pytest.approx(18 / 12)  # replay with the simplex takes 0.12 s per step on average
    assert icarl.native.time == pytest.approx(2.0)
    assert icarl.fixed.turned == pytest.approx(10.0) and icarl.native.turned == pytest.approx(30.0)
    assert solved.native is None and solved.gain is None


def test_runs_with_other_options_and_lone_methods_are_left_out() -> None:
    other = record(Config("split-digits", method="icarl", memory=200), 99.0)
    assert [row.method for row in rivals.rows([*made()[:3], other])] == []
    assert rivals.rows([of("icarl", "simplex", 85.0)]) == []
    shorter = record(rivals.config("split-digits", "replay", "simplex", epochs=1), 10.0)
    assert rivals.rows([*made(), shorter])[0].fixed == rivals.rows(made())[0].fixed


def test_the_report_has_the_table_in_markdown_and_on_the_page() -> None:
    report = page.build(Records(runs=made()))
    lines = exports.markdown(report).splitlines()
    (short,) = [line for line in lines if line.startswith("| distillation | icarl ")]
    assert short == "| distillation | icarl | expanding | 85.00 | 88.00 | −3.00 | 1/1 |"
    # A made record falls evenly from 99, so forgetting is (99 - accuracy) * (4 + 3 + 2 + 1) / 16.
    assert "| icarl | simplex | 85.00 | 8.8 | 10 % | 51.8 kB | 1.50 | 1 |" in lines
    assert "| icarl | expanding | 88.00 | 6.9 | 30 % | 71.2 kB | 2.00 | 1 |" in lines
    text = page.page(report)
    assert 'id="rivals"' in text and "51.8 kB" in text and 'id="compatibility"' not in text


def test_compatibility_is_a_column_once_a_record_has_it() -> None:
    runs = [*made(), of("wa", "simplex", 80.0, compatibility={"am": 75.0})]
    rows = rivals.rows(runs)
    assert "compatibility" in table.columns(rows) and "compatibility" not in table.columns(rows[:2])
    assert "| wa | simplex | 80.00 | 11.9 | – | 75 | – | – | 1 |" in table.markdown(rows)


def test_a_record_without_steps_has_no_time_and_an_empty_table_no_lines() -> None:
    old = [of("replay", "simplex", 90.0), of("ewc", "simplex", 20.0)]
    assert [side.time for row in rivals.rows(old) for side in row.sides if side is not None] == [None, None]
    assert table.markdown([]) == table.side_by_side([]) == []
    assert exports.markdown(page.build(Records())).count("rivals") == 0


def test_what_older_records_do_not_say_comes_from_the_others() -> None:
    known = {"kept_bytes": 100, "steps": 10, "seconds": 5.0, "compatibility": {"am": 90.0}}
    side = rivals.rows([of("replay", "simplex", 80.0, **known), of("replay", "simplex", 82.0, 1),
                        of("icarl", "simplex", 80.0)])[0].fixed
    assert side is not None and (side.compatibility, side.kept, side.time) == (90.0, 100.0, pytest.approx(1.0))


def test_the_gain_is_taken_over_the_seeds_that_both_heads_have() -> None:
    runs = [of("icarl", "simplex", 85.0), of("icarl", "expanding", 84.0), of("icarl", "expanding", 94.0, 1)]
    row = next(row for row in rivals.rows([*made()[:2], *runs]) if row.method == "icarl")
    assert row.gain == pytest.approx(1.0)
    apart = [of("icarl", "simplex", 85.0), of("icarl", "expanding", 94.0, 1)]
    row = next(row for row in rivals.rows([*made()[:2], *apart]) if row.method == "icarl")
    assert row.gain is None
