"""A classifier solved from the sums, and its growth by small batches without solving anew."""

from __future__ import annotations

import torch
from torch import Tensor

from .class_batch import grow
from .gaussian import log_priors
from .ridge import EXACT_SIZE, Choice, grow_inverse, inverse_factor, ridge_weights
from .sums import Sums

GROWTH = 1.1  # solve anew, penalty included, once the samples grew by this factor since the last full solution
LOW_RANK = 2  # a batch of up to size / LOW_RANK rows updates the inverse; a larger one is solved anew
LOW_RANK_LARGE = 8  # the same above EXACT_SIZE, where solving anew needs no eigendecomposition


class Solution:
    """Class weights for one choice of map and penalty.

    gaussian: rows (m_c - origin) (W + lambda I)^-1.   ridge: rows S_c^T (T + lambda I)^-1.
    The origin is the mean at the last full solution. It cancels in the answers and protects their digits.
    """

    def __init__(self, sums: Sums, choice: Choice, rule: str) -> None:
        self.choice, self.rule, self.size = choice, rule, choice.size
        self.n_solved, self.origin = sums.n, sums.mean()[: self.size].clone()
        matrix = sums.within[: self.size, : self.size] if rule == "gaussian" else sums.total(self.size)
        self.factor, self.penalty = inverse_factor(matrix, choice.penalty)
        self.inverse: Tensor | None = None  # formed when the first small batch arrives
        right = self._class_rows(sums).T
        self._weights = torch.cholesky_solve(right, self.factor).T.contiguous()  # (classes, size)
        self._n_classes = sums.n_classes

    @property
    def weights(self) -> Tensor:
        return self._weights[: self._n_classes]

    def can_grow(self, sums: Sums, rows: int) -> bool:
        """Return True if a batch of this rank is cheaper to add than to solve, and the penalty is recent."""
        limit = self.size // (LOW_RANK if self.size <= EXACT_SIZE else LOW_RANK_LARGE)
        return rows <= max(limit, 1) and sums.n <= GROWTH * self.n_solved

    def grow(self, sums: Sums, rows: Tensor, changed: Tensor) -> None:
        """Follow a batch that the sums have taken already.

        `rows` is the root of the growth of the matrix, `changed` the class rows that the batch touched.
        """
        if self.inverse is None:
            self.inverse = torch.cholesky_inverse(self.factor)
            self.factor = self.factor.new_zeros(0, 0)
        grow_inverse(self.inverse, self.weights, rows[:, : self.size])
        if self.rule == "ridge":  # every class changes with the overall mean
            self._weights, self._n_classes = ridge_weights(sums, self.inverse), sums.n_classes
            return
        self._weights, self._n_classes = grow(self._weights, sums.n_classes), sums.n_classes
        means = sums.sums[changed, : self.size] / sums.counts[changed, None]
        self._weights[changed] = (means - self.origin) @ self.inverse

    def solve(self, rows: Tensor) -> Tensor:
        """Return rows (matrix + lambda I)^-1.  # (rows, size)"""
        if self.inverse is not None:
            return rows @ self.inverse
        return torch.cholesky_solve(rows.T, self.factor).T

    def coefficients(self, sums: Sums, priors: str) -> tuple[Tensor, Tensor]:
        """Return weights and intercepts: scores = features weights^T + intercepts.  # (classes, size), (classes,)"""
        if self.rule == "gaussian":
            weights = sums.n_within * self.weights
            middle = (sums.means[:, : self.size] - self.origin) / 2 + self.origin
            return weights, log_priors(sums, priors) - (weights * middle).sum(1)
        share = sums.counts / sums.n
        return self.weights, share - self.weights @ sums.mean()[: self.size]

    def _class_rows(self, sums: Sums) -> Tensor:
        if self.rule == "gaussian":
            return sums.means[:, : self.size] - self.origin
        return sums.sums[:, : self.size] - sums.counts[:, None] * sums.mean()[: self.size]
