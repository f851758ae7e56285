"""Look for a setting on a validation split; the test set is never touched."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from types import NoneType
from typing import Any, get_args, get_type_hints

from .config import Config
from .errors import BadConfig, nearest

FIXED = {"benchmark", "validation"}  # what is searched on; of no share at all, it would be the test set
SHARE = 0.1  # of the training samples held back, unless the config says otherwise


def grid(config: Config, wishes: Sequence[str]) -> list[Config]:
    """Every combination of wishes such as "strength=1,10,100", each scored on held-back training samples."""
    axes = [_values(wish) for wish in wishes]
    names = [axis[0][0] for axis in axes]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadConfig(f"--search {twice[0]} is given twice; write all its values in one, with commas.")
    base = config if config.validation else dataclasses.replace(config, validation=SHARE)
    return [dataclasses.replace(base, **dict(point)) for point in itertools.product(*axes)]


def _values(wish: str) -> list[tuple[str, Any]]:
    name, equals, text = wish.partition("=")
    hints = get_type_hints(Config)
    name = name.strip().replace("-", "_")
    if name not in hints.keys() - FIXED:
        raise nearest("setting to search over", name, hints.keys() - FIXED)
    if not equals or not text.strip():
        raise BadConfig(f"--search {wish!r} names no values; write it like --search {name}=1,10,100.")
    kinds = [kind for kind in get_args(hints[name]) or (hints[name],) if kind is not NoneType]
    return [(name, value) for value in dict.fromkeys(_parse(name, word.strip(), kinds) for word in text.split(","))]


def _parse(name: str, word: str, kinds: Sequence[type]) -> Any:
    if bool in kinds:
        if word.lower() in ("true", "false"):
            return word.lower() == "true"
        raise BadConfig(f"{word!r} is no value for {name}; choose true or false.")
    for kind in (int, float, str):
        if kind in kinds:
            try:
                return kind(word)
            except ValueError:
                continue
    raise BadConfig(f"{word!r} is no value for {name}; it takes {' or '.join(k.__name__ for k in kinds)}.")
