"""Memory and step time stay flat, however many tasks have been learned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import figures
import pytest

ALLOWED = 10.0  # kB per task: noise; a leak of the learner's smallest tensor would be far larger


def soak(tasks: int, *words: str) -> dict[str, Any]:
    script = Path(__file__).with_name("soak.py")
    command = [sys.executable, str(script), str(tasks), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_thirty_tasks_leave_memory_and_steps_as_they_were() -> None:
    found = soak(30)
    assert found["slope"] < 10 * ALLOWED and found["ratio"] < 2


@pytest.mark.torture
def test_two_hundred_tasks_leave_memory_and_steps_as_they_were() -> None:
    found, whole = soak(200), soak(200, "report")
    assert found["slope"] < ALLOWED and found["ratio"] < 1.3 and whole["slope"] < 100
    figures.keep("soak", allowed=ALLOWED, report=whole["slope"], **found)
