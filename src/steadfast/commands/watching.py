"""Many runs at once, watched: a live table, failures named, and a stop that says how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import typer
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from .. import sweep
from ..engines import Engine
from ..signals import Stopping
from .options import complaints, console

STATES = ("done", "running", "running elsewhere", "partial", "missing", "failed")
MOST = 5  # runs named in a line
SILENCE = 300.0  # seconds between two lines in a log, if nothing happens


def watched(runs: Sequence[sweep.Run], out: Path, engine: Engine, **options: Any) -> Stopping:
    """Do these runs, and show how they stand; what the signals asked meanwhile is in what comes back."""
    with Stopping() as stopping, _shown(engine) as watch:
        sweep.sweep(runs, out, engine, watch=watch, stop=stopping.asked, **options)
    return stopping


@contextmanager
def _shown(engine: Engine) -> Iterator[Callable[[Sequence[sweep.Run]], None]]:
    """A live table on a terminal; in a log a line whenever a run has ended, and now and then."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=2) as live:
            yield lambda runs: live.update(board(runs, engine.places))
        return
    said, ended = monotonic(), -1

    def say(runs: Sequence[sweep.Run]) -> None:
        nonlocal said, ended
        now, over = monotonic(), sum(run.state in ("done", "failed") for run in runs)
        if over != ended or now - said > SILENCE:
            said, ended = now, over
            console.print(summary(runs, engine.places), highlight=False, soft_wrap=True)

    yield say


def conclude(runs: Sequence[sweep.Run], stopping: Stopping) -> None:
    """Name what failed; if it was stopped or is not finished, say so and leave with an exit code that tells."""
    for run in runs:
        if run.state == "failed":
            complaints.print(f"[red]failed[/] {run.config.name}: {escape(run.note)}", highlight=False, soft_wrap=True)
    if stopping.asked():
        leave(stopping)
    if undone := [run.config.name for run in runs if run.state not in ("done", "failed")]:
        more = f" and {len(undone) - MOST} more" if len(undone) > MOST else ""
        told = f"Not finished: {', '.join(undone[:MOST])}{more}. The same command goes on from here."
        complaints.print(told, highlight=False, soft_wrap=True)
        raise typer.Exit(1)


def leave(stopping: Stopping) -> NoReturn:
    complaints.print("Stopped; everything is saved. The same command goes on from here.")
    raise typer.Exit(stopping.exit_code)


def board(runs: Sequence[sweep.Run], places: int) -> Table:
    """What is going on now, a line a running one, and the sum."""
    table = Table("run", "state", "done", "seconds left", title=summary(runs, places), title_justify="left")
    for run in runs:
        if run.state == "running":
            holder = f", by {escape(run.note)}" if run.handle is None else ""
            left = f"{sweep.estimate(run, runs):,.0f}"
            table.add_row(run.config.name, f"{state(run)}{holder}", f"{run.share:.0%}", left)
    return table


def state(run: sweep.Run) -> str:
    """A run's state in words; what another process works on is said to be elsewhere."""
    return "running elsewhere" if run.state == "running" and run.handle is None else run.state


def summary(runs: Sequence[sweep.Run], places: int) -> str:
    """One line: how many are done, running, missing, failed, and how long the rest may take."""
    counts = {name: sum(state(run) == name for run in runs) for name in STATES}
    left = sweep.time_left(runs, places)
    hours = f"about {left / 3600:.1f} hours left" if left > 5400 else f"about {left / 60:.0f} minutes left"
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{len(runs)} runs: {told}" + (f"; {hours} on {places} at once" if left else "")
