"""`holdfast cache`: see the vectors that embedders have made, and delete them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from ..quantities import byte_size
from .options import console


def cache(clear: Annotated[bool, typer.Option("--clear", help="delete every vector")] = False) -> None:
    """Show how many vectors are kept of each embedder, so that no sample is embedded twice; or delete them."""
    from ..embedders import Cache

    kept = Cache()
    if clear:
        kept.clear()
    table = Table("embedder", "vectors", "size")
    for name, (count, size) in sorted(kept.size().items()):
        table.add_row(name, f"{count:,}", byte_size(size))
    console.print(table)
    told = f"In {kept.path}; the oldest are deleted beyond {byte_size(kept.limit)}."
    console.print(told, markup=False, soft_wrap=True)
