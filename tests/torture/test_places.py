"""Two runs in one folder, a moved folder, a clock that jumps, a sweep whose workers are killed: the same bits."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import figures
import pytest
from survivor import differ, remains

from conftest import assert_same_bits, bits, make_tiny_config, make_tiny_trainer, needed
from holdfast.errors import BadFile, RunLocked
from holdfast.hardware import Machine
from holdfast.learning.training import Stopped, Watcher
from holdfast.methods import METHODS
from holdfast.runs import experiment
from holdfast.runs.config import Config
from holdfast.sweeps import engines
from holdfast.sweeps.survey import State, survey
from holdfast.sweeps.sweep import Sweep

Run = Callable[..., experiment.Result]
HOLDER = (
    "import sys, time, filelock; held = filelock.FileLock(sys.argv[1]).acquire();"
    "print('held', flush=True); time.sleep(600)"
)


def stop_after(steps: int) -> Watcher:
    count = iter(range(steps, -1, -1))
    return Watcher(stop=lambda: next(count, 0) == 0)


def test_a_folder_that_another_process_holds_is_free_when_that_is_killed(run_tiny: Run, tmp_path: Path) -> None:
    config = make_tiny_config(epochs=1)
    lock = tmp_path / config.name / ".lock"
    lock.parent.mkdir()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(RunLocked, match="is working on"):
            run_tiny(config)
    finally:
        holder.kill()
        holder.wait()
    run_tiny(config)


def test_a_run_that_moved_to_another_place_goes_on_to_the_same_bits(run_tiny: Run, tmp_path: Path) -> None:
    config = make_tiny_config()
    run_tiny(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        run_tiny(config, tmp_path / "here", watcher=stop_after(7))
    (tmp_path / "far").mkdir()
    shutil.move(tmp_path / "here", tmp_path / "far" / "there")
    run_tiny(config, tmp_path / "far" / "there")
    differ(remains(tmp_path / "far" / "there"), remains(tmp_path / "whole"), "the moved run")
    for path in (tmp_path / "far" / "there" / config.name).glob("*.json*"):
        assert str(tmp_path) not in path.read_text()


def test_anothers_result_is_refused(run_tiny: Run, tmp_path: Path) -> None:
    one, other = make_tiny_config(seed=1, epochs=1), make_tiny_config(seed=2, epochs=1)
    run_tiny(one)
    (tmp_path / other.name).mkdir()
    shutil.copy(tmp_path / one.name / "result.json", tmp_path / other.name / "result.json")
    with pytest.raises(BadFile, match=r"another run.*--fresh"):
        run_tiny(other)


def test_a_clock_that_jumps_changes_nothing(run_tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, chance = make_tiny_config(), random.Random(0)
    run_tiny(config, tmp_path / "whole")
    real = time.perf_counter()
    jumps = iter(real + 3600.0 * k for k in range(10**6))  # a laptop that sleeps between any two looks
    monkeypatch.setattr(time, "time", lambda: chance.uniform(-1e9, 4e9))
    monkeypatch.setattr(time, "perf_counter", lambda: next(jumps))
    run_tiny(config, tmp_path / "jumping")
    differ(remains(tmp_path / "jumping"), remains(tmp_path / "whole"), "the jumping clock")


def test_a_clock_that_stands_still_does_not_stop_the_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from holdfast.learning import progress

    with progress.progress(Console(file=open(os.devnull, "w"), force_terminal=False)) as watcher:
        monkeypatch.setattr(progress.time, "monotonic", lambda: 1.0)
        watcher.begin(2, 2)
        watcher.step(8)
        watcher.epoch({"task": 1, "epoch": 1})


@pytest.mark.parametrize("method", METHODS)
def test_the_same_config_twice_gives_the_same_bits(method: str) -> None:
    runs = [make_tiny_trainer(method=method, **needed(method)) for _ in range(2)]
    for trainer in runs:
        trainer.run()
    assert_same_bits(bits(runs[0]), bits(runs[1]))


def kill_one(dead: list[int], wanted: int) -> Callable[[Any], None]:
    """Return a watcher of a sweep that kills `wanted` workers, each of which has a checkpoint."""

    def watch(runs: Any) -> None:
        for run in runs:
            process = getattr(run.handle, "process", None)
            if len(dead) < wanted and process is not None and process.pid not in dead and run.folder.checkpoints():
                os.kill(process.pid, signal.SIGKILL)
                dead.append(process.pid)

    return watch


@pytest.mark.torture
def test_a_sweep_whose_workers_are_killed_and_that_is_stopped_ends_in_the_same_bits(tmp_path: Path) -> None:
    """Three runs at once: one is killed, then the sweep is stopped, then it is resumed."""
    configs = [Config("split-digits", backbone="mlp", epochs=30, quick=True, seed=seed).resolved() for seed in range(3)]
    runs, dead = survey(configs, tmp_path / "many"), []
    machine = Machine(out=str(tmp_path / "many"), device="cpu", threads=1)
    began = time.monotonic()
    asked = False

    def stop() -> bool:
        nonlocal asked
        asked = asked or (len(dead) > 0 and time.monotonic() - began > 20)
        return asked

    Sweep(runs, machine, engines.Local(3)).run(kill_one(dead, 1), stop)
    runs = survey(configs, tmp_path / "many")
    Sweep(runs, machine, engines.Local(3), retry_failed=True).run()
    assert dead and all(run.state is State.DONE for run in runs), [run.note for run in runs]
    for run in runs:
        experiment.run(run.config, replace(machine, out=str(tmp_path / "alone" / run.config.name)))
        (tmp_path / "one").mkdir()
        shutil.move(run.folder.path, tmp_path / "one" / run.config.name)
        differ(remains(tmp_path / "one"), remains(tmp_path / "alone" / run.config.name), run.config.name)
        shutil.rmtree(tmp_path / "one")
    figures.keep("sweep", runs=len(runs), kills=len(dead))


@pytest.mark.torture
def test_ctrl_c_in_a_terminal_saves_every_run_of_a_sweep(tmp_path: Path) -> None:
    """The terminal sends a SIGINT to every process, and the sweep sends a SIGTERM to its workers."""
    command = [sys.executable, "-m", "holdfast", "run", "split-digits", "--backbone", "mlp", "--epochs", "400",
               "--search", "lr=0.001,0.002", "--out", str(tmp_path / "runs"), "--device", "cpu"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                               start_new_session=True)
    give_up = time.monotonic() + 300
    while len(list(tmp_path.glob("runs/*/checkpoint-*"))) < 2 and time.monotonic() < give_up:
        assert process.poll() is None
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "Stopped; everything is saved" in told and "Traceback" not in told
    for folder in (tmp_path / "runs").iterdir():
        if folder.is_dir():
            assert not (folder / "failure.json").exists()


@pytest.mark.torture
def test_what_one_and_two_threads_have_in_common(tmp_path: Path) -> None:
    """Equal bits are promised for one number of threads only; this measures what the documentation says of two."""
    code = ("import sys; from holdfast.hardware import Machine; from holdfast.runs import experiment;"
            "from holdfast.runs.config import Config; experiment.run(Config('split-digits', epochs=2, quick=True),"
            "Machine(out=sys.argv[2], device='cpu', threads=int(sys.argv[1])))")
    for number, out in ((1, "one"), (2, "two"), (2, "two again")):
        subprocess.run([sys.executable, "-c", code, str(number), str(tmp_path / out)], check=True, timeout=600)
    differ(remains(tmp_path / "two again"), remains(tmp_path / "two"), "two threads, twice")
    try:
        differ(remains(tmp_path / "two"), remains(tmp_path / "one"), "two threads")
        same = "the same bits here"
    except AssertionError:
        same = "other bits; twice with 2 threads: the same"
    figures.keep("threads", same=same)
