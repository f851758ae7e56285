"""What makes a process fast, chosen by measurement (docs/speed.md has the figures)."""

from __future__ import annotations

import ctypes
import platform
from functools import cache


@cache
def keep_freed_memory() -> None:
    """Let glibc keep the large blocks that each step frees and asks for again.

    By default it gives a 10 MB activation back to the system at once, and the next step pays thousands of
    page faults for it: about a tenth of a LeNet step on a CPU.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, top_pad, mmap_threshold, mmap_max = -1, -2, -3, -4  # malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(mmap_threshold, 1 << 30)
    mallopt(trim_threshold, (1 << 31) - 1)
    mallopt(mmap_max, 0)
    mallopt(top_pad, 1 << 26)
