"""The errors that a user can cause, and suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HoldfastError(Exception):
    """The base of all our errors. The message names the thing, the value seen and the next step."""


class Stopped(Exception):
    """A long task was asked to stop, and has saved its state."""


class UnknownName(HoldfastError, KeyError):
    """A name that is not registered."""

    def __str__(self) -> str:
        return str(self.args[0])


class BadConfig(HoldfastError, ValueError):
    """A value, or a combination of values, that cannot work."""


class BadInput(HoldfastError, ValueError):
    """Samples or labels that cannot be learned from."""


class BadData(HoldfastError):
    """A data file that is absent, truncated or altered."""


class BadFile(HoldfastError):
    """A checkpoint, result or model file that is damaged, hostile or of an unknown version."""


class CannotWrite(HoldfastError, OSError):
    """A file that cannot be written, such as on a full disk; the previous file is intact."""


class CannotRead(HoldfastError, OSError):
    """A file that cannot be read because the disk or the memory failed; the file may be good and is left unchanged."""


class NewerFile(BadFile):
    """An intact file in a format that only a newer holdfast can read."""


class RunLocked(HoldfastError):
    """Another process works on this run folder."""


class LossNotFinite(HoldfastError):
    """Training produced a NaN or an infinite loss."""


def hint(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" with the closest known name, or "" if none is close."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.4)
    return f" Did you mean {close[0]!r}?" if close else ""


MOST_NAMES = 40  # known names that an error lists


def nearest(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """Return the error for an unknown `name`, with the closest known name and a list of the others."""
    names = sorted(known)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    listed = ", ".join(names[:MOST_NAMES]) + more
    return UnknownName(f"There is no {kind} called {name!r}.{hint(name, names)} Known: {listed}.")
