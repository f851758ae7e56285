"""Deep streaming linear discriminant analysis (Hayes and Kanan, 2020, "Lifelong machine learning with deep streaming
linear discriminant analysis").

    Lambda = [(1 - epsilon) Sigma + epsilon I]^-1
    w_c = Lambda mu_c,   b_c = - mu_c^T Lambda mu_c / 2

mu_c are the class means, Sigma is the covariance within classes. The paper updates Sigma sample by sample with a
running estimate. Here it is exact, so the order of the samples does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..options import Options, option
from .streaming import Streaming


@dataclass(frozen=True)
class SLDAOptions(Options):
    epsilon: float = option(1e-4, "slda's shrinkage of the covariance towards the identity", above=0, below=1)


class SLDA(Streaming):
    """The paper's default: epsilon 1e-4."""

    Options = SLDAOptions
    options: SLDAOptions

    def solve(self) -> tuple[Tensor, Tensor]:
        epsilon, means = self.options.epsilon, self.sums.means  # (classes, size)
        covariance = (1 - epsilon) * self.sums.within / self.sums.n
        covariance.diagonal().add_(epsilon)
        weights = torch.cholesky_solve(means.T, torch.linalg.cholesky(covariance)).T
        return weights, -(weights * means).sum(1) / 2
