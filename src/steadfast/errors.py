"""The errors a user can cause, and how a wrong name is answered with the nearest right one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SteadfastError(Exception):
    """Anything steadfast refuses: the message names the thing, the value seen and the next step."""


class UnknownName(SteadfastError, KeyError):
    """A name that nothing is registered under."""

    def __str__(self) -> str:
        return str(self.args[0])


class BadConfig(SteadfastError, ValueError):
    """A value, or a combination of values, that cannot work."""


class BadInput(SteadfastError, ValueError):
    """Samples or labels that cannot be learned from."""


class BadData(SteadfastError):
    """A data file that is absent, truncated or altered."""


class BadFile(SteadfastError):
    """A checkpoint, result or model file that is damaged, hostile or of an unknown version."""


class CannotWrite(SteadfastError, OSError):
    """A full disk, a read-only folder: what was there before is intact."""


class CannotRead(SteadfastError, OSError):
    """A disk that fails, or no memory left to read with: the file may be as good as ever, and is left as it is."""


class NewerFile(BadFile):
    """A file that is whole, but of a format that only a newer steadfast reads."""


class RunLocked(SteadfastError):
    """Another process works on this run folder."""


class LossNotFinite(SteadfastError):
    """Training produced a NaN or an infinite loss."""


def nearest(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """The error for an unknown `name`: suggests the nearest known one and lists them all."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return UnknownName(f"There is no {kind} called {name!r}.{hint} Known: {', '.join(names)}.")
