"""Show a sweep while it runs: a live table, the failures, and how to resume after a stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, NoReturn

import typer
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ..hardware import Machine
from ..quantities import duration
from ..signals import Stopping
from ..sweeps.engines import Engine
from ..sweeps.survey import Run, State, estimate, time_left
from ..sweeps.sweep import Sweep
from .options import complaints, console

STATES = ("done", "running", "running elsewhere", "partial", "missing", "failed")
MOST = 5  # runs named in one line
SILENCE = 300.0  # longest time in seconds between two lines in a log


def watched(runs: Sequence[Run], machine: Machine, engine: Engine, **options: Any) -> Stopping:
    """Execute these runs and show their state; return the handler of signals."""
    with Stopping() as stopping, _shown(engine) as watch:
        Sweep(runs, machine, engine, **options).run(watch, stopping.asked)
    return stopping


@contextmanager
def _shown(engine: Engine) -> Iterator[Callable[[Sequence[Run]], None]]:
    """Show a live table on a terminal; in a log, print a line when a run ends and every SILENCE seconds."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=2) as live:
            yield lambda runs: live.update(board(runs, engine.places))
        return
    said, ended = monotonic(), -1

    def say(runs: Sequence[Run]) -> None:
        nonlocal said, ended
        now, over = monotonic(), sum(run.state in (State.DONE, State.FAILED) for run in runs)
        if over != ended or now - said > SILENCE:
            said, ended = now, over
            console.print(summary(runs, engine.places), highlight=False, soft_wrap=True)

    yield say


def conclude(runs: Sequence[Run], stopping: Stopping) -> None:
    """Print the failures; exit with a code if the sweep was stopped or is not finished."""
    for run in runs:
        if run.state is State.FAILED:
            complaints.print(f"[red]failed[/] {run.config.name}: {escape(run.note)}", highlight=False, soft_wrap=True)
    if stopping.asked():
        leave(stopping)
    if undone := [run.config.name for run in runs if run.state not in (State.DONE, State.FAILED)]:
        more = f" and {len(undone) - MOST} more" if len(undone) > MOST else ""
        told = f"Not finished: {', '.join(undone[:MOST])}{more}. Give the same command to resume."
        complaints.print(told, highlight=False, soft_wrap=True)
        raise typer.Exit(1)


def leave(stopping: Stopping) -> NoReturn:
    complaints.print("Stopped; everything is saved. Give the same command to resume.")
    raise typer.Exit(stopping.exit_code)


def board(runs: Sequence[Run], places: int) -> Table:
    """Return a table with one line per running run, and the summary as its title."""
    table = Table("run", "state", "done", "seconds left", title=summary(runs, places), title_justify="left")
    for run in runs:
        if run.state is State.RUNNING:
            holder = f", by {escape(run.note)}" if run.handle is None else ""
            left = f"{estimate(run, runs):,.0f}"
            table.add_row(run.config.name, f"{state(run)}{holder}", f"{run.share:.0%}", left)
    return table


def state(run: Run) -> str:
    """Return a run's state in words; a run that another process holds is "running elsewhere"."""
    return "running elsewhere" if run.state is State.RUNNING and run.handle is None else str(run.state)


def summary(runs: Sequence[Run], places: int) -> str:
    """Return one line: the number of runs per state, and the estimated time left."""
    counts = {name: sum(state(run) == name for run in runs) for name in STATES}
    left = time_left(runs, places)
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{len(runs)} runs: {told}" + (f"; about {duration(left)} left, {places} at once" if left else "")
