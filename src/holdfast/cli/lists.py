"""List the benchmarks, heads, methods, backbones, and the data found on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from ..errors import BadData
from .options import complaints, console


def benchmarks() -> None:
    """List the benchmarks."""
    from ..runs.benchmarks import BENCHMARKS

    table = Table(Column("benchmark", no_wrap=True), "what", "tasks", "backbone", "epochs", "memory")
    for name, line in BENCHMARKS.describe().items():
        b = BENCHMARKS[name]
        numbers = (f"{b.tasks} x {b.classes_per_task}", b.backbone, str(b.epochs), str(b.options.get("memory", "")))
        table.add_row(name, line, *numbers)
    console.print(table)
    console.print("Or your own images: arrays:FOLDER, images:FOLDER (docs/scale.md)", highlight=False)


def list_heads() -> None:
    """List the heads, which turn features into classes."""
    from ..heads import HEADS

    _list(HEADS.describe(), "head")


def methods() -> None:
    """List the methods of incremental learning."""
    from ..methods import METHODS

    _list(METHODS.describe(), "method")


def list_backbones() -> None:
    """List the backbones, which turn an image into features."""
    from ..backbones import BACKBONES

    _list(BACKBONES.describe(), "backbone")
    console.print(r"Or any of timm's: timm:NAME (pip install 'holdfast\[timm]')", highlight=False)


def _list(lines: dict[str, str], kind: str) -> None:
    table = Table(Column(kind, no_wrap=True), "what")
    for name, line in lines.items():
        table.add_row(name, line)
    console.print(table)


def show_data(
    name: Annotated[str | None, typer.Argument(help="one data set  (default: all)", show_default=False)] = None,
    folder: Annotated[
        Path | None, typer.Option("--data", envvar="HOLDFAST_DATA", help="folder with the data sets")
    ] = None,
    fetch: Annotated[bool, typer.Option("--fetch", help="download missing files into the cache folder")] = False,
) -> None:
    """Show where each data set was found; download missing ones with --fetch."""
    from .. import data

    table = Table("data set", Column("file", overflow="fold"), "status", Column("where", overflow="fold"))
    failures: list[BadData] = []
    for each in [name] if name else data.names():
        if fetch:
            try:
                data.fetch(each, folder)
            except BadData as error:
                failures.append(error)  # the other data sets may still work
        for part in data.locate(each, folder):
            colour = {"ok": "green", "missing": "yellow", "damaged": "red"}[part.status]
            where = " ".join(str(word) for word in (part.where, part.path) if word)
            table.add_row(each, part.file, f"[{colour}]{part.status}[/]", where)
    console.print(table)
    for failure in failures:
        complaints.print(str(failure), markup=False, highlight=False)
    if failures:
        raise typer.Exit(2)
