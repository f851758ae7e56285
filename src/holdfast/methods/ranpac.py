"""RanPAC, random projections and a ridge classifier (McDonnell et al., 2023).

    h = max(0, P^T x),   G = sum h h^T,   C = sum h y^T
    o(x) = C^T (G + lambda I)^-1 h

P is random and fixed, y is one-hot. Differences from the paper: it takes 10,000 random features and chooses lambda on a
fifth of the task's samples; here the width is smaller and generalised cross-validation chooses lambda from the sums.
The paper's adaptation of the backbone to the first task is not included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..heads.fixed import FixedHead
from ..options import Options, option
from ..solving.random_features import projection
from ..solving.ridge import add_diagonal, choose_penalty
from .streaming import Streaming


@dataclass(frozen=True)
class RanPACOptions(Options):
    projections: int = option(2000, "ranpac's number of random features", at_least=1)
    ridge: float | None = option(None, "ranpac's lambda  (default: by generalised cross-validation)", above=0)


class Projection(nn.Module):
    """The map x -> max(0, P^T x); P comes from the run's seed and is not stored."""

    matrix: Tensor

    def __init__(self, size: int, width: int, seed: int) -> None:
        super().__init__()
        self.register_buffer("matrix", projection(size, width, seed).float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.matrix).relu()  # (batch, width)


class ProjectedJunction(nn.Linear):
    """A junction that reads h instead of the features."""

    def __init__(self, expansion: nn.Module, width: int, dim: int) -> None:
        super().__init__(width, dim)
        self.expansion = expansion

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.expansion(x))


class RanPAC(Streaming):
    """Works with every polytope: z is then the ridge regression of h onto the vertices."""

    Options = RanPACOptions
    options: RanPACOptions
    any_polytope = True

    def expand(self, size: int) -> nn.Module:
        seed = int(torch.randint(2**31, (), generator=self.generator, device=self.generator.device))
        return Projection(size, self.options.projections, seed).to(self.learner.shift)

    def place(self, head: Any) -> nn.Linear:
        width = self.options.projections
        layer: nn.Linear
        with torch.random.fork_rng(devices=[]):  # the layer's own initialisation would not come from the run's seed
            if isinstance(head, FixedHead):
                head.junction = layer = ProjectedJunction(self.expansion, width, head.dim)
            else:
                head.junction, head.dim = nn.Sequential(head.junction, self.expansion), width
                head.rows = layer = nn.Linear(width, head.slots)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer.to(self.learner.shift)  # its device and dtype

    def solve(self) -> tuple[Tensor, Tensor]:
        sums = self.sums
        gram = sums.within + sums.means.T @ sums.sums  # G
        ridge = self.options.ridge or choose_penalty(sums, sums.dim).penalty
        factor = torch.linalg.cholesky(add_diagonal(gram, ridge))
        weights = torch.cholesky_solve(sums.sums.T, factor).T  # C^T (G + lambda I)^-1
        return weights, weights.new_zeros(len(weights))
