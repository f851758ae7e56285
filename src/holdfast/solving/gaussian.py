"""The Gaussian view of the same sums: class means and one covariance for all classes.

With Sigma = (W + lambda I) / n the discriminant of class c is
    x^T Sigma^-1 m_c - m_c^T Sigma^-1 m_c / 2 + log prior_c.
Novelty is the relative Mahalanobis distance (Ren et al. 2021): the distance to the nearest class minus the distance
to all data, each with its covariance shrunk towards its mean variance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .sums import Sums


def log_priors(sums: Sums, priors: str) -> Tensor:
    """Return log prior per class: equal, or by the number of samples.  # (classes,)"""
    if priors == "uniform":
        return torch.full((sums.n_classes,), -float(torch.tensor(float(sums.n_classes)).log()), dtype=torch.float64)
    return (sums.counts / sums.n).log()


def shrunk_factor(scatter: Tensor, n: int, shrinkage: float) -> Tensor:
    """Return the Cholesky factor of (1 - s) C + s mean(diag C) I with C = scatter / n.  # (dim, dim)"""
    covariance = scatter / max(n, 1)
    level = float(covariance.diagonal().mean())
    matrix = (1.0 - shrinkage) * covariance
    matrix.diagonal().add_(shrinkage * level if level > 0.0 else 1.0)
    factor: Tensor = torch.linalg.cholesky(matrix)
    return factor


class Novelty:
    """Score how far samples lie from every class, relative to their distance from all data."""

    def __init__(self, sums: Sums, dim: int, shrinkage: float) -> None:
        self.shrinkage = shrinkage
        scatter, means = sums.within[:dim, :dim], sums.means[:, :dim]
        if sums.n_within <= sums.n_classes:  # one sample per class: only the total scatter says anything
            scatter = sums.total(dim)
        self.factor = shrunk_factor(scatter, sums.n_within, shrinkage)
        self.total_factor = shrunk_factor(sums.total(dim), sums.n, shrinkage)
        self.mean = sums.mean()[:dim]
        self.white_means = whiten(self.factor, means - self.mean)  # (classes, dim)

    def __call__(self, features: Tensor) -> Tensor:
        """Return one number per sample; larger is stranger.  # (batch,)"""
        centred = features - self.mean
        nearest = squared_distances(whiten(self.factor, centred), self.white_means).min(1).values
        return nearest - whiten(self.total_factor, centred).square().sum(1)


def whiten(factor: Tensor, rows: Tensor) -> Tensor:
    """Return rows L^-T, whose squared length is the Mahalanobis distance.  # (rows, dim)"""
    solved: Tensor = torch.linalg.solve_triangular(factor, rows.T, upper=False)
    return solved.T


def squared_distances(left: Tensor, right: Tensor) -> Tensor:
    """Return |l|^2 - 2 l r + |r|^2 for all pairs.  # (left, right)"""
    return left.square().sum(1)[:, None] - 2.0 * left @ right.T + right.square().sum(1)
