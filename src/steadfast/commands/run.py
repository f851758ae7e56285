"""`steadfast run`: one run, watched live."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from .. import experiment, paper, progress
from ..config import Config
from ..signals import Stopping
from ..training import Stopped
from .options import DataOption, DeviceOption, OutOption, ThreadsOption, complaints, console, with_config

RUNS = Path("runs")


@with_config
def run(
    config: Config,
    data: DataOption = None,
    out: OutOption = RUNS,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    resume: Annotated[bool, typer.Option("--resume/--fresh", help="go on where it was stopped, or start anew")] = True,
) -> None:
    """Learn a benchmark's classes task by task, and measure everything.

    The same command again goes on where it was stopped, or shows the result if it is finished.

    [dim]steadfast run split-digits[/]                                   [dim]the demo, a minute[/]
    [dim]steadfast run split-mnist --memory 100[/]                       [dim]the paper's method[/]
    [dim]steadfast run split-mnist --memory 100 --head expanding[/]      [dim]its rival[/]
    """
    full = config.resolved()
    folder = experiment.RunFolder(out / full.name)
    console.print(f"[bold]{full.command()}[/]", highlight=False, soft_wrap=True)
    with Stopping() as stopping:
        try:
            with progress.live(console, full.phases(), full.epochs or 1, stopping.asked) as watcher:
                result = experiment.run(
                    full, out, data_root=data, device=device, threads=threads, watcher=watcher, resume=resume
                )
        except Stopped:
            elsewhere = {"--data": data, "--out": out if out != RUNS else None, "--threads": threads}
            flags = [f" {flag} {shlex.quote(str(value))}" for flag, value in elsewhere.items() if value is not None]
            told = f"Stopped and saved in {folder.path}. Go on with the same command:\n{full.command()}{''.join(flags)}"
            complaints.print(told, highlight=False, markup=False, soft_wrap=True)
            raise typer.Exit(stopping.exit_code) from None
    progress.show_result(console, result, paper.published(full))
    console.print(f"Everything is in {folder.path}: result.json, accuracy.png, ...", markup=False, soft_wrap=True)
