"""SIGTERM and Ctrl-C: the run is saved, the user is told how to resume it, and the exit code is right."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from survivor import differ, remains

from conftest import make_tiny_stream
from holdfast import files
from holdfast.cli import main as cli
from holdfast.learning import training
from holdfast.learning.memory import Memory
from holdfast.methods import METHODS
from holdfast.runs import experiment
from holdfast.runs.folder import RunFolder
from holdfast.signals import Stopping

COMMAND = ["holdfast", "run", "split-digits", "--backbone", "mlp", "--epochs", "2", "--batch", "8", "--memory", "12"]
MOMENTS: dict[str, tuple[Any, str]] = {
    "in a step": (METHODS["replay"], "observe"),
    "at a task's end": (METHODS["replay"], "end_task"),
    "in the memory's update": (Memory, "keep"),
    "in an evaluation": (training, "evaluate"),
    "while a checkpoint is written": (os, "replace"),
}

Command = Callable[[str], int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run `holdfast run` on a tiny stream in this process, and return its exit code."""
    monkeypatch.setattr(experiment, "make_stream", lambda config, root=None: make_tiny_stream())
    monkeypatch.setattr("holdfast.runs.plots.run_pictures", lambda result, folder: [])

    def call(out: str) -> int:
        monkeypatch.setattr(sys, "argv", [*COMMAND, "--device", "cpu", "--out", str(tmp_path / out)])
        try:
            cli.main()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return call


def send_at(patch: pytest.MonkeyPatch, owner: Any, attribute: str, call: int, *signals: int) -> None:
    """Send signals to this process in the n-th call of a function."""
    real, left = getattr(owner, attribute), iter(range(call - 1, -1, -1))

    def function(*args: Any, **options: Any) -> Any:
        if next(left, None) == 0:
            for number in signals:
                os.kill(os.getpid(), number)
        return real(*args, **options)

    patch.setattr(owner, attribute, function)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_it_stops_saves_and_goes_on_to_the_same_bits(
    number: int, code: int, moment: str, command: Command, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert command("whole") == 0
    with monkeypatch.context() as patch:
        send_at(patch, *MOMENTS[moment], 1 if moment == "in the memory's update" else 2, number)
        assert command("cut") == code
    told = capsys.readouterr().err
    assert "Stopped and saved" in told and "Resume with the same command" in told and str(tmp_path / "cut") in told
    (folder,) = (tmp_path / "cut").iterdir()
    assert RunFolder(folder).checkpoints() and not (folder / "result.json").exists()
    assert command("cut") == 0
    differ(remains(tmp_path / "cut"), remains(tmp_path / "whole"), moment)


def test_a_signal_after_the_last_step_lets_the_run_end(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        send_at(patch, training, "evaluate", 3, signal.SIGTERM)  # after the last of three tasks
        assert command("cut") == 0
    assert command("whole") == 0
    differ(remains(tmp_path / "cut"), remains(tmp_path / "whole"), "a late signal")


@pytest.mark.parametrize("moment", ["in a step", "while a checkpoint is written"])
def test_a_second_ctrl_c_stops_at_once_and_loses_only_what_was_not_saved(
    moment: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        send_at(patch, *MOMENTS[moment], 4, signal.SIGINT, signal.SIGINT)
        assert command("cut") == 130
    (folder,) = (tmp_path / "cut").iterdir()
    assert not list(folder.glob(".*.part"))
    for checkpoint in RunFolder(folder).checkpoints():
        files.read_tensors(checkpoint)
    assert command("cut") == 0 and command("whole") == 0
    differ(remains(tmp_path / "cut"), remains(tmp_path / "whole"), moment)


def test_a_sigterm_after_ctrl_c_does_not_interrupt_the_saving() -> None:
    """On Ctrl-C, a sweep's workers get a SIGINT from the terminal and then a SIGTERM from the sweep."""
    before = signal.getsignal(signal.SIGINT)  # ignored, where the tests run in the background
    with Stopping() as stopping:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.asked() and stopping.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
