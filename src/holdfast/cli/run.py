"""`holdfast run`: execute one run with a progress bar."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from .. import loggers
from ..errors import BadConfig, Stopped
from ..hardware import Machine
from ..learning import distributed
from ..learning.progress import progress
from ..options import declared
from ..paper import cells
from ..runs import experiment
from ..runs.config import Config
from ..runs.folder import RunFolder
from ..signals import Stopping
from ..sweeps import engines
from ..sweeps.search import grid, setting
from ..sweeps.survey import survey
from .options import complaints, console, with_config, with_machine
from .result_table import show_result
from .watching import conclude, watched


@with_config
@with_machine("data", "out", "device", "threads", "compile", "memory_on_disk")
def run(
    config: Config,
    machine: Machine,
    resume: Annotated[bool, typer.Option("--resume/--fresh", help="resume an interrupted run, or start anew")] = True,
    search: Annotated[
        list[str] | None, typer.Option("--search", help="try values, such as strength=1,10,100, on a validation split")
    ] = None,
    log: Annotated[
        list[str] | None, typer.Option("--log", help="log to tensorboard, wandb or mlflow; may be repeated")
    ] = None,
) -> None:
    """Train on a benchmark task by task, and measure accuracy, forgetting and drift.

    The same command again resumes an interrupted run, or shows the result of a finished one.

    [dim]holdfast run split-digits[/]                                   [dim]the demo, a minute[/]
    [dim]holdfast run split-mnist --memory 100[/]                       [dim]the paper's method[/]
    [dim]holdfast run split-mnist --memory 100 --head expanding[/]      [dim]its rival[/]
    """
    if search:
        distributed.alone("--search")
        if machine.memory_on_disk or not resume or log:
            flag = "--memory-on-disk" if machine.memory_on_disk else "--log" if log else "--fresh"
            raise BadConfig(f"{flag} is for a single run; leave it out of a --search.")
        return search_grid(config, search, machine)
    with distributed.session():
        console.quiet = complaints.quiet = distributed.ranks().rank > 0  # only rank 0 prints
        one_run(config, machine, resume, log or [])


def one_run(config: Config, machine: Machine, resume: bool, log: list[str]) -> None:
    """Execute a run with a progress bar, and show its result."""
    full = config.resolved()
    folder = RunFolder(Path(machine.out) / full.name)
    console.print(f"[bold]{full.command()}[/]", highlight=False, soft_wrap=True)
    for name, value in config.fallbacks().items():
        console.print(
            f"{name} is {value:g}, a fallback: nobody has searched for it on {full.benchmark}. To search on a "
            f"validation split, add --search {name}={value / 10:g},{value:g},{value * 10:g}", highlight=False,
            soft_wrap=True, markup=False,
        )
    told = loggers.Run(full.name, folder.path, full.to_json())
    with Stopping() as stopping:
        try:
            with (
                progress(console, stopping.asked) as watcher,
                loggers.logging(log if distributed.ranks().rank == 0 else [], told, watcher) as logged,
            ):
                result = experiment.run(full, machine, watcher=logged.watcher, resume=resume)
                logged.end(result)
        except Stopped:
            again = f"{full.command()}{flags_of(machine)}" + "".join(f" --log {name}" for name in log)
            if distributed.ranks().world > 1:
                again = f"torchrun ... -m {again}  (torchrun's own options as before)"
            text = f"Stopped and saved in {folder.path}. Resume with the same command:\n{again}"
            complaints.print(text, highlight=False, markup=False, soft_wrap=True)
            raise typer.Exit(stopping.exit_code) from None
    show_result(console, result, cells.published(full))
    if log and not logged.opened:
        console.print("The run was finished already, so nothing was logged; --fresh runs it again.")
    console.print(f"Everything is in {folder.path}: result.json, accuracy.png, ...", markup=False, soft_wrap=True)


def flags_of(machine: Machine) -> str:
    """Return the command-line flags of this machine, without defaults."""
    changed = {each.flag: getattr(machine, each.name) for each in declared(Machine)
               if getattr(machine, each.name) != each.default}
    return "".join(f" {flag}" + ("" if value is True else f" {shlex.quote(str(value))}")
                   for flag, value in changed.items())


def search_grid(config: Config, wishes: list[str], machine: Machine) -> None:
    """Run a grid on a validation split, several runs at once, and show the best first."""
    machine = replace(machine, threads=machine.threads or 1)
    runs = survey(grid(config, wishes), machine.out)
    engine = engines.Local(threads=machine.threads or 1, device=machine.device)
    conclude(runs, watched(runs, machine, engine))
    names = [setting(wish)[0] for wish in wishes]
    table = Table("accuracy on the validation split", *(name.replace("_", "-") for name in names))
    done = sorted((run for run in runs if run.result), key=lambda run: -run.result["final_average_accuracy"])  # type: ignore[index]
    for run in done:
        values = (run.config.options.get(name, getattr(run.config, name, None)) for name in names)
        table.add_row(f"{run.result['final_average_accuracy']:.2f} %", *map(str, values))  # type: ignore[index]
    console.print(table)
    if not done:
        raise typer.Exit(1)
    best = replace(done[0].config, validation=0.0, quick=False)
    if not any(wish.startswith("epochs") for wish in wishes):
        best = replace(best, epochs=config.epochs)
    console.print(f"Run the best setting in full, on the test set:\n{best.command()}", highlight=False, soft_wrap=True)
