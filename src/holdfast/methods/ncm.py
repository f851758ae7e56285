"""Nearest class mean on frozen features (Mensink et al., 2013).

    argmin_c |x - mu_c|^2 = argmax_c  mu_c^T x - |mu_c|^2 / 2
"""

from __future__ import annotations

from torch import Tensor

from .streaming import Streaming


class NCM(Streaming):
    """It keeps one mean and one count per class. It has no hyperparameter."""

    scatter = False

    def solve(self) -> tuple[Tensor, Tensor]:
        means = self.sums.means
        return means, -means.square().sum(1) / 2
