"""`holdfast reproduce` as people type it: what it would run, what it refuses, what it says about time."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli import main as cli
from holdfast.cli.reproduce import WHAT, configs_of, narrowed
from holdfast.errors import UnknownName
from holdfast.paper import cells as paper
from holdfast.sweeps import survey


def told(*words: str) -> list[str]:
    """What a dry run of `reproduce` prints."""
    found = CliRunner().invoke(cli.app, ["reproduce", *words, "--dry-run"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout.splitlines()


def runs(lines: list[str]) -> list[str]:
    return [line for line in lines if " holdfast run " in line and not line.startswith("left out")]


def test_a_dry_run_lists_every_seed_of_every_cell_and_runs_nothing(tmp_path: Path) -> None:
    lines = told("table1", "--benchmark", "split-mnist", "--seeds", "3", "--out", str(tmp_path / "runs"))
    cells = [cell for cell in paper.cells("table1") if cell.benchmark == "split-mnist"]
    assert len(runs(lines)) == 3 * len(cells) == 30
    assert all(line.startswith("missing") for line in runs(lines))
    assert not (tmp_path / "runs").exists()


def test_each_command_it_prints_is_the_run_itself() -> None:
    from holdfast.runs.config import Config

    (line,) = runs(told("table1", "--benchmark", "split-mnist", "--method", "gem", "--memory", "100", "--seeds", "1"))
    assert line.split(None, 1)[1] == "holdfast run split-mnist --method gem --memory 100"
    assert line.split(None, 1)[1] == Config("split-mnist", method="gem", memory=100).resolved().command()


def test_all_is_every_cell_and_the_figure(tmp_path: Path) -> None:
    lines = told("all", "--seeds", "1", "--out", str(tmp_path))
    assert any("reproduce fig-features" in line for line in lines)
    commands = {line.split(None, 1)[1] for line in lines if "holdfast run" in line}
    assert {cell.config().resolved().command() for cell in paper.cells()} <= commands


def test_a_dry_run_of_the_figure_draws_nothing(tmp_path: Path) -> None:
    assert told("fig-features", "--quick", "--out", str(tmp_path)) == [
        "missing  holdfast reproduce fig-features --start 6 --add 3 --quick"
    ]
    assert not list(tmp_path.iterdir())


def test_quick_is_one_seed_and_marked() -> None:
    lines = runs(told("table1", "--benchmark", "split-mnist", "--quick"))
    assert len(lines) == 10 and all("--quick" in line for line in lines)


@pytest.mark.parametrize("words, said", [
    (["tabl1"], "table1"),
    (["table1", "--benchmark", "split-mnits"], "split-mnist"),
    (["table1", "--method", "replay+simplx"], "replay+simplex"),
    (["table1", "--memory", "99"], "100"),
    (["fig-features", "--memory", "100"], "leave out --memory"),
])
def test_a_wrong_word_is_answered_with_the_right_one(words: list[str], said: str) -> None:
    found = CliRunner().invoke(cli.app, ["reproduce", *words, "--dry-run"])
    assert found.exit_code != 0
    assert said in str(found.exception)


@pytest.mark.parametrize("what", [what for what in WHAT if what != "fig-features"])
def test_the_first_seed_of_every_cell_comes_before_the_second(what: str) -> None:
    chosen = configs_of(what, 2, quick=False)
    assert chosen
    for benchmark in {config.benchmark for config in chosen}:
        seeds = [config.seed for config in chosen if config.benchmark == benchmark]
        assert seeds == sorted(seeds)


def test_filters_narrow_together() -> None:
    chosen = narrowed(configs_of("table1", 1, False), ["split-mnist", "split-cifar10"], ["replay"], [1100], "table1")
    assert {(c.benchmark, c.head, c.resolved().get("memory")) for c in chosen} == {
        (benchmark, head, 1100) for benchmark in ("split-mnist", "split-cifar10") for head in ("simplex", "expanding")
    }
    with pytest.raises(UnknownName, match="gem"):
        narrowed(configs_of("fig-evolution", 1, False), None, ["gem"], None, "fig-evolution")


def test_the_time_left_counts_gem_for_what_it_is(tmp_path: Path) -> None:
    def minutes(method: str, memory: int) -> float:
        chosen = narrowed(configs_of("table1", 1, False), ["split-mnist"], [method], [memory], "table1")
        return survey.time_left(survey.survey(chosen, tmp_path), 1) / 60

    assert minutes("gem", 1100) > 45 > 20 > minutes("replay+simplex", 1100) > 5
    assert minutes("ewc", 0) < minutes("replay+simplex", 100)
