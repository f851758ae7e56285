"""SIGKILL at any moment, again and again: the run ends in the bits of one that was left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import figures
import pytest
from survivor import differ, remains

METHODS = ["replay", "gem", "si", "ewc"]
SHORT = {"injected": 3, "timed": 1, "tiny": True, "batch": 8}
LONG = {"injected": 24, "timed": 8}  # per method; there are about twenty kinds of moment


def survive(folder: Path, **plan: Any) -> dict[str, Any]:
    whole = json.dumps({"folder": str(folder / "runs"), "methods": METHODS, **plan})
    script = Path(__file__).with_name("survivor.py")
    done = subprocess.run([sys.executable, str(script), whole], capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_killed_runs_end_in_the_same_bits(tmp_path: Path) -> None:
    found = survive(tmp_path, seed=0, **SHORT)
    assert all(sum(each["kills"].values()) >= 4 for each in found.values())


@pytest.mark.torture
def test_killed_runs_end_in_the_same_bits_every_time(tmp_path: Path) -> None:
    found = survive(tmp_path, seed=int(time.time()), **LONG)
    kinds: dict[str, int] = {}
    for each in found.values():
        for name, count in each["kills"].items():
            kinds[name] = kinds.get(name, 0) + count
    kills = sum(kinds.values())
    assert kills >= 120 and all(sum(each["kills"].values()) >= 30 for each in found.values())
    wanted = {"after a step", "half of a file", "before the rename", "after cutting the memory", "before a task's end",
              "after a task's begin", "before the evaluation"}
    assert wanted <= kinds.keys()
    figures.keep("kills", kills=kills, events=len(kinds) - 1, timed=kinds["a random moment"], kinds=kinds,
                 runs=sum(each["runs"] for each in found.values()))


@pytest.mark.torture
def test_the_command_itself_survives_kills(tmp_path: Path) -> None:
    """As a user does it: start the command, kill its process from outside, give the same command again."""
    command = [sys.executable, "-m", "holdfast", "run", "split-digits", "--quick", "--backbone", "mlp", "--epochs",
               "8", "--threads", "1", "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(out: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, str(tmp_path / out)], env=environment, stdout=subprocess.DEVNULL)

    began = time.monotonic()
    assert start("whole").wait(600) == 0
    lasted, chance, kills, done = time.monotonic() - began, random.Random(), 0, 0
    code = -1
    while kills < 6 or code:  # six kills, and then a run that reaches its end
        process = start(f"killed-{done}")
        try:
            code = process.wait(chance.uniform(0.3, 0.9) * lasted if kills < 6 else 600)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            code = process.wait()
        if code == 0:
            differ(remains(tmp_path / f"killed-{done}"), remains(tmp_path / "whole"), "holdfast run")
            done += 1
            continue
        assert code == -signal.SIGKILL
        kills += 1
    figures.keep("commands", kills=kills, runs=done)
