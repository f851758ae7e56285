"""`holdfast reproduce` as people type it: what it would run, what it refuses, what it says about time."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli import main as cli
from holdfast.cli.reproduce import WHAT, configs_of, narrowed
from holdfast.errors import UnknownName
from holdfast.hardware import Machine
from holdfast.paper import cells as paper
from holdfast.runs.config import Config
from holdfast.sweeps import cost, survey

RECORDS = Path(__file__).parents[1] / "results"


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
    assert chosen and [config.seed for config in chosen] == sorted(config.seed for config in chosen)


def test_filters_narrow_together() -> None:
    chosen = narrowed(configs_of("table1", 1, False), ["split-mnist", "split-cifar10"], ["replay"], [1100], "table1")
    assert {(c.benchmark, c.head, c.resolved().get("memory")) for c in chosen} == {
        (benchmark, head, 1100) for benchmark in ("split-mnist", "split-cifar10") for head in ("simplex", "expanding")
    }
    with pytest.raises(UnknownName, match="gem"):
        narrowed(configs_of("fig-evolution", 1, False), None, ["gem"], None, "fig-evolution")


def costs(runs: list[survey.Run], imagined: cost.Imagined | None = None) -> list[float]:
    cost.measure(runs, Machine(threads=1), imagined)
    return [survey.estimate(run, runs) for run in runs]


def test_a_run_costs_its_images_times_the_measured_time_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_per_image", lambda *given: 0.001)
    chosen = [Config("split-mnist", memory=100, head=head, method=method) for head, method in
              (("simplex", "replay"), ("expanding", "gem"))]
    # 60,000 images in 5 tasks, 5 epochs, one remembered for each new one after the first task; 10,000 tests after each
    # task, of the tasks so far: 3 x 10,000 forward passes, a third of a step each.
    replayed, projected = costs(survey.survey(chosen, tmp_path))
    assert replayed == pytest.approx(0.001 * (5 * (60_000 * 2 - 12_000) + 30_000 / 3))
    assert projected == pytest.approx(0.001 * (0.5 * (1 + 100 / 128) * 5 * 108_000 + 10_000))


def test_permutations_show_every_task_the_whole_data_set() -> None:
    assert cost.images(Config("permuted-mnist", memory=100).resolved()) == pytest.approx(
        5 * (600_000 * 2 - 60_000) + 10_000 * 55 / 3
    )


def test_the_sizes_of_data_sets_need_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost.data, "load", lambda name: pytest.fail(f"{name} was read"))
    cost._sizes.cache_clear()
    assert cost._sizes("mnist") == (60_000, 10_000, (1, 32, 32))
    assert cost._sizes("cifar10") == (50_000, 10_000, (3, 32, 32)) == cost._sizes("cifar100")


def test_the_speed_is_measured_once_per_network(tmp_path: Path) -> None:
    cost._per_image.cache_clear()
    chosen = [Config("split-digits", seed=seed, head=head) for seed in (0, 1) for head in ("simplex", "expanding")]
    times = costs(survey.survey(chosen, tmp_path))
    assert cost._per_image.cache_info().misses == 1 and len(set(times)) == 1 and times[0] > 0


def test_an_imagined_machine_is_counted_by_its_operations(tmp_path: Path) -> None:
    runs = survey.survey([Config("split-digits")], tmp_path)
    (one,) = costs(runs, cost.Imagined(10))
    (twice,) = costs(runs, cost.Imagined(20))
    assert one == pytest.approx(2 * twice)
    # LeNet on 32 x 32: 0.5 M, 6.4 M and 1.6 M products forward; backward twice that, but for the first layer's input.
    forward = 1024 * 25 * 20 + 256 * 25 * 20 * 50 + 3200 * 500 + 500 * 9
    per_image = 2 * (3 * forward - 1024 * 25 * 20)
    assert one == pytest.approx(cost.images(runs[0].config) * per_image / (10e12 * cost.REACHED), rel=0.01)


@pytest.mark.parametrize("words, said", [
    (["--dry-run", "--as-if", "fast"], "TFLOPS"), (["--dry-run", "--as-if", "0"], "TFLOPS"),
    (["--as-if", "19.5"], "--dry-run"),
])
def test_an_imagined_machine_is_named_by_its_tflops(words: list[str], said: str) -> None:
    found = CliRunner().invoke(cli.app, ["reproduce", "table1", "--benchmark", "split-mnist", "--seeds", "1", *words])
    assert found.exit_code != 0 and said in str(found.exception)


def test_a_dry_run_says_what_eight_gpus_would_take() -> None:
    found = CliRunner().invoke(cli.app, ["reproduce", "table1", "--benchmark", "split-mnist", "--seeds", "1",
                                         "--dry-run", "--as-if", "19.5x8"])
    assert found.exit_code == 0, found.output
    assert "an estimate for 8 GPUs of 19.5 TFLOPS" in " ".join(found.output.split())


def test_runs_that_the_records_have_are_not_run_again(tmp_path: Path) -> None:
    words = ["rivals", "--method", "ncm", "--seeds", "1", "--out", str(tmp_path)]
    assert [line.split()[0] for line in runs(told(*words))] == ["missing", "missing"]
    assert [line.split()[0] for line in runs(told(*words, "--records", str(RECORDS)))] == ["done", "done"]
    assert runs(told(*words, "--records", str(tmp_path / "none"))) == runs(told(*words))
    assert not list(tmp_path.iterdir())
