"""Beyond the paper at its own protocol: each option of replay alone and the strong recipe, head by head.

`configs` is what `steadfast reproduce beyond` runs; `rows` is the ablation table, beside the paper's row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, pstdev
from typing import Any

from . import paper
from .benchmarks import BENCHMARKS, Benchmark
from .config import Config
from .recipes import strong

PUBLISHED = "published"  # the row of the paper's own numbers
VARIANTS = {PUBLISHED: "the paper's own", "paper": "the paper's recipe, ours"}  # what is shown, where it differs
HEADS = ("simplex", "expanding", "preallocated")
MEMORIES = {
    "split-mnist": (100, 1100), "permuted-mnist": (100, 1100), "split-cifar10": (100, 1100),
    "split-cifar100": (1400, 5600),
}  # the paper's


def variants(benchmark: Benchmark) -> dict[str, dict[str, Any]]:
    """The rows of the ablation, by name: the options each one sets."""
    vary = strong(benchmark).get("vary", "none")
    alone: dict[str, dict[str, Any]] = {
        "paper": {},
        "balance": {"balance": True},
        "vary": {"vary": vary},
        "distill logits": {"distill": "logits"},
        "distill features": {"distill": "features"},
        "insert during": {"insert": "during"},
        "balance + vary": {"balance": True, "vary": vary},
        "strong": {"recipe": "strong"},
    }
    if vary == "none":
        # Permuted pixels allow none; colour images are varied as a whole batch already.
        del alone["vary"], alone["balance + vary"]
    return alone


def title(benchmark: str, variant: str) -> str:
    """How a row is shown; `strong` with what it stands for on this benchmark."""
    if variant != "strong":
        return VARIANTS.get(variant, variant)
    options = strong(BENCHMARKS[benchmark])
    weight = f" (weight {options['distill_weight']:g})" if "distill_weight" in options else ""
    vary = [] if options["vary"] == "none" else [f"vary {options['vary']}"]
    return f"strong: {', '.join(['balance', *vary, 'distill ' + options['distill'] + weight])}"


def configs(
    seeds: Iterable[int],
    benchmarks: Sequence[str] = ("split-mnist",),
    heads: Sequence[str] = HEADS,
    memories: Sequence[int] | None = None,
    **changes: Any,
) -> list[Config]:
    """Every run of the ablation; `memories` are the paper's by default."""

    def sizes(name: str) -> Sequence[int]:
        return memories if memories is not None else MEMORIES.get(name, (BENCHMARKS[name].memory,))

    return [
        Config(name, head=head, memory=memory, seed=seed, **options, **changes)
        for seed in seeds
        for name in benchmarks
        for memory in sizes(name)
        for options in variants(BENCHMARKS[name]).values()
        for head in heads
    ]


def rows(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Results (the dicts of result.json) to rows of the ablation, in its order; only cells that have runs.

    A row is a variant of one benchmark and memory; under each head's name it has the mean, std (ddof 0, as the paper)
    and runs of that cell, or None; the row `published` has the paper's own numbers where it gives them.
    """
    found: dict[tuple[Any, ...], list[float]] = {}
    for record in records:
        if (key := _cell(Config.from_json(record["config"]).resolved())) is not None:
            found.setdefault(key, []).append(record["final_average_accuracy"])
    table: list[dict[str, Any]] = []
    for name, memory in sorted({key[:2] for key in found}, key=lambda pair: (list(BENCHMARKS).index(pair[0]), pair[1])):
        here = {"benchmark": name, "memory": memory}
        table.append({**here, "variant": PUBLISHED, **{head: _published(name, memory, head) for head in HEADS}})
        for variant in variants(BENCHMARKS[name]):
            cells = {head: _summary(found.get((name, memory, variant, head))) for head in HEADS}
            if any(cells.values()):
                table.append({**here, "variant": variant, **cells})
    return table


def _cell(config: Config) -> tuple[str, int, str, str] | None:
    """(benchmark, memory, variant, head) of which this run is one seed, or None if it is of none."""
    if config.method != "replay" or config.head not in HEADS or config.validation or config.benchmark not in BENCHMARKS:
        return None
    for variant, options in variants(BENCHMARKS[config.benchmark]).items():
        wanted = Config(
            config.benchmark, head=config.head, memory=config.memory, seed=config.seed, quick=config.quick, **options
        )
        if wanted.resolved() == config:
            assert config.memory is not None
            return config.benchmark, config.memory, variant, config.head
    return None


def _published(benchmark: str, memory: int, head: str) -> dict[str, Any] | None:
    cell = paper.published(Config(benchmark, head=head, memory=memory))
    return None if cell is None or cell.mean is None else {"mean": cell.mean, "std": cell.std, "runs": paper.SEEDS}


def _summary(values: list[float] | None) -> dict[str, Any] | None:
    return {"mean": mean(values), "std": pstdev(values), "runs": len(values)} if values else None
