"""A search tries values on samples held back from training, and never sees the test set."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli import main as cli
from holdfast.cli import run as command
from holdfast.errors import BadConfig, HoldfastError
from holdfast.runs.config import Config
from holdfast.signals import Stopping
from holdfast.sweeps.search import SHARE, grid
from holdfast.sweeps.survey import Run, State

EWC = Config("split-mnist", method="ewc", quick=True)


def test_every_combination_is_tried_once_and_on_held_back_samples() -> None:
    tried = grid(EWC, ["strength=1,10,10.0,1", "lr=0.1,0.2"])
    assert [(c.get("strength"), c.lr) for c in tried] == [(1, 0.1), (1, 0.2), (10, 0.1), (10, 0.2)]
    assert {c.validation for c in tried} == {SHARE}
    assert {c.validation for c in grid(Config("split-mnist", method="ewc", validation=0.3), ["strength=1,2"])} == {0.3}


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        (["validation=0,0.1"], "no setting to search over called 'validation'"),  # 0 would be the test set
        (["benchmark=split-digits"], "no setting to search over called 'benchmark'"),
        (["strenght=1"], "Did you mean 'strength'"),
        (["strength"], "write it like --search strength=1,10,100"),
        (["margin=1"], "no setting to search over called 'margin'"),  # an option of gem
        (["strength= "], "names no values"),
        (["strength=1", "strength=2"], "given twice; write all its values in one"),
        (["strength=much"], "'much' is no value for strength; it must be a finite number, 0 or more.$"),
        (["quick=yes"], "choose true or false"),
        (["importance=prediction,lable"], "importance is 'lable'"),
    ],
)
def test_a_wish_that_cannot_be_is_answered(wishes: list[str], said: str) -> None:
    with pytest.raises(HoldfastError, match=said):
        grid(EWC, wishes)


@pytest.mark.parametrize("flag", ["--fresh", "--memory-on-disk"])
def test_flags_of_a_single_run_are_refused(flag: str) -> None:
    answer = CliRunner().invoke(cli.app, ["run", "split-digits", "--search", "lr=0.1", flag])
    assert isinstance(answer.exception, BadConfig) and f"{flag} is for a single run" in str(answer.exception)


def test_the_best_value_is_named_with_the_command_that_uses_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def watched(runs: list[Run], *args: object, **options: object) -> Stopping:
        for run, accuracy in zip(runs, (50.0, 60.0, 40.0), strict=True):
            run.state, run.result = State.DONE, {"final_average_accuracy": accuracy}
        return Stopping()

    monkeypatch.setattr(command, "watched", watched)
    words = "run split-digits --method ewc --backbone mlp --epochs 1"
    options = ["--quick", "--search", "strength=100,1,10", "--out", str(tmp_path)]
    answer = CliRunner().invoke(cli.app, [*words.split(), *options])
    assert answer.exit_code == 0, answer.exception
    assert answer.output.splitlines()[-1] == f"holdfast {words} --strength 1"
    rows = [line.replace("│", " ").split() for line in answer.output.splitlines() if " % " in line]
    assert [(row[0], row[-1]) for row in rows] == [("60.00", "1.0"), ("50.00", "100.0"), ("40.00", "10.0")]
