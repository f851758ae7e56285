"""Recipes: named sets of replay's options. `paper` is the paper's, with all of them off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .benchmarks import Benchmark


def paper(benchmark: Benchmark) -> dict[str, Any]:
    """As published: remembered samples are trained on as they are."""
    return {}


def strong(benchmark: Benchmark) -> dict[str, Any]:
    """Same network, epochs, memory and stream; the remembered samples are made more of."""
    vary = benchmark.vary if benchmark.vary != benchmark.augment else "none"  # not the same twice
    if benchmark.distill == "logits":
        return {"balance": True, "vary": vary, "distill": "logits", "distill_weight": 2.0}
    return {"balance": True, "vary": vary, "distill": "features"}


RECIPES: dict[str, Callable[[Benchmark], dict[str, Any]]] = {"paper": paper, "strong": strong}
