"""The error of a check, and what several checks require."""

from __future__ import annotations

from typing import Any

from ..options import declared
from ..registry import Registry


class CheckFailed(AssertionError):
    """A plug-in breaks a promise."""


def require(holds: bool, message: str) -> None:
    """Raise CheckFailed with this message unless the promise holds; `python -O` does not remove it."""
    if not holds:
        raise CheckFailed(message)


def check_entry(registry: Registry[Any], name: str) -> None:
    """Require a name in lower case, one line of description, and options with a help text and valid defaults."""
    line = registry.describe().get(name, "")
    require(name == name.lower(), f"The {registry.kind} {name!r} has capital letters: register it in lower case.")
    require(bool(line) and "\n" not in line,
            f"The {registry.kind} {name!r} needs one line of description, not {line!r}.")
    for each in declared(registry.options(name)):
        each.check(each.default)
        require(bool(each.help) and not each.help.endswith("."),
                f"The option {each.name!r} of {name!r} needs a help text without a full stop, not {each.help!r}.")
