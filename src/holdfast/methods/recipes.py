"""Recipes: named sets of replay's options. The command line and the estimator expand them into single options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import BadConfig

RECIPES = ("paper", "strong")
STRONG = {"augment_memory": "shift", "distill": "features"}  # unless a benchmark chose otherwise on validation data
NEED_MEMORY = ("augment_memory", "distill", "distill_weight")


def expand(
    recipe: str, given: Mapping[str, Any], *, method: str = "replay", augment: str = "none",
    strong: Mapping[str, Any] = STRONG,
) -> dict[str, Any]:
    """Return the options that `recipe` sets; an option that was given keeps its value.

    `paper` sets none. `strong` sets balance + augment_memory + distill, chosen per benchmark on validation data."""
    if recipe not in RECIPES:
        raise BadConfig(f"recipe is {recipe!r}; choose one of {', '.join(RECIPES)}.")
    if recipe == "paper":
        return dict(given)
    if method != "replay":
        raise BadConfig(f"recipe is {recipe!r}, which is for the method 'replay', not {method!r}; leave it out.")
    chosen = {"balance": True, **strong}
    if chosen.get("augment_memory") == augment:
        chosen["augment_memory"] = "none"  # every image of the batch is augmented that way already
    if given.get("memory") == 0:
        chosen = {name: value for name, value in chosen.items() if name not in NEED_MEMORY}
    if given.get("distill", chosen.get("distill")) != chosen.get("distill"):
        chosen.pop("distill_weight", None)  # it is the weight of the recipe's kind of distillation
    return {**chosen, **given}
