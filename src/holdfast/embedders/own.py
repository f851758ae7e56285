"""A callable or a `torch.nn.Module` of the user's own as an embedder."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import nn

from .. import hardware
from ..errors import BadConfig
from .base import Embedder, digest_of


class Own(Embedder):
    """A module is known by its weights, a function by its name and code; what the function calls is not seen."""

    kind = "own"

    def __init__(self, function: Any, *, device: str = "auto") -> None:
        if not callable(function):
            raise BadConfig(
                f"embedder is a {type(function).__name__}; give a name such as sentence-transformers:NAME, a function "
                f"from samples to vectors, or a torch module."
            )
        self.function = function
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self.device = hardware.choose_device(device)
        self.digest = digest_of({"name": self.name, "code": _steps(getattr(function, "__code__", None))})
        if isinstance(function, nn.Module):
            self.function = function.to(self.device).eval()
            self.digest = digest_of({**function.state_dict(), "structure": repr(function)})

    def embed(self, samples: Sequence[Any]) -> Any:
        if not isinstance(self.function, nn.Module):
            return self.function(samples)
        with torch.no_grad():
            return self.function(torch.as_tensor(np.asarray(samples)).float().to(self.device))


def _steps(constant: Any) -> str:
    """Return a function's code as text, the same in every process: without addresses, files or the order of sets."""
    if isinstance(constant, CodeType):  # of a lambda or a comprehension inside
        inner = [_steps(each) for each in constant.co_consts]
        return f"{constant.co_code.hex()}{inner!r}{constant.co_names!r}"
    if isinstance(constant, frozenset):
        return f"set {sorted(map(repr, constant))!r}"
    return repr(constant)
