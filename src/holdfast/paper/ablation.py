"""The ablation of replay under the paper's protocol: each option alone and the strong recipe, for each head.

`configs` returns the runs of `holdfast reproduce beyond`; `rows` returns the ablation table with the paper's row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, pstdev
from typing import Any

from ..methods import recipes
from ..runs.benchmarks import BENCHMARKS, Benchmark
from ..runs.config import Config
from . import cells as paper

PUBLISHED = "published"  # the row of the paper's own numbers
VARIANTS = {PUBLISHED: "the paper's own", "paper": "the paper's recipe, ours"}  # display names that differ
HEADS = ("simplex", "expanding", "preallocated")
MEMORIES = {
    "split-mnist": (100, 1100), "permuted-mnist": (100, 1100), "split-cifar10": (100, 1100),
    "split-cifar100": (1400, 5600),
}  # the paper's


def variants(benchmark: Benchmark) -> dict[str, dict[str, Any]]:
    """Return the options that each row of the ablation sets, by name."""
    every = recipes.expand("strong", {}, augment=benchmark.augment, strong=benchmark.strong)
    vary = every.get("augment_memory", "none")
    alone: dict[str, dict[str, Any]] = {
        "paper": {},
        "balance": {"balance": True},
        "augment memory": {"augment_memory": vary},
        "distill logits": {"distill": "logits"},
        "distill features": {"distill": "features"},
        "store during": {"store": "during"},
        "balance + augment memory": {"balance": True, "augment_memory": vary},
        "strong": every,
    }
    if vary == "none":
        # Permuted pixels allow no augmentation; for colour images `augment` already covers the whole batch.
        del alone["augment memory"], alone["balance + augment memory"]
    return alone


def strong(benchmark: str, **fields: Any) -> Config:
    """Return the config of the strong recipe on a benchmark, with these other fields."""
    return Config(benchmark, **{**variants(BENCHMARKS[benchmark])["strong"], **fields})


def title(benchmark: str, variant: str) -> str:
    """Return a row's display name; for `strong` with its options on this benchmark."""
    if variant != "strong":
        return VARIANTS.get(variant, variant)
    options = variants(BENCHMARKS[benchmark])["strong"]
    weight = f" (weight {options['distill_weight']:g})" if "distill_weight" in options else ""
    vary = options.get("augment_memory", "none")
    augmented = [] if vary == "none" else [f"augment memory {vary}"]
    words = ["balance", *augmented, f"distill {options['distill']}{weight}"]
    return f"strong: {', '.join(words)}"


def configs(
    seeds: Iterable[int],
    benchmarks: Sequence[str] = ("split-mnist",),
    heads: Sequence[str] = HEADS,
    memories: Sequence[int] | None = None,
    **changes: Any,
) -> list[Config]:
    """Return every run of the ablation; `memories` are the paper's by default."""

    def sizes(name: str) -> Sequence[int]:
        return memories if memories is not None else MEMORIES.get(name, (BENCHMARKS[name].options["memory"],))

    return [
        Config(name, head=head, memory=memory, seed=seed, **options, **changes)
        for seed in seeds
        for name in benchmarks
        for memory in sizes(name)
        for options in variants(BENCHMARKS[name]).values()
        for head in heads
    ]


def rows(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the ablation from results (the dicts of result.json); rows without runs are left out.

    A row is one variant on one benchmark and memory. Under each head's name it has the mean, std (ddof 0, as in the
    paper) and number of runs, or None. The row `published` has the paper's own numbers, where it gives them.
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
    """Return the (benchmark, memory, variant, head) that this run belongs to, or None."""
    if config.method != "replay" or config.head not in HEADS or config.validation or config.benchmark not in BENCHMARKS:
        return None
    for variant, options in variants(BENCHMARKS[config.benchmark]).items():
        wanted = Config(
            config.benchmark, head=config.head, memory=config.get("memory"), seed=config.seed, quick=config.quick,
            **options,
        )
        if wanted.resolved() == config:
            return config.benchmark, config.get("memory"), variant, config.head
    return None


def _published(benchmark: str, memory: int, head: str) -> dict[str, Any] | None:
    cell = paper.published(Config(benchmark, head=head, memory=memory))
    return None if cell is None or cell.mean is None else {"mean": cell.mean, "std": cell.std, "runs": paper.SEEDS}


def _summary(values: list[float] | None) -> dict[str, Any] | None:
    return {"mean": mean(values), "std": pstdev(values), "runs": len(values)} if values else None
