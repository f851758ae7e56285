"""The progress bar of a run, and the table of its result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..learning.training import Watcher
from ..paper.cells import Cell

REFRESH = 0.2  # seconds between updates, so that steps do not wait for the terminal


@contextmanager
def live(console: Console, tasks: int, epochs: int, stop: Any) -> Iterator[Watcher]:
    """Show a progress bar over the run's epochs, with samples per second and the accuracy so far."""
    bar = Progress(
        TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("epochs"),
        TextColumn("{task.fields[speed]}"), TextColumn("{task.fields[note]}"), TimeRemainingColumn(),
        console=console,
    )
    with bar:
        line: TaskID | None = None  # created at the first step: a refused or finished run shows no bar
        seen, shown, began = 0, 0.0, time.monotonic()

        def update(**fields: Any) -> None:
            nonlocal line
            if line is None:
                line = bar.add_task("task 1", total=tasks * epochs, speed="", note="")
            bar.update(line, **fields)

        def step(samples: int) -> None:
            nonlocal seen, shown
            seen += samples
            now = time.monotonic()
            if now - shown > REFRESH:
                shown = now
                update(speed=f"{seen / max(now - began, 1e-6):,.0f} new samples/s")

        def epoch(record: dict[str, Any]) -> None:
            done = (record["task"] - 1) * epochs + record["epoch"]
            update(completed=done, description=f"task {record['task']}/{tasks}")

        def task(record: dict[str, Any]) -> None:
            accuracies = record["accuracies"]
            update(note=f"accuracy {sum(accuracies) / len(accuracies):.1f} %")

        yield Watcher(step=step, epoch=epoch, task=task, stop=stop)


def show_result(console: Console, result: dict[str, Any], cell: Cell | None) -> None:
    """Print the accuracy matrix, the final average accuracy, and the paper's number if there is one."""
    matrix = result["accuracy_matrix"]
    table = Table(title="Accuracy (%) on each task, after learning each task", title_justify="left")
    table.add_column("after task", justify="right")
    for index in range(len(matrix[-1])):
        table.add_column(f"{index + 1}", justify="right")
    table.add_column("average", justify="right", style="bold")
    for index, (row, average) in enumerate(zip(matrix, result["average_accuracy"])):
        cells = [f"{value:.1f}" for value in row] + [""] * (len(matrix[-1]) - len(row))
        table.add_row(str(index + 1), *cells, f"{average:.2f}")
    console.print(table)
    paper = ""
    if cell is not None and cell.mean is not None:
        paper = f"   (the paper: {cell.mean:.2f} ± {cell.std:.2f} over 10 seeds)"
    if result.get("quick"):
        console.print("[yellow]quick: scaled down, not the protocol's numbers[/]")
    console.print(f"Final average accuracy [bold]{result['final_average_accuracy']:.2f} %[/]{paper}")
    console.print(f"Forgetting {result['forgetting']:.2f}   training took {result['seconds']:.0f} s")
    if result["mean_drift"] is not None:
        console.print(
            f"Old classes since they were learned: the head's directions turned {result['mean_head_drift']:.1f}°, "
            f"the mean test features {result['mean_drift']:.1f}°"
        )
