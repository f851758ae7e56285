"""The table of all methods, each with the simplex and with its native head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from ..paper.rivals import FIXED, Row, Side, heads_of
from ..quantities import byte_size, number, signed

EXPLAINED = (
    "Accuracy: final average accuracy in percent, mean ± standard deviation (ddof 0) over seeds. Turned: how far the "
    "mean features of old classes turned since they were learned, in percent of the angle between classes. "
    "Compatibility: AM, what a search in the galleries of all earlier models finds, in percent. Kept: bytes kept from "
    "task to task besides the network. Time: training time per step, relative to replay with the same kind of head; "
    "streaming methods work in their first epoch only, and the mean is over all epochs."
)
NONE = "–"


def _shown(value: float | None, form: Callable[[float], str]) -> str:
    return NONE if value is None else form(value)


COLUMNS: dict[str, Callable[[Side], str]] = {
    "accuracy": lambda side: number(side.accuracy, side.std),
    "forgetting": lambda side: _shown(side.forgetting, "{:.1f}".format),
    "turned": lambda side: _shown(side.turned, "{:.0f} %".format),
    "compatibility": lambda side: _shown(side.compatibility, "{:.3g}".format),
    "kept": lambda side: _shown(side.kept, byte_size),
    "time": lambda side: _shown(side.time, "{:.2f}".format),
}


def columns(rows: Sequence[Row]) -> dict[str, Callable[[Side], str]]:
    """Return the table's columns; that of compatibility only if a record has it."""
    known = any(side is not None and side.compatibility is not None for row in rows for side in row.sides)
    return {name: shown for name, shown in COLUMNS.items() if known or name != "compatibility"}


def benchmarks(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return the rows of each benchmark."""
    return [(name, list(some)) for name, some in groupby(rows, lambda row: row.benchmark)]


def cells(row: Row, shown: dict[str, Callable[[Side], str]]) -> list[str]:
    """Return one row's texts: two per column, then the difference in accuracy and the numbers of seeds."""
    return [*(NONE if side is None else show(side) for show in shown.values() for side in row.sides), *_compared(row)]


def native(row: Row) -> str:
    """Return the name of the method's native head; a dash if it is the simplex."""
    head = heads_of(row.method)[-1]
    return NONE if head == FIXED else head


def markdown(rows: Sequence[Row]) -> list[str]:
    """Return every number, one block per benchmark, one line per method and head."""
    lines: list[str] = []
    for name, some in benchmarks(rows):
        shown = columns(some)
        texts = [[row.method, side.head, *(show(side) for show in shown.values()), str(len(side.runs))]
                 for row in some for side in row.sides if side is not None]
        lines += _table(name, ["method", "head", *shown, "seeds"], 2, texts)
    return lines[:-1]


def side_by_side(rows: Sequence[Row]) -> list[str]:
    """Return the accuracies with both heads, one block per benchmark, one line per method."""
    lines: list[str] = []
    for name, some in benchmarks(rows):
        texts = [[row.family, row.method, native(row), *cells(row, {"accuracy": COLUMNS["accuracy"]})] for row in some]
        titles = ["family", "method", "native head", "simplex", "native", "simplex − native", "seeds"]
        lines += _table(name, titles, 3, texts)
    return lines[:-1]


def _compared(row: Row) -> tuple[str, str]:
    seeds = "/".join(str(len(side.runs)) for side in row.sides if side is not None)
    return _shown(row.gain, signed), seeds


def _table(name: str, titles: list[str], words: int, texts: list[list[str]]) -> list[str]:
    """Return a table under its name; the columns after the first `words` are aligned to the right."""
    rule = "|" + "---|" * words + "--:|" * (len(titles) - words)
    heading, *lines = [f"| {' | '.join(line)} |" for line in (titles, *texts)]
    return [f"{name}:", "", heading, rule, *lines, ""]
