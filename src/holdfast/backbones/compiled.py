"""Compile a backbone's training passes with `torch.compile`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

import torch
from torch import Tensor, nn

from ..errors import BadConfig
from .resnets import ResidualNetwork, through

KINDS = 64  # kinds of blocks compiled per process; PyTorch's limit of 8 would run the rest uncompiled
COMPILERS = {"darwin": "clang++", "win32": "cl"}  # torch.compile's default if CXX is not set; otherwise g++


class Compiled:
    """A compiled forward pass for batches of one size; the network itself is not changed.

    Only one size is compiled, because each takes tens of seconds, longer than an epoch's last batch or a test set.
    The network is an argument, so that a copy of it never uses the original's weights. A residual network is compiled
    per kind of block: ResNet56 takes under a minute instead of ten.
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
    """Raise BadConfig, before the run starts, if this machine has no compiler."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise BadConfig("--compile needs triton on a GPU: pip install triton, or leave --compile out.")
        return
    name = os.environ.get("CXX") or COMPILERS.get(sys.platform, "g++")
    if shutil.which(name) is None:
        raise BadConfig(
            f"--compile needs a C++ compiler, but {name!r} was not found: install one, name another in the "
            f"environment variable CXX, or leave --compile out."
        )
