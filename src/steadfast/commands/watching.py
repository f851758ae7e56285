"""Many runs at once, watched: a live table, failures named, and a stop that says how to go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.live import Live
from rich.table import Table

from .. import sweep
from ..engines import Engine
from ..signals import Stopping
from .options import complaints, console


def watched(runs: Sequence[sweep.Run], out: Path, engine: Engine, **options: Any) -> Stopping:
    """Do these runs, and show how they stand; what the signals asked meanwhile is in what comes back."""
    with Stopping() as stopping, Live(console=console, refresh_per_second=2) as live:
        sweep.sweep(
            runs, out, engine, watch=lambda runs: live.update(board(runs, engine.places)), stop=stopping.asked,
            **options,
        )
    return stopping


def conclude(runs: Sequence[sweep.Run], stopping: Stopping) -> None:
    """Name what failed; if it was stopped, say so and leave with the signal's exit code."""
    for run in runs:
        if run.state == "failed":
            complaints.print(f"[red]failed[/] {run.config.name}: {run.note}", highlight=False)
    if stopping.asked():
        leave(stopping)


def leave(stopping: Stopping) -> NoReturn:
    complaints.print("Stopped; everything is saved. The same command goes on from here.")
    raise typer.Exit(stopping.exit_code)


def board(runs: Sequence[sweep.Run], places: int) -> Table:
    """What is going on now, a line a running one, and the sum."""
    table = Table("run", "state", "done", "seconds left", title=summary(runs, places), title_justify="left")
    for run in runs:
        if run.state == "running":
            table.add_row(run.config.name, run.state, f"{run.share:.0%}", f"{sweep.estimate(run, runs):,.0f}")
    return table


def summary(runs: Sequence[sweep.Run], places: int) -> str:
    """One line: how many are done, running, missing, failed, and how long the rest may take."""
    states = ("done", "running", "partial", "missing", "failed")
    counts = {state: sum(run.state == state for run in runs) for state in states}
    left = sweep.time_left(runs, places)
    hours = f"about {left / 3600:.1f} hours left" if left > 5400 else f"about {left / 60:.0f} minutes left"
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{len(runs)} runs: {told}" + (f"; {hours} on {places} at once" if left else "")
