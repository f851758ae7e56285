"""`steadfast reproduce`: the paper's tables and figures, from one command that can be stopped for days."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .. import beyond, distributed, engines, paper, performance, progress, sweep
from ..config import Config
from ..errors import BadConfig, nearest
from ..share import SMALL, Share
from ..signals import Stopping
from ..training import Stopped
from .options import CompileOption, ContiguousOption, DataOption, DeviceOption, OutOption, complaints, console
from .watching import conclude, leave, summary, watched

WHAT = {
    "table1": "every method on every benchmark",
    "table2": "pre-allocating 10 to 1000 classes, split-cifar10",
    "table3": "pre-allocating 100 to 1000 classes, split-cifar100",
    "fig-evolution": "accuracy after each task: the replay rows of Table 1",
    "fig-features": "the 2-D features of a fixed polygon against a trainable head's",
    "questions": "the paper's open question: the fixed head or the negatives?",
    "beyond": "what replay can do besides: each option alone and the strong recipe (split-mnist unless named)",
    "all": "the tables, figures and questions of the paper",
}
FIGURE = "fig-features"  # which is not made of runs that a table knows


def configs_of(what: str, seeds: int, quick: bool, benchmarks: Sequence[str] = ()) -> list[Config]:
    """Every run that `what` needs: the cheap benchmarks first, then seed by seed, so that every cell soon has one."""
    chosen: list[Config] = []
    cells = {
        "table1": paper.cells("table1"),
        "table2": paper.cells("table2"),
        "table3": paper.cells("table3"),
        "fig-evolution": tuple(c for c in paper.cells("table1") if "+" in c.row),
        "questions": (),
        "beyond": (),
        "all": paper.cells(),
    }
    if what not in cells:
        raise nearest("thing to reproduce", what, WHAT)
    chosen += [cell.config(seed, quick=quick) for cell in cells[what] for seed in range(seeds)]
    if what in ("questions", "all"):
        from ..report.editions import editions  # here, with what they need for statistics: most calls do not
        from ..report.questions import questions

        readings = [each.config for question in questions(editions(())[0]) for each in question.readings]
        chosen += [replace(config, seed=seed, quick=quick) for config in readings for seed in range(seeds)]
    if what == "beyond":
        chosen += beyond.configs(range(seeds), list(benchmarks) or ["split-mnist"], quick=quick)
    return sorted(chosen, key=lambda c: (sweep.GUESS.get(c.benchmark, 0), c.seed))


def reproduce(
    what: Annotated[str, typer.Argument(help="; ".join(f"{k}: {v}" for k, v in WHAT.items()))],
    benchmark: Annotated[list[str] | None, typer.Option("--benchmark", help="only these (again for more)")] = None,
    method: Annotated[list[str] | None, typer.Option("--method", help="only these: ewc, replay+simplex, ...")] = None,
    memory: Annotated[list[int] | None, typer.Option("--memory", help="only these memory sizes")] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help=f"runs a cell  (default: {paper.SEEDS}; with --quick 1)")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="runs at once  (default: a core a thread; on a GPU, one)")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="CPU threads a run")] = 1,
    compiled: CompileOption = False,
    contiguous: ContiguousOption = False,
    data: DataOption = None,
    out: OutOption = Path("runs"),
    records: Annotated[
        str | None, typer.Option("--records", help="also copy results here as they come: a folder or s3://...")
    ] = None,
    device: DeviceOption = "auto",
    on: Annotated[str, typer.Option("--on", help="local, ray[:ADDRESS] or slurm[:partition=NAME,...]")] = "local",
    cpus: Annotated[float, typer.Option("--cpus", help="CPUs a run (ray, slurm)")] = 1,
    gpus: Annotated[float, typer.Option("--gpus", help="GPUs a run (ray, slurm); a fraction on ray")] = 0,
    share: Annotated[
        str | None, typer.Option("--share", help="s3://bucket/runs, ...: where workers without a common --out meet")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="the same sweep scaled down, marked as such")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="run again what failed")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print each run's own command and how it stands")] = False,
    start: Annotated[int, typer.Option("--start", min=1, help="fig-features: classes to begin with")] = 6,
    add: Annotated[int, typer.Option("--add", min=0, help="fig-features: classes added one at a time")] = 3,
) -> None:
    """Make the paper's tables and figures: do what is missing, skip what is done, resume what was cut off.

    [dim]steadfast reproduce table1 --benchmark split-mnist --seeds 3[/]
    [dim]steadfast reproduce all --dry-run[/]
    """
    given = {"--benchmark": benchmark, "--method": method, "--memory": memory}
    seeds = seeds or (1 if quick else paper.SEEDS)
    if what == FIGURE:
        if unused := [flag for flag, value in given.items() if value]:
            raise BadConfig(f"{FIGURE} is one figure of two runs; leave out {', '.join(unused)}.")
        return draw_features(out, records, start, add, data, device, threads, quick, dry_run)
    distributed.alone("reproduce")
    chosen = narrowed(configs_of(what, seeds, quick, benchmark or ()), benchmark, method, memory, what)
    with_figure = what == "all" and not any(given.values())
    shared = Share(share) if share else None
    if shared is not None:
        shared.check()
        for config in chosen:
            shared.pull(out / config.name, SMALL)
    runs = sweep.survey(chosen, out)
    if dry_run:
        for run in runs:
            console.print(f"{run.state:8} {run.config.command()}", highlight=False, soft_wrap=True)
        console.print(summary(runs, jobs or places_of(on, threads, device)))
        if with_figure:
            draw_features(out, records, start, add, data, device, threads, quick, dry_run)
        return
    engine = engines.engine(on, places=jobs, cpus=cpus, gpus=gpus, threads=threads, device=device)
    keep: Callable[[Sequence[sweep.Run]], None] = partial(sweep.collect, records=records) if records else lambda _: None
    keep(runs)
    stopping = watched(
        runs, out, engine, data_root=data, device=device, threads=threads, compiled=compiled,
        contiguous=contiguous, retry_failed=retry_failed, share=shared, finished=lambda run: keep([run]),
    )
    keep(runs)  # what other processes have done meanwhile, too
    console.print(summary(runs, engine.places))
    conclude(runs, stopping)
    if with_figure:
        draw_features(out, records, start, add, data, device, threads, quick, dry_run)
    if any(run.state == "failed" for run in runs):
        complaints.print("Run them again with --retry-failed.")
        raise typer.Exit(1)


def narrowed(
    configs: list[Config], benchmark: list[str] | None, method: list[str] | None, memory: list[int] | None, what: str
) -> list[Config]:
    """Those that the filters let through; a filter that nothing of `what` has is named, with what there is."""
    of: dict[str, Callable[[Config], set[str]]] = {
        "benchmark": lambda config: {config.benchmark},
        "method": lambda config: {config.method, f"{config.method}+{config.resolved().head}"},
        "memory": lambda config: {str(config.resolved().memory or 0)},
    }
    for name, wanted in (("benchmark", benchmark), ("method", method), ("memory", memory)):
        if wanted:
            known = set().union(*map(of[name], configs))
            for one in map(str, wanted):
                if one not in known:
                    raise nearest(f"{name} among these runs of {what}", one, known)
            configs = [config for config in configs if of[name](config) & {*map(str, wanted)}]
    return configs


def places_of(on: str, threads: int, device: str) -> int:
    """How many at once, as far as it can be told without asking: those of this machine."""
    return engines.Local(threads=threads if on == "local" else 1, device=device).places


def draw_features(
    out: Path, records: str | None, start: int, add: int, data: Path | None, device: str, threads: int, quick: bool,
    dry_run: bool,
) -> None:
    """Learn the 2-D features with both heads and draw them, a frame a step."""
    if dry_run:
        state = "done" if (out / FIGURE / "features.json").exists() else "missing"
        flags = f" --start {start} --add {add}" + (" --quick" if quick else "")
        console.print(f"{state:8} steadfast reproduce {FIGURE}{flags}", highlight=False, soft_wrap=True)
        return
    from .. import features  # here, since it draws, and matplotlib is slow to import

    performance.use_threads(min(threads, performance.cores()))  # it is drawn here, wherever the runs were
    performance.keep_freed_memory()
    folder = out / FIGURE
    with Stopping() as stopping:
        try:
            with progress.live(console, 1 + add, 1, stopping.asked) as watcher:
                features.feature_figure(
                    folder, start=start, add=add, data_root=data, device=device, quick=quick, watcher=watcher
                )
        except Stopped:
            leave(stopping)
    if records:
        sweep.put({"features.json": folder / "features.json"}, records)
    console.print(f"The figure is in [bold]{folder}[/]: features.png, .svg and .gif", highlight=False)
