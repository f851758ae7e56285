"""`steadfast run`: one run, watched live."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from .. import distributed, engines, experiment, paper, progress, sweep
from ..config import Config
from ..errors import BadConfig
from ..search import grid
from ..signals import Stopping
from ..training import Stopped
from .options import (
    CompileOption,
    ContiguousOption,
    DataOption,
    DeviceOption,
    OutOption,
    ThreadsOption,
    complaints,
    console,
    with_config,
)
from .watching import conclude, watched

RUNS = Path("runs")


@with_config
def run(
    config: Config,
    data: DataOption = None,
    out: OutOption = RUNS,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    resume: Annotated[bool, typer.Option("--resume/--fresh", help="go on where it was stopped, or start anew")] = True,
    memory_on_disk: Annotated[
        bool, typer.Option("--memory-on-disk", help="keep the remembered images in a file (CPU only)")
    ] = False,
    compiled: CompileOption = False,
    contiguous: ContiguousOption = False,
    search: Annotated[
        list[str] | None, typer.Option("--search", help="try values, such as strength=1,10,100, on a validation split")
    ] = None,
) -> None:
    """Learn a benchmark's classes task by task, and measure everything.

    The same command again goes on where it was stopped, or shows the result if it is finished.

    [dim]steadfast run split-digits[/]                                   [dim]the demo, a minute[/]
    [dim]steadfast run split-mnist --memory 100[/]                       [dim]the paper's method[/]
    [dim]steadfast run split-mnist --memory 100 --head expanding[/]      [dim]its rival[/]
    """
    if search:
        distributed.alone("--search")
        if memory_on_disk or not resume:
            flag = "--memory-on-disk" if memory_on_disk else "--fresh"
            raise BadConfig(f"{flag} is for a single run; leave it out of a --search.")
        return search_grid(config, search, data, out, device, threads, compiled, contiguous)
    with distributed.session():
        console.quiet = complaints.quiet = distributed.ranks().rank > 0  # of several processes the first one talks
        one_run(config, data, out, device, threads, resume, memory_on_disk, compiled, contiguous)


def one_run(
    config: Config, data: Path | None, out: Path, device: str, threads: int | None, resume: bool, memory_on_disk: bool,
    compiled: bool, contiguous: bool,
) -> None:
    """Show a run while it runs, and its result."""
    full = config.resolved()
    folder = experiment.RunFolder(out / full.name)
    console.print(f"[bold]{full.command()}[/]", highlight=False, soft_wrap=True)
    with Stopping() as stopping:
        try:
            with progress.live(console, full.phases(), full.epochs or 1, stopping.asked) as watcher:
                result = experiment.run(
                    full, out, data_root=data, device=device, threads=threads, watcher=watcher, resume=resume,
                    memory_on_disk=memory_on_disk, compiled=compiled, contiguous=contiguous,
                )
        except Stopped:
            place = None if device == "auto" else device
            given = {"--data": data, "--out": out if out != RUNS else None, "--device": place, "--threads": threads}
            flags = [f" {flag} {shlex.quote(str(value))}" for flag, value in given.items() if value is not None]
            said = {"--memory-on-disk": memory_on_disk, "--compile": compiled, "--contiguous": contiguous}
            flags += [f" {flag}" for flag, value in said.items() if value]
            again = f"{full.command()}{''.join(flags)}"
            if distributed.ranks().world > 1:
                again = f"torchrun ... -m {again}  (torchrun's own options as before)"
            told = f"Stopped and saved in {folder.path}. Go on with the same command:\n{again}"
            complaints.print(told, highlight=False, markup=False, soft_wrap=True)
            raise typer.Exit(stopping.exit_code) from None
    progress.show_result(console, result, paper.published(full))
    console.print(f"Everything is in {folder.path}: result.json, accuracy.png, ...", markup=False, soft_wrap=True)


def search_grid(
    config: Config, wishes: list[str], data: Path | None, out: Path, device: str, threads: int | None, compiled: bool,
    contiguous: bool,
) -> None:
    """Run a grid on a validation split, several at once, and name the best."""
    runs, threads = sweep.survey(grid(config, wishes), out), threads or 1
    engine = engines.Local(threads=threads, device=device)
    stopping = watched(
        runs, out, engine, data_root=data, device=device, threads=threads, compiled=compiled, contiguous=contiguous
    )
    conclude(runs, stopping)
    table = Table("accuracy on the validation split", "run")
    done = [run for run in runs if run.result is not None]
    done.sort(key=lambda run: -run.result["final_average_accuracy"])  # type: ignore[index]
    for run in done:
        table.add_row(f"{run.result['final_average_accuracy']:.2f} %", run.config.command())  # type: ignore[index]
    console.print(table)
    if not done:
        raise typer.Exit(1)
    best = replace(done[0].config, validation=0.0, quick=False)
    if not any(wish.startswith("epochs") for wish in wishes):
        best = replace(best, epochs=config.epochs)
    told = f"The best of them, in full and on the test set:\n{best.command()}"
    console.print(told, highlight=False, soft_wrap=True)
