"""What makes a process fast, chosen by measurement (docs/speed.md has the figures)."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import sys
from functools import cache

import torch
from torch import Tensor, nn

from .errors import BadConfig
from .resnets import ResidualNetwork, through

MOST_THREADS = 8  # a core; far more end the process inside OpenMP
KINDS = 64  # of blocks that may be compiled in one process; PyTorch itself stops at 8 and goes on uncompiled
COMPILERS = {"darwin": "clang++", "win32": "cl"}  # what torch.compile calls where CXX is not set; else g++


class Compiled:
    """A network's pass over batches of one size by `torch.compile`; the network itself stays as it is.

    One size only: each size is compiled by itself, for tens of seconds, and an epoch's last batch or a test set is
    sooner done than that. The network is an argument, so that a copy of it never computes with the original's weights.
    A residual network is compiled block by block, each kind of block once: ResNet56 in under a minute, not ten.
    """

    def __init__(self, batch: int, device: torch.device) -> None:
        check_compiler(device)
        self.batch = batch
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, KINDS)
        self.call = torch.compile(through, dynamic=False)

    def __call__(self, network: nn.Module, x: Tensor) -> Tensor:
        try:
            if isinstance(network, ResidualNetwork):
                return network(x, each=self.call)
            return self.call(network, x)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            raise BadConfig(f"torch.compile fails on this backbone here: {reason}. Leave --compile out.") from error


def check_compiler(device: torch.device) -> None:
    """Refuse to compile where nothing can, before a run has begun."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise BadConfig("--compile needs triton on a GPU: pip install triton, or leave --compile out.")
        return
    name = os.environ.get("CXX") or COMPILERS.get(sys.platform, "g++")
    if shutil.which(name) is None:
        raise BadConfig(
            f"--compile needs a C++ compiler, and there is no {name!r} here: install one, name another in the "
            f"environment variable CXX, or leave --compile out."
        )


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name(name: str) -> str:
    """`auto` is a GPU if there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def use_threads(threads: int | None) -> None:
    """As many as asked for; None leaves it to PyTorch, which takes a thread a core."""
    if threads is not None:
        check_threads(threads)
        torch.set_num_threads(threads)


def check_threads(threads: int) -> None:
    """Refuse so many that the process would not survive it."""
    if threads < 1:
        raise BadConfig(f"threads is {threads}; there must be one at least, or leave --threads out.")
    if threads > MOST_THREADS * cores():
        raise BadConfig(
            f"threads is {threads}, on {cores()} core{'s' * (cores() > 1)}: more threads than cores only wait for each "
            f"other. Give {cores()}, at most {MOST_THREADS * cores()}, or leave --threads out."
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
