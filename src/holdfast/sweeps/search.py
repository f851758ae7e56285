"""Search for hyperparameters on a validation split; the test set is never used."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import BadConfig, nearest
from ..options import Option, declared
from ..runs.config import PROTOCOL, Config

FIXED = {"validation"}  # a search without validation samples would use the test set
SHARE = 0.1  # default fraction of the training samples for validation


def grid(config: Config, wishes: Sequence[str]) -> list[Config]:
    """Return every combination of wishes such as "strength=1,10,100", each scored on the validation split."""
    axes = [_values(config, wish) for wish in wishes]
    names = [axis[0][0] for axis in axes]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadConfig(f"--search {twice[0]} is given twice; write all its values in one, with commas.")
    base = config if config.validation else replace(config, validation=SHARE)
    return [replace(base, **dict(point)) for point in itertools.product(*axes)]


def searchable(config: Config) -> dict[str, Option]:
    """Return the protocol's fields and the options of the config's method, head and backbone, by name."""
    found = {each.name: each for each in PROTOCOL if each.name not in FIXED}
    return found | {each.name: each for _, _, declares in config.owners() for each in declared(declares)}


def setting(wish: str) -> tuple[str, str]:
    """Split "less-forget=1,5" into the setting's name, "less_forget", and its values, "1,5"."""
    name, _, text = wish.partition("=")
    return name.strip().lstrip("-").replace("-", "_"), text.strip()


def _values(config: Config, wish: str) -> list[tuple[str, Any]]:
    (name, text), known = setting(wish), searchable(config)
    if name not in known:
        raise nearest("setting to search over", name, known)
    if not text:
        raise BadConfig(f"--search {wish!r} names no values; write it like --search {name}=1,10,100.")
    return [(name, value) for value in dict.fromkeys(known[name].parse(word.strip()) for word in text.split(","))]
