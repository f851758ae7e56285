"""Format durations, sizes, means and differences for people."""

from __future__ import annotations

from collections.abc import Sequence


def duration(seconds: float) -> str:
    """Format a duration: 12 µs, 3.4 ms, 1.2 s, 90 s, 11 min, 2 h 05 min."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def byte_size(count: float) -> str:
    """Format a number of bytes: 512 B, 4.2 MB, 96 GB."""
    units = ["EB", "PB", "TB", "GB", "MB", "kB", "B"]
    while count >= 999.5 and len(units) > 1:
        count /= 1000
        units.pop()
    return f"{count:,.0f} {units[-1]}" if count >= 1000 else f"{count:.3g} {units[-1]}"


def counted(count: int, plural: str) -> str:
    """Format a count with its noun, whose plural ends in s: 1 vector, 2 vectors."""
    return f"{count} {plural.removesuffix('s') if count == 1 else plural}"


def number(mean: float, std: float | None) -> str:
    """Format a mean with its standard deviation: 82.88 ± 2.47."""
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def signed(value: float) -> str:
    """Format a difference with its sign, and a real minus."""
    return "0.00" if abs(value) < 0.005 else f"{value:+.2f}".replace("-", "−")


def some(names: Sequence[object], most: int = 5) -> str:
    """List at most `most` names, and say how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more
