"""Process rows in chunks to bound peak memory."""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch
from torch import Tensor

CHUNKS = 32  # number of chunks for large features


class Rowwise(Protocol):
    def __call__(self, features: Tensor, /, slots: Any) -> Tensor: ...  # (batch, dim), (batch,) or None -> (batch,)


def by_rows(function: Rowwise, features: Tensor, slots: Tensor | None, *, above: int) -> Tensor:
    """Return `function(features, slots)`; features of more numbers than `above` are processed in chunks of rows.

    Not while compiling: a compiler manages memory itself."""
    if features.numel() <= above or torch.compiler.is_compiling():
        return function(features, slots)
    return _Chunks.apply(function, features, slots)


class _Chunks(torch.autograd.Function):
    """A function of each row that stores only its input for the backward pass.

    The backward pass computes every chunk again and writes into one gradient tensor, so that only the features, the
    gradient and one chunk are in memory at any time.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(function: Rowwise, features: Tensor, slots: Tensor | None) -> Tensor:
        return torch.cat([function(features[at], _of(slots, at)) for at in _cut(features)])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.function, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor, None]:
        features, slots = ctx.saved_tensors
        gradient = torch.empty_like(features)
        for at in _cut(features):
            function = functools.partial(ctx.function, slots=_of(slots, at))
            _, pull_back, *_ = torch.func.vjp(function, features[at])
            gradient[at] = pull_back(upstream[at])[0]
        return None, gradient, None


def _cut(features: Tensor) -> list[slice]:
    rows = -(-len(features) // CHUNKS)
    return [slice(start, start + rows) for start in range(0, len(features), rows)]


def _of(slots: Tensor | None, at: slice) -> Tensor | None:
    return None if slots is None else slots[at]
