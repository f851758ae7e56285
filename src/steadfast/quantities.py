"""How long and how large, in words that people read at a glance."""

from __future__ import annotations

__all__ = ["byte_size", "duration"]


def duration(seconds: float) -> str:
    """12 µs, 3.4 ms, 1.2 s, 90 s, 11 min, 2 h 05 min."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def byte_size(count: float) -> str:
    """So many bytes: 512 B, 4.2 MB, 96 GB."""
    units = ["EB", "PB", "TB", "GB", "MB", "kB", "B"]
    while count >= 999.5 and len(units) > 1:
        count /= 1000
        units.pop()
    return f"{count:,.0f} {units[-1]}" if count >= 1000 else f"{count:.3g} {units[-1]}"
