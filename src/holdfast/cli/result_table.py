"""The table of a run's result."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from ..paper.cells import Cell


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
