"""Named things that others can add to: methods, heads, benchmarks, backbones, data sets, augmentations.

A package outside holdfast adds its own with an entry point in the group `holdfast.methods`, `holdfast.heads`,
`holdfast.benchmarks`, `holdfast.backbones`, `holdfast.datasets` or `holdfast.augmentations`. The entry point names a
module that registers things when it is imported.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from .errors import BadConfig, nearest
from .options import Options

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Map names to things, each with a line of description. An unknown name is answered with the nearest known one.

    `ours` names our own things as "module:attribute". Their modules are imported when they are first used, so that
    listing names does not import PyTorch.
    """

    def __init__(self, kind: str, group: str, ours: Mapping[str, tuple[str, str]] | None = None) -> None:
        self.kind, self.group = kind, group
        self._places = {name: place for name, (place, _) in (ours or {}).items()}
        self._lines = {name: line for name, (_, line) in (ours or {}).items()}
        self._things: dict[str, T] = {}
        self._options: dict[str, type[Options]] = {}
        self._asked_others = False

    def register(self, name: str, line: str, options: type[Options] | None = None) -> Callable[[T], T]:
        """Decorate a thing to add it under `name`: `@METHODS.register("mine", "one line on what it does")`.

        `options` is the dataclass of its options, unless the thing has one itself, called `Options`."""

        def add(thing: T) -> T:
            known = self._things.get(name)
            if name in self._places or (known is not None and not _same(known, thing)):
                raise BadConfig(f"There is a {self.kind} called {name!r} already; choose another name.")
            self._things[name], self._lines[name] = thing, line
            if options is not None:
                self._options[name] = options
            return thing

        return add

    def describe(self) -> dict[str, str]:
        """Return a line for each name."""
        return {name: self._lines[name] for name in self}

    def options(self, name: str) -> type[Options]:
        """Return the dataclass of the options that `name` declares."""
        thing = self[name]
        own: type[Options] = getattr(thing, "Options", Options)
        return self._options.get(name, own)

    def _ask_others(self) -> None:
        """Import what other packages offer, once, when something is looked up that we do not have."""
        if self._asked_others:
            return
        self._asked_others = True
        for entry in entry_points(group=self.group):
            try:
                entry.load()
            except Exception as error:  # another package's fault must not stop ours
                text = f"The {self.kind} {entry.name!r} of {entry.value!r} cannot be loaded: {error}"
                warnings.warn(text, stacklevel=3)

    def __getitem__(self, name: str) -> T:
        if name not in self._places and name not in self._things:
            self._ask_others()
            if name not in self._things:
                raise nearest(self.kind, name, self)
        if name not in self._things:
            module, _, attribute = self._places[name].partition(":")
            self._things[name] = getattr(import_module(module), attribute)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._lines:
            self._ask_others()
        return name in self._lines

    def __iter__(self) -> Iterator[str]:
        self._ask_others()
        return iter(self._lines)

    def __len__(self) -> int:
        self._ask_others()
        return len(self._lines)


def _same(known: object, new: object) -> bool:
    """Return True if this is the same thing once more, as when a notebook's cell is run twice."""
    place = (getattr(known, "__module__", None), getattr(known, "__qualname__", None))
    return known == new or (None not in place and place == (new.__module__, getattr(new, "__qualname__", None)))
