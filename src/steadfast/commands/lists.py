"""What there is: benchmarks, heads, methods, backbones, and the data found on this machine."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Column, Table

from .. import backbones, data, heads
from ..benchmarks import BENCHMARKS
from ..errors import BadData
from ..methods import METHODS
from .options import DataOption, complaints, console


def benchmarks() -> None:
    """List the benchmarks."""
    table = Table(Column("benchmark", no_wrap=True), "what", "tasks", "backbone", "epochs", "memory")
    for name, line in BENCHMARKS.describe().items():
        b = BENCHMARKS[name]
        table.add_row(name, line, f"{b.tasks} x {b.classes_per_task}", b.backbone, str(b.epochs), str(b.memory))
    console.print(table)
    console.print("Or your own images: arrays:FOLDER, images:FOLDER (docs/scale.md)", highlight=False)


def list_heads() -> None:
    """List the heads: what turns features into classes."""
    _list(heads.HEADS.describe(), "head")


def methods() -> None:
    """List the methods: how to learn without forgetting."""
    lines = METHODS.describe()
    _list({"replay": lines.pop("replay"), **lines}, "method")  # the paper's first


def list_backbones() -> None:
    """List the backbones: from an image to features."""
    _list(backbones.describe(), "backbone")
    console.print(r"Or any of timm's: timm:NAME (pip install 'steadfast\[timm]')", highlight=False)


def _list(lines: dict[str, str], kind: str) -> None:
    table = Table(Column(kind, no_wrap=True), "what")
    for name, line in lines.items():
        table.add_row(name, line)
    console.print(table)


def show_data(
    name: Annotated[str | None, typer.Argument(help="one data set  (default: all)", show_default=False)] = None,
    data_folder: DataOption = None,
    fetch: Annotated[bool, typer.Option("--fetch", help="download what is missing into the cache folder")] = False,
) -> None:
    """Show which data is found where, and fetch what is missing."""
    table = Table("data set", Column("file", overflow="fold"), "status", Column("where", overflow="fold"))
    failures: list[BadData] = []
    for each in [name] if name else data.names():
        if fetch:
            try:
                data.fetch(each, data_folder)
            except BadData as error:
                failures.append(error)  # the others may still be had
        for part in data.locate(each, data_folder):
            colour = {"ok": "green", "missing": "yellow", "damaged": "red"}[part.status]
            where = " ".join(str(word) for word in (part.where, part.path) if word)
            table.add_row(each, part.file, f"[{colour}]{part.status}[/]", where)
    console.print(table)
    for failure in failures:
        complaints.print(str(failure), markup=False, highlight=False)
    if failures:
        raise typer.Exit(2)
