"""`holdfast reproduce`: the paper's tables and figures from one command, which can be stopped and resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .. import hardware
from ..errors import BadConfig, Stopped, nearest
from ..hardware import Machine
from ..learning import distributed
from ..learning.progress import progress
from ..paper import ablation as beyond
from ..paper import cells as paper
from ..paper import rivals
from ..runs.benchmarks import BENCHMARKS
from ..runs.config import Config
from ..runs.records import Record, read
from ..signals import Stopping
from ..sweeps import cost, engines
from ..sweeps.cost import Imagined
from ..sweeps.engines import Engine
from ..sweeps.share import SMALL, Share, is_address
from ..sweeps.survey import OPEN, Run, State, survey
from ..sweeps.sweep import collect, put
from .options import complaints, console, with_machine
from .watching import conclude, leave, summary, watched

WHAT = {
    "table1": "every method on every benchmark",
    "table2": "pre-allocating 10 to 1000 classes, split-cifar10",
    "table3": "pre-allocating 100 to 1000 classes, split-cifar100",
    "fig-evolution": "accuracy after each task: the replay rows of Table 1",
    "fig-features": "2-D features with a fixed polygon and with a trainable head",
    "questions": "the paper's open questions, such as: fixed head or negatives?",
    "beyond": "improvements of replay: each option alone, and the strong recipe (default: on split-mnist)",
    "rivals": "every method with the simplex and with its native head (default: split-digits, 3 seeds; others 1 seed)",
    "all": "the tables, figures and questions of the paper",
}
FIGURE = "fig-features"  # its runs are in no table


def configs_of(what: str, seeds: int | None, quick: bool, benchmarks: Sequence[str] = ()) -> list[Config]:
    """Return every run that `what` needs: the first seed of every cell, cheap benchmarks first, then the second."""
    chosen: list[Config] = rivals.configs(1 if quick else seeds, benchmarks, quick=quick) if what == "rivals" else []
    seeds = seeds or (1 if quick else paper.SEEDS)
    cells = {
        "table1": paper.cells("table1"),
        "table2": paper.cells("table2"),
        "table3": paper.cells("table3"),
        "fig-evolution": tuple(c for c in paper.cells("table1") if "+" in c.row),
        "questions": (),
        "beyond": (),
        "rivals": (),
        "all": paper.cells(),
    }
    if what not in cells:
        raise nearest("thing to reproduce", what, WHAT)
    chosen += [cell.config(seed, quick=quick) for cell in cells[what] for seed in range(seeds)]
    if what in ("questions", "all"):
        from ..paper.editions import editions  # imported here because most calls need no statistics
        from ..paper.questions import questions

        readings = [each.config for question in questions(editions(())[0]) for each in question.readings]
        chosen += [replace(config, seed=seed, quick=quick) for config in readings for seed in range(seeds)]
    if what == "beyond":
        chosen += beyond.configs(range(seeds), list(benchmarks) or ["split-mnist"], quick=quick)
    cheap = list(BENCHMARKS)  # they are registered from cheap to dear
    return sorted(chosen, key=lambda config: (config.seed, cheap.index(config.benchmark)))


@with_machine("data", "out", "device", "compile", "share")
def reproduce(
    machine: Machine,
    what: Annotated[str, typer.Argument(help="; ".join(f"{k}: {v}" for k, v in WHAT.items()))],
    benchmark: Annotated[list[str] | None, typer.Option("--benchmark", help="only these (repeat for more)")] = None,
    method: Annotated[list[str] | None, typer.Option("--method", help="only these: ewc, replay+simplex, ...")] = None,
    memory: Annotated[list[int] | None, typer.Option("--memory", help="only these memory sizes")] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, help=f"runs per cell  (default: {paper.SEEDS}; 3 for rivals; 1 with --quick)"),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="runs at once  (default: one per core, or four per GPU)")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="CPU threads per run")] = 1,
    records: Annotated[
        str | None,
        typer.Option("--records", help="folder or address (s3://...) to which results are also copied; runs that a "
                                       "folder has already are not run again"),
    ] = None,
    on: Annotated[str, typer.Option("--on", help="local, ray[:ADDRESS] or slurm[:partition=NAME,...]")] = "local",
    cpus: Annotated[float, typer.Option("--cpus", help="CPUs per run (ray, slurm)")] = 1,
    gpus: Annotated[float, typer.Option("--gpus", help="GPUs per run (ray, slurm); a fraction on ray")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="a scaled-down sweep; results are marked quick")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="run failed runs again")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print each run's command and state, and what the sweep costs")
    ] = False,
    as_if: Annotated[
        str | None,
        typer.Option("--as-if", help="with --dry-run: estimate for GPUs with these TFLOPS, such as 19.5 or 19.5x8"),
    ] = None,
    start: Annotated[int, typer.Option("--start", min=1, help="fig-features: classes to begin with")] = 6,
    add: Annotated[int, typer.Option("--add", min=0, help="fig-features: classes added one at a time")] = 3,
) -> None:
    """Reproduce the paper's tables and figures. Finished runs are skipped, interrupted ones resume.

    [dim]holdfast reproduce table1 --benchmark split-mnist --seeds 3[/]
    [dim]holdfast reproduce all --dry-run[/]
    [dim]holdfast reproduce all --dry-run --as-if 19.5x8[/]
    """
    given = {"--benchmark": benchmark, "--method": method, "--memory": memory}
    machine = replace(machine, threads=threads)
    figure = partial(draw_features, machine, records, start, add, quick, dry_run)
    if what == FIGURE:
        if unused := [flag for flag, value in given.items() if value]:
            raise BadConfig(f"{FIGURE} is one figure of two runs; leave out {', '.join(unused)}.")
        return figure()
    distributed.alone("reproduce")
    chosen = narrowed(configs_of(what, seeds, quick, benchmark or ()), benchmark, method, memory, what)
    with_figure = what == "all" and not any(given.values())
    if machine.share is not None:
        shared = Share(machine.share)
        shared.check()
        for config in chosen:
            shared.pull(Path(machine.out) / config.name, SMALL)
    runs = survey(chosen, machine.out, recorded(records))
    imagined = _measured(runs, machine, as_if, dry_run)
    if dry_run:
        for run in runs:
            console.print(f"{run.state:8} {run.config.command()}", highlight=False, soft_wrap=True)
        if imagined is None:
            console.print(summary(runs, jobs or places_of(on, machine)))
        else:
            console.print(f"{summary(runs, imagined.gpus)}: an estimate for {imagined}", highlight=False,
                          soft_wrap=True)
    else:
        sweep_all(runs, machine, engines.engine(on, places=jobs, cpus=cpus, gpus=gpus, machine=machine), records,
                  retry_failed)
    if with_figure:
        figure()
    if any(run.state is State.FAILED for run in runs) and not dry_run:
        complaints.print("Run them again with --retry-failed.")
        raise typer.Exit(1)


def recorded(records: str | None) -> Sequence[Record]:
    """Return the finished runs in the folder of records, if there is one."""
    if records is None or is_address(records) or not Path(records).is_dir():
        return ()
    return read(Path(records)).runs


def _measured(runs: list[Run], machine: Machine, as_if: str | None, dry_run: bool) -> Imagined | None:
    """Measure what the open runs cost on this machine, or count it for an imagined one, which is returned."""
    if as_if is not None and not dry_run:
        raise BadConfig("--as-if estimates the time of an imagined machine: give --dry-run with it.")
    imagined = None if as_if is None else Imagined.read(as_if)
    if any(run.state in OPEN for run in runs):
        with console.status("measuring this machine's speed"):
            cost.measure(runs, machine, imagined)
    return imagined


def sweep_all(runs: list[Run], machine: Machine, engine: Engine, records: str | None, retry_failed: bool) -> None:
    """Execute the missing runs, and copy each result to the records when it is finished."""

    def keep(some: Sequence[Run]) -> None:
        if records:
            collect(some, records)

    keep(runs)
    stopping = watched(runs, machine, engine, retry_failed=retry_failed, finished=lambda run: keep([run]))
    keep(runs)  # also results of other processes
    console.print(summary(runs, engine.places))
    conclude(runs, stopping)


def narrowed(
    configs: list[Config], benchmark: list[str] | None, method: list[str] | None, memory: list[int] | None, what: str
) -> list[Config]:
    """Return the configs that match the filters; raise UnknownName for a value that no run of `what` has."""
    of: dict[str, Callable[[Config], set[str]]] = {
        "benchmark": lambda config: {config.benchmark},
        "method": lambda config: {config.method, f"{config.method}+{config.resolved().head}"},
        "memory": lambda config: {str(config.resolved().get("memory") or 0)},
    }
    for name, wanted in (("benchmark", benchmark), ("method", method), ("memory", memory)):
        if wanted:
            known = set().union(*map(of[name], configs))
            for one in map(str, wanted):
                if one not in known:
                    raise nearest(f"{name} among these runs of {what}", one, known)
            configs = [config for config in configs if of[name](config) & {*map(str, wanted)}]
    return configs


def places_of(on: str, machine: Machine) -> int:
    """Return how many runs fit at once, estimated without contacting a cluster."""
    threads = machine.threads or 1
    return engines.Local(threads=threads if on == "local" else 1, device=machine.device).places


def draw_features(
    machine: Machine, records: str | None, start: int, add: int, quick: bool, dry_run: bool
) -> None:
    """Train both heads in two dimensions and draw their features, one frame per step."""
    out = Path(machine.out) / FIGURE
    if dry_run:
        state = "done" if (out / "features.json").exists() else "missing"
        flags = f" --start {start} --add {add}" + (" --quick" if quick else "")
        console.print(f"{state:8} holdfast reproduce {FIGURE}{flags}", highlight=False, soft_wrap=True)
        return
    from ..paper import features  # imported here because matplotlib is slow to import

    hardware.use_threads(min(machine.threads or 1, hardware.cores()))  # the figure is always made in this process
    hardware.keep_freed_memory()
    with Stopping() as stopping:
        try:
            with progress(console, stopping.asked) as watcher:
                features.feature_figure(
                    out, start=start, add=add, data_root=machine.data, device=machine.device, quick=quick,
                    watcher=watcher,
                )
        except Stopped:
            leave(stopping)
    if records:
        put({"features.json": out / "features.json"}, records)
    console.print(f"The figure is in [bold]{out}[/]: features.png, .svg and .gif", highlight=False)
