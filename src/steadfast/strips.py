"""A function of each row, worked out a strip of rows at a time, so that nothing of the features' size is made twice."""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch
from torch import Tensor

STRIPS = 32  # that large features are cut into


class Rowwise(Protocol):
    def __call__(self, features: Tensor, /, slots: Any) -> Tensor: ...  # (batch, dim), (batch,) or None -> (batch,)


def by_rows(function: Rowwise, features: Tensor, slots: Tensor | None, *, above: int) -> Tensor:
    """`function(features, slots)`; for features of more numbers than `above`, a strip of rows at a time.

    A compiler sees to its own memory."""
    if features.numel() <= above or torch.compiler.is_compiling():
        return function(features, slots)
    return _Strips.apply(function, features, slots)


class _Strips(torch.autograd.Function):
    """A function of each row that keeps nothing for backward but its input.

    Backward works every strip out again and writes its gradient into the one gradient tensor, so features,
    gradient and a few strips are all that ever exists.
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
    rows = -(-len(features) // STRIPS)
    return [slice(start, start + rows) for start in range(0, len(features), rows)]


def _of(slots: Tensor | None, at: slice) -> Tensor | None:
    return None if slots is None else slots[at]
