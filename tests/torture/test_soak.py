"""A long life: memory and step time stay flat, however many tasks have been learned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import figures
import pytest

ALLOWED = 20.0  # kB a task: the accuracies of all tasks so far are kept, a few kB of Python floats; a leak has more


def soak(tasks: int) -> dict[str, Any]:
    script = Path(__file__).with_name("soak.py")
    done = subprocess.run([sys.executable, str(script), str(tasks)], capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_thirty_tasks_leave_memory_and_steps_as_they_were() -> None:
    found = soak(30)
    assert found["slope"] < 5 * ALLOWED and found["ratio"] < 2


@pytest.mark.torture
def test_two_hundred_tasks_leave_memory_and_steps_as_they_were() -> None:
    found = soak(200)
    assert found["slope"] < ALLOWED and found["ratio"] < 1.3
    figures.keep("soak", allowed=ALLOWED, **found)
