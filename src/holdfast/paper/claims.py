"""The paper's claims, tested over seeds: each with its statistic, its confidence interval and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ..runs.config import Config
from ..runs.records import Record
from . import cells as paper
from .ablation import strong
from .cells import Cell
from .editions import Edition, key
from .evidence import GULF, MARGIN, TURN, Claim, Evidence, Values, far_below, judged, more, no_worse, turns_more

PENALTIES = ("ewc", "online-ewc", "si", "mas")

Measure = Callable[[Record], float | None]
_MOVES: tuple[tuple[str, str, Measure], ...] = (
    ("weights", "°", lambda run: run.head_drift),
    ("features", " %", lambda run: run.relative_drift),
    ("compatibility", " points", lambda run: run.lost_in_galleries),
)


def claims(edition: Edition) -> list[Claim]:
    """Return the five claims with their evidence."""
    return [_as_good(edition), _memory(edition), _preallocating(edition), _geometry(edition), _penalties(edition)]


def _as_good(edition: Edition) -> Claim:
    pairs = [(cell, _cell("replay+expanding", cell.benchmark, cell.memory)) for cell in _table1("replay+simplex")]
    return Claim(
        "The fixed simplex is as good as an expanding classifier",
        f"Accuracy of simplex minus expanding. Holds if the interval is above −{MARGIN:g} point, fails if below it.",
        "points",
        tuple(
            judged(_place(a), _accuracy(edition, a), _accuracy(edition, b), no_worse, _less(a.mean, b.mean))
            for a, b in pairs
        ),
    )


def _memory(edition: Edition) -> Claim:
    evidence = []
    for benchmark in dict.fromkeys(cell.benchmark for cell in _table1("replay+simplex")):
        lost, published = {}, {}
        for row in ("replay+simplex", "replay+expanding"):
            small, large = sorted(_table1(row, benchmark), key=lambda cell: cell.memory or 0)
            lost[row] = _minus(_accuracy(edition, large), _accuracy(edition, small))
            published[row] = _less(large.mean, small.mean)
        spared = _less(published["replay+expanding"], published["replay+simplex"])
        where = f"{benchmark}, M={large.memory} to {small.memory}"
        evidence.append(judged(where, lost["replay+expanding"], lost["replay+simplex"], more, spared))
    return Claim(
        "Less memory hurts it less",
        "Accuracy lost with less memory: expanding minus simplex. Holds if the interval is above 0; otherwise fails "
        f"if it is below {MARGIN:g} point.",
        "points",
        tuple(evidence),
    )


def _preallocating(edition: Edition) -> Claim:
    """Test the claim on the paper's Tables 2 and 3, and on other replay runs that differ only in their slots."""
    planned = {key(cell.config()): cell for table in ("table2", "table3") for cell in paper.cells(table)}
    families: dict[Config, set[int]] = {}
    for config in [*planned, *edition.groups]:
        if config.head == "simplex" and config.method == "replay" and config.slots:
            families.setdefault(replace(config, slots=None), set()).add(config.slots)
    evidence = []
    for family, sizes in families.items():
        few = replace(family, slots=min(sizes))
        for size in sorted(sizes)[1:]:
            many = replace(family, slots=size)
            shown = [planned[config].mean if config in planned else None for config in (many, few)]
            a, b = (_values(edition.groups.get(config, ())) for config in (many, few))
            where = f"{family.benchmark}, M={family.get('memory')}, K={few.slots} to {size}"
            evidence.append(judged(where, a, b, no_worse, _less(*shown)))
    return Claim(
        "Pre-allocating 10 to 1000 classes costs nothing",
        "Accuracy of the simplex with many slots minus with the fewest. Holds if the interval is above "
        f"−{MARGIN:g} point, fails if below it.",
        "points",
        tuple(evidence),
    )


def _geometry(edition: Edition) -> Claim:
    evidence: list[Evidence] = []
    for cell in _table1("replay+simplex"):
        free = edition.of_cell(_cell("replay+expanding", cell.benchmark, cell.memory))
        evidence += _moves(_place(cell), "simplex", edition.of_cell(cell), free)
        for name, config in _beyond(cell).items():
            evidence += [replace(each, beyond=True) for each in _moves(_place(cell), name, edition.of(config), free)
                         if each.interval is not None and not each.where.endswith("weights")]
    return Claim(
        "The geometry does not move where a trainable head's does",
        "How far old classes turned between being learned and the end: expanding head minus simplex. Weights are "
        "measured in degrees (fixed weights cannot turn). Mean features are measured in percent of the mean angle "
        "between classes, because the two heads have different spaces. Compatibility is BC, what the last model "
        "loses when it searches the galleries of earlier models: simplex minus expanding, in points. Holds if the "
        f"interval is above 0; otherwise fails if it is below {TURN:g}. The sphere and the strong recipe are not the "
        "paper's; they are shown beside it.",
        "difference",
        tuple(evidence),
    )


def _beyond(cell: Cell) -> dict[str, Config]:
    """Return the recipes that hold the features, which the paper does not have."""
    fields = {"memory": cell.memory, "head": "simplex"}
    sphere = {"vertex_probability": 0.99}
    return {
        "sphere": Config(cell.benchmark, **fields, **sphere),
        "strong": strong(cell.benchmark, **fields),
        "strong + sphere": strong(cell.benchmark, **fields, **sphere),
    }


def _moves(place: str, name: str, fixed: Sequence[Record], free: Sequence[Record]) -> list[Evidence]:
    """Compare how far weights and features of two sets of runs turned, and what a search in old galleries lost."""
    where, found = place if name == "simplex" else f"{place}, {name}", []
    for what, unit, of in _MOVES:
        still, moved = _known(fixed, of), _known(free, of)
        if what == "features" and not (still and moved):  # older records have only degrees
            unit, still, moved = "°", _known(fixed, _degrees), _known(free, _degrees)
        note = f"{name} {_mean(still):.1f}{unit}, expanding {_mean(moved):.1f}{unit}" if still and moved else ""
        a, b = (still, moved) if what == "compatibility" else (moved, still)
        found.append(judged(f"{where}, {what}", a, b, turns_more, None, note))
    return found


def _penalties(edition: Edition) -> Claim:
    evidence = []
    for row in PENALTIES:
        for cell in _table1(row):
            rival = min(_table1("replay+simplex", cell.benchmark), key=lambda c: c.memory or 0)
            evidence.append(judged(
                f"{row} on {cell.benchmark} (replay: M={rival.memory})",
                _accuracy(edition, rival), _accuracy(edition, cell), far_below, _less(rival.mean, cell.mean),
            ))
    return Claim(
        "Replay beats the regularisation methods by far",
        "Accuracy of replay with the simplex and the smallest memory, minus the method's. Holds if the interval is "
        f"above {GULF:g} points, fails if below it.",
        "points",
        tuple(evidence),
    )


def _table1(row: str, benchmark: str | None = None) -> list[Cell]:
    return [cell for cell in paper.cells("table1") if cell.row == row and benchmark in (None, cell.benchmark)]


def _cell(row: str, benchmark: str, memory: int | None) -> Cell:
    return next(cell for cell in _table1(row, benchmark) if cell.memory == memory)


def _place(cell: Cell) -> str:
    return f"{cell.benchmark}, M={cell.memory}"


def _values(runs: Iterable[Record]) -> Values:
    return {run.seed: run.accuracy for run in runs}


def _accuracy(edition: Edition, cell: Cell) -> Values:
    return _values(edition.of_cell(cell))


def _known(runs: Iterable[Record], measure: Measure) -> Values:
    return {run.seed: value for run in runs if (value := measure(run)) is not None}


def _degrees(run: Record) -> float | None:
    return run.drift


def _minus(a: Values, b: Values) -> Values:
    return {seed: a[seed] - b[seed] for seed in a.keys() & b.keys()}


def _less(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _mean(values: Values) -> float:
    return sum(values.values()) / len(values)
