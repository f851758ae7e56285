"""`holdfast report`: build one page from the results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import complaints, console


def report(
    folder: Annotated[
        Path | None,
        typer.Argument(help="records or run folders  (default: results, or else runs)", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="folder for the page")] = Path("report"),
) -> None:
    """Build one HTML page from all results: the paper's tables with ours beside them, figures, claims and runs.

    Also as Markdown, CSV and LaTeX. Broken records are listed and left out.

    [dim]holdfast report[/]                 [dim]from results/, or runs/[/]
    [dim]holdfast report runs --out page[/] [dim]from a sweep that is still running[/]
    """
    from ..report import page as reports  # imported here because matplotlib takes a second

    if folder is None:
        folder = next((path for path in (Path("results"), Path("runs")) if path.is_dir()), None)
    with console.status("reading the records") as status:
        made, written = reports.write(folder, out, lambda text: status.update(text))
    for each in made.found.left_out:
        complaints.print(f"left out: {each.name}: {each.reason}", highlight=False, markup=False, soft_wrap=True)
    runs = len(made.found.runs)
    where = folder if folder is not None else "results/ or runs/, which do not exist"
    console.print(f"{runs} run{'' if runs == 1 else 's'} from {where}", highlight=False, markup=False)
    for path in written:
        console.print(f"  {path}", highlight=False, markup=False, soft_wrap=True)
