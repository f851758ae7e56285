"""`--record FILE`: what a benchmark measured, from which tools/show_speed.py makes docs/speed.md.

A record is JSON: the command, the machine, the versions, the clock, and a row for each thing measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import holdfast

Row = dict[str, Any]
Clock = Callable[[], float]


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what was measured there too, as JSON")


def add_clock(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds, not wall: for a busy machine, one thread")


def started(options: argparse.Namespace, parser: argparse.ArgumentParser) -> Clock:
    """With as many threads as asked for, and by the clock that was chosen."""
    if options.cpu_time and options.threads > 1:
        parser.error("--cpu-time is for one thread")
    torch.set_num_threads(options.threads)
    return time.process_time if options.cpu_time else time.perf_counter


def row(name: str, what: str, unit: str, values: Sequence[float], **more: object) -> Row:
    """Of one thing measured: the median of the rounds and their quartiles; a single value has none."""
    made = {"name": name, "what": what, "unit": unit, "rounds": len(values), **more}
    made["median"] = short(statistics.median(values))
    if len(values) > 1:
        low, _, high = quartiles(values)
        made["quartiles"] = [short(low), short(high)]
    return made


def spread(values: Sequence[float], told: str = "{:.2f}") -> str:
    """The median and the middle half, for a table."""
    low, middle, high = (told.format(value) for value in quartiles(values))
    return f"{middle}  ({low} to {high})"


def quartiles(values: Sequence[float]) -> list[float]:
    """Of just these rounds, so never beyond them."""
    return statistics.quantiles(values, n=4, method="inclusive")


def short(value: float) -> float:
    return float(f"{value:.6g}")


def write(
    options: argparse.Namespace, script: str, rows: Sequence[Row], *, clock: str | None = None,
    threads: int | None = None, versions: Mapping[str, str] | None = None,
) -> None:
    """The record, if --record asked for it; `clock`, "cpu" or "wall", and threads are the options' if not given."""
    if options.record is None:
        return
    clock = clock or ("cpu" if options.cpu_time else "wall")
    threads = threads or options.threads
    from holdfast import files  # here: Avalanche's environment may lack what it needs
    from holdfast.runs import environment

    ours = {"python": platform.python_version(), "torch": torch.__version__, "holdfast": holdfast.__version__}
    record = {
        "benchmark": Path(script).stem, "command": command(Path(script).name, sys.argv[1:]),
        "code": environment.code_version(), "cpu": cpu(), "cores": os.cpu_count(), "threads": threads, "clock": clock,
        "versions": {**ours, **(versions or {})}, "rows": list(rows),
    }
    files.write_record(options.record, record)


def command(script: str, words: Sequence[str]) -> str:
    """As a reader would type it: without this machine's paths, and without --record."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--record")
    parser.add_argument("--avalanche-python")
    known, rest = parser.parse_known_args(list(words))
    other = ["--avalanche-python", "PATH"] if known.avalanche_python else []
    return shlex.join(["python", f"benchmarks/{script}", *other, *rest])


def cpu() -> str:
    """The processor's name as the system tells it."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
