"""A trainable head that compares directions only: logits = eta * cos(theta, f), eta learned (Hou et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..options import Options, option
from .base import OVER_HELP, SOFTMAX_OVER, Head
from .trainable import TrainableHead


@dataclass(frozen=True)
class CosineOptions(Options):
    softmax_over: str = option("seen", OVER_HELP, choices=SOFTMAX_OVER)
    # 5 won against 20 by `holdfast run split-digits --method lucir --search less-forget=1,5 --search eta=5,20`.
    eta: float = option(5.0, "factor of the cosines at the start; it is learned", above=0)


class CosineHead(TrainableHead):
    """One trainable direction per slot, without a bias."""

    def __init__(self, in_features: int, slots: int, softmax_over: str = "seen", eta: float = 5.0) -> None:
        super().__init__(in_features, slots, softmax_over)
        self.rows = nn.Linear(in_features, slots, bias=False)
        self.scale = nn.Parameter(torch.tensor(float(eta)))

    def outputs(self, embedded: Tensor, slots: Tensor | None = None) -> Tensor:
        rows = self.rows.weight if slots is None else self.rows.weight[slots]
        return self.scale * F.linear(F.normalize(embedded, dim=1), F.normalize(rows, dim=1))


def cosine(in_features: int, slots: int, options: CosineOptions) -> Head:
    return CosineHead(in_features, slots, options.softmax_over, options.eta)


cosine.Options = CosineOptions  # type: ignore[attr-defined]
