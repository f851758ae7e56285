"""The rivals of the paper's classifier: trainable rows, expanding or pre-allocated."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from ..options import Options, option
from .base import OVER_HELP, SOFTMAX_OVER, Head


@dataclass(frozen=True)
class PreallocatedOptions(Options):
    softmax_over: str = option("all", OVER_HELP, choices=SOFTMAX_OVER)
    embedding: int | None = option(None, "width of a linear layer before the head  (default: no layer)", at_least=1)


@dataclass(frozen=True)
class ExpandingOptions(PreallocatedOptions):
    softmax_over: str = option("seen", OVER_HELP, choices=SOFTMAX_OVER)


class TrainableHead(Head):
    """A linear layer with one trainable row per slot.

    With the softmax over the `seen` slots it is the expanding classifier. A row whose class has not come has no logit,
    so it gets no gradient and no Adam state: that equals a matrix that grows (to the bit with plain optimizers, to
    rounding with fused ones), while every parameter keeps its shape for the optimizer, the importances and the
    checkpoint. With the softmax over `all` slots it is the pre-allocated classifier.
    """

    def __init__(self, in_features: int, slots: int, softmax_over: str, embedding: int | None = None) -> None:
        super().__init__(slots, embedding or in_features, softmax_over)
        self.junction = nn.Linear(in_features, embedding) if embedding else nn.Identity()
        self.rows = nn.Linear(self.dim, slots)

    def embed(self, features: Tensor) -> Tensor:
        return self.junction(features)

    def directions(self, slots: Tensor) -> Tensor:
        return F.normalize(self.rows.weight.detach()[slots], dim=1)

    def outputs(self, embedded: Tensor, slots: Tensor | None = None) -> Tensor:
        if slots is None:
            return self.rows(embedded)
        return F.linear(embedded, self.rows.weight[slots], self.rows.bias[slots])


def expanding(in_features: int, slots: int, options: ExpandingOptions) -> Head:
    return TrainableHead(in_features, slots, options.softmax_over, options.embedding)


def preallocated(in_features: int, slots: int, options: PreallocatedOptions) -> Head:
    return TrainableHead(in_features, slots, options.softmax_over, options.embedding)


expanding.Options = ExpandingOptions  # type: ignore[attr-defined]
preallocated.Options = PreallocatedOptions  # type: ignore[attr-defined]
