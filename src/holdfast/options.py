"""Options belong to whoever uses them: a method, a head, a backbone declares a frozen dataclass of `option` fields.

From that one declaration come the flags of the command line, the validation, the JSON and the hash of a run, the
values that `--search` may try, and the tables of options in the documentation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Any, ClassVar, get_args, get_type_hints

from .errors import BadConfig, hint

LARGEST_COUNT = 2**31 - 1
LARGEST_NUMBER = 1e30
Choices = Iterable[str] | Callable[[], Iterable[str]]


def option(
    default: Any, help: str, *, at_least: float | None = None, above: float | None = None, at_most: float | None = None,
    below: float | None = None, choices: Choices | None = None,
) -> Any:
    """Declare a dataclass field with its default, help text, and the values it may have."""
    limits = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    return field(default=default, metadata={"help": help, "choices": choices, **limits})


@dataclass(frozen=True)
class Options:
    """The base of every set of options. A value that cannot be is refused when the set is built."""

    fallbacks: ClassVar[Mapping[str, Any]] = {}  # values of None where the benchmark has no default of its own

    def __post_init__(self) -> None:
        for each in declared(type(self)):
            each.check(getattr(self, each.name))

    def canonical(self, run: Any) -> Any:
        """Return these options in one spelling, so that equal settings have one hash."""
        return self

    def check_with(self, run: Any) -> None:
        """Raise BadConfig if these options do not fit the rest of a run.

        `run` has `benchmark`, `classes`, `method`, `head`, `slots` and `batch`."""


@dataclass(frozen=True)
class Option:
    """One declared option, as the command line, the validation and the documentation see it."""

    name: str
    kind: type  # int, float, bool or str
    optional: bool  # whether None is allowed: the default then depends on the benchmark
    default: Any
    metadata: Any

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def help(self) -> str:
        return str(self.metadata.get("help", ""))

    @property
    def choices(self) -> tuple[str, ...]:
        known = self.metadata.get("choices")
        return tuple(known() if callable(known) else known or ())

    def check(self, value: Any) -> None:
        """Raise BadConfig with the value seen and the values wanted."""
        if value is None and self.optional:
            return
        if self.kind is bool:
            if not isinstance(value, bool):
                raise BadConfig(f"{self.name} is {value!r}; it must be true or false.")
        elif self.kind is str:
            self._check_name(value)
        else:
            self._check_number(value)

    def _check_name(self, value: Any) -> None:
        if not isinstance(value, str):
            raise BadConfig(f"{self.name} is {value!r}; it must be a name.")
        if self.choices and value not in self.choices:
            known = ", ".join(self.choices)
            raise BadConfig(f"{self.name} is {value!r}; choose one of {known}.{hint(value, self.choices)}")

    def _check_number(self, value: Any) -> None:
        whole = self.kind is int
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not self._inside(value):
            raise BadConfig(f"{self.name} is {shown(value)}; it must be {self.wanted()}.")
        if abs(value) > (LARGEST_COUNT if whole and self.metadata.get("at_most") is None else LARGEST_NUMBER):
            largest = f"{LARGEST_COUNT:,}" if whole else f"{LARGEST_NUMBER:g}"
            raise BadConfig(f"{self.name} is {shown(value)}; the largest possible value is {largest}.")

    def _inside(self, value: float) -> bool:
        limit = self.metadata.get
        return (
            (isinstance(value, int) or math.isfinite(value))
            and (limit("at_least") is None or value >= limit("at_least"))
            and (limit("above") is None or value > limit("above"))
            and (limit("at_most") is None or value <= limit("at_most"))
            and (limit("below") is None or value < limit("below"))
        )

    def wanted(self) -> str:
        """Say in words which numbers are allowed: `a whole number, 1 or more`."""
        limit, words = self.metadata.get, []
        if limit("at_least") is not None:
            words.append(f"{limit('at_least'):g} or more")
        if limit("above") is not None:
            words.append(f"above {limit('above'):g}")
        if limit("at_most") is not None:
            words.append(f"at most {limit('at_most'):g}")
        if limit("below") is not None:
            words.append(f"below {limit('below'):g}")
        return ", ".join(["a whole number" if self.kind is int else "a finite number", *words])

    def parse(self, text: str) -> Any:
        """Read a value from the command line's text."""
        if self.optional and text.lower() == "none" and "none" not in self.choices:
            return None
        if self.kind is bool:
            if text.lower() not in ("true", "false"):
                raise BadConfig(f"{text!r} is no value for {self.name}; choose true or false.")
            return text.lower() == "true"
        try:
            value = self.kind(text)
        except ValueError:
            raise BadConfig(f"{text!r} is no value for {self.name}; it must be {self.wanted()}.") from None
        self.check(value)
        return value


def declared(kind: type[Any]) -> tuple[Option, ...]:
    """List the options that a dataclass declares, in their order."""
    return _declared(kind)  # type: ignore[arg-type]


@cache
def _declared(kind: Any) -> tuple[Option, ...]:
    hints = get_type_hints(kind)
    found = []
    for each in fields(kind):
        types = get_args(hints[each.name]) or (hints[each.name],)
        known = [part for part in types if part is not NoneType]
        default = None if each.default is MISSING else each.default
        found.append(Option(each.name, known[0], NoneType in types, default, each.metadata))
    return tuple(found)


def shown(value: Any) -> str:
    """Print a value for an error message; a number of a thousand digits is cut."""
    if isinstance(value, int) and abs(value) > 10**40:
        return "a number of more than 40 digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
