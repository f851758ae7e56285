"""Named things that others can add to: methods, heads, benchmarks, backbones, augmentations.

A package outside steadfast adds its own by an entry point in the group `steadfast.methods`, `steadfast.heads`,
`steadfast.benchmarks`, `steadfast.backbones` or `steadfast.augmentations`; its module registers itself on import.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from types import CodeType
from typing import Generic, TypeVar

from .errors import BadConfig, nearest

T = TypeVar("T")


def _substance(thing: object) -> str:
    """What a function does, as far as can be seen (not in globals), wherever it stands: a notebook's cell that is run
    twice makes the same. Anything else as it is shown."""
    function = inspect.unwrap(thing) if callable(thing) else thing
    if not inspect.isfunction(function):
        return repr(thing)
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    return repr((_steps(function.__code__), function.__defaults__, function.__kwdefaults__, held))


def _steps(code: CodeType) -> tuple[object, ...]:
    inner = [_steps(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    return code.co_code, code.co_names, inner


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from name to thing, with a line of description each; unknown names get the nearest one."""

    def __init__(self, kind: str, group: str) -> None:
        self.kind, self.group = kind, group
        self._things: dict[str, T] = {}
        self._lines: dict[str, str] = {}
        self._asked_others = False

    def register(self, name: str, line: str) -> Callable[[T], T]:
        """Decorator: `@methods.register("ewc", "one line on what it does")`."""

        def add(thing: T) -> T:
            known = self._things.get(name)
            if known is not None and _substance(known) != _substance(thing):
                told = f"{known.__module__}.{known.__qualname__}" if hasattr(known, "__qualname__") else repr(known)
                raise BadConfig(
                    f"The {self.kind} {name!r} is registered already, as {told}, which is another; choose another name."
                )
            self._things[name], self._lines[name] = thing, line
            return thing

        return add

    def describe(self) -> dict[str, str]:
        """A line for each name."""
        return {name: self._lines[name] for name in self}

    def _ask_others(self) -> None:
        """Import what other packages offer, once, and only when something is looked up."""
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
        if name not in self._things:
            self._ask_others()
        if name not in self._things:
            raise nearest(self.kind, name, self._things)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        self._ask_others()
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        self._ask_others()
        return iter(self._things)

    def __len__(self) -> int:
        self._ask_others()
        return len(self._things)
