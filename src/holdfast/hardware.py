"""The machine that a run uses. Nothing here changes a run's numbers beyond the last bits of its sums."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import BadConfig
from .options import Options, option

if TYPE_CHECKING:
    import torch

THREADS_PER_CORE = 8  # far more end the process inside OpenMP


@dataclass(frozen=True)
class Machine(Options):
    """The device, threads and folders of a run; they are not part of its hash."""

    data: str | None = option(None, "folder with the data sets in their original layout")
    out: str = option("runs", "folder for the run folders")
    device: str = option("auto", "auto (a GPU if there is one), cpu, cuda, cuda:1, ...")
    threads: int | None = option(None, "CPU threads per run  (default: all cores)", at_least=1)
    compile: bool = option(False, "compile the backbone with torch.compile; slow to start, needs a C++ compiler")
    memory_on_disk: bool = option(False, "keep the remembered images in a file instead of in RAM (CPU only)")
    share: str | None = option(None, "address such as s3://bucket/runs, for workers that have no folder in common")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def cores() -> int:
    """Count the cores that this process may use: by its affinity and, in a container, its CPU quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _quota() or allowed))


def _quota() -> int | None:
    """Return the CPU quota of this process's control group in whole cores, rounded up; None if it has none."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()  # version 2
    except (OSError, ValueError):
        try:
            folder = Path("/sys/fs/cgroup/cpu")  # version 1
            limit, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except (OSError, ValueError):
            return None
    try:
        return -(-int(limit) // int(period)) if int(limit) > 0 else None
    except ValueError:  # "max"
        return None


def device_name(name: str) -> str:
    """Resolve `auto` to a GPU if there is one."""
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def gpus() -> int:
    """Count the GPUs that this process may use."""
    import torch

    return torch.cuda.device_count()


def choose_device(name: str) -> torch.device:
    """Return the device of this name, or raise BadConfig if it cannot be used."""
    import torch

    try:
        device = torch.device(device_name(name))
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise BadConfig(f"The device {name!r} cannot be used: {reason}. Try --device cpu.") from error
    return device


def use_threads(threads: int | None, enough: int | None = None) -> None:
    """Use this many CPU threads; with None, one per core that this process may use, but no more than `enough`."""
    import torch

    if threads is not None:
        check_threads(threads)
        torch.set_num_threads(threads)
    elif "OMP_NUM_THREADS" not in os.environ:
        most = min(cores(), enough or cores())  # PyTorch does not look at a container's CPU quota
        torch.set_num_threads(min(most, torch.get_num_threads()))


@contextmanager
def own_threads() -> Iterator[None]:
    """Restore the number of CPU threads afterwards."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_threads(threads: int) -> None:
    """Refuse more threads than the process would survive."""
    if threads < 1:
        raise BadConfig(f"threads is {threads}; there must be one at least, or leave --threads out.")
    if threads > THREADS_PER_CORE * cores():
        raise BadConfig(
            f"threads is {threads}, on {cores()} core{'s' * (cores() > 1)}: more threads than cores only wait for each "
            f"other. Give {cores()}, at most {THREADS_PER_CORE * cores()}, or leave --threads out."
        )


@cache
def keep_freed_memory() -> None:
    """Let glibc keep the large blocks that each step frees and asks for again, for as long as the process lives.

    By default it gives a 10 MB activation back to the system at once, and the next step pays thousands of
    page faults for it. Where the environment says what malloc keeps (MALLOC_TRIM_THRESHOLD_, say), that stands.
    """
    chosen = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(
        name.startswith(("MALLOC_TRIM", "MALLOC_TOP", "MALLOC_MMAP")) for name in os.environ
    )
    if chosen or platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(trim_threshold, (1 << 31) - 1)
    mallopt(mmap_max, 0)
    mallopt(top_pad, 1 << 26)
