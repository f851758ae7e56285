"""Probabilities that mean something, and a threshold for "none of these".

A temperature and the quantiles of the novelty are fitted to the held samples, scored as if each had not been learned.
The leave-one-out values have a closed form. For a sample x of class y let r = x - m_y, a = n_y / (n_y - 1), q = P r:
    m_y' = m_y - r / (n_y - 1),   P' = P + g q q^T   with g = a / (1 - a r^T q).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import BadConfig
from .gaussian import Novelty, log_priors, squared_distances, whiten
from .solution import Solution
from .sums import Sums

LEVELS = 1001  # stored quantiles of the novelty of known samples
FEWEST = 20  # held samples needed for a fit


@dataclass(frozen=True)
class Calibration:
    """A temperature for the scores and quantiles of the novelty of known samples."""

    temperature: float
    quantiles: Tensor  # (LEVELS,)
    samples: int  # number of samples behind the fit; 0 means: not calibrated

    def threshold(self, reject: float) -> float:
        """Return the novelty that this share of known samples exceeds."""
        if not 0.0 < reject < 1.0:
            raise BadConfig(f"reject is {reject}; give a share between 0 and 1, e.g. 0.05 to refuse one in twenty")
        at = (1.0 - reject) * (LEVELS - 1)
        low = int(at)
        return float(torch.lerp(self.quantiles[low], self.quantiles[min(low + 1, LEVELS - 1)], at - low))

    @classmethod
    def fit(cls, scores: Tensor, columns: Tensor, novelty: Tensor) -> Calibration:
        """Fit to samples whose class is known and that were not learned."""
        levels = torch.linspace(0, 1, LEVELS, dtype=torch.float64)
        return cls(best_temperature(scores, columns), torch.quantile(novelty, levels), len(columns))

    @classmethod
    def missing(cls) -> Calibration:
        """Return the temperature 1 and no quantiles, because there are too few samples."""
        return cls(1.0, torch.full((LEVELS,), float("nan"), dtype=torch.float64), 0)


def best_temperature(scores: Tensor, columns: Tensor) -> float:
    """Return the temperature with the smallest log loss, by golden section on its logarithm."""
    spread = float(scores.std()) if scores.numel() > 1 else 1.0
    centre = float(torch.tensor(max(spread, 1e-300), dtype=torch.float64).log())
    low, high = centre - 9.0, centre + 9.0

    def loss(log_temperature: float) -> float:
        scaled = scores / torch.tensor(log_temperature, dtype=torch.float64).exp()
        return float(torch.nn.functional.cross_entropy(scaled, columns))

    for _ in range(40):
        a, b = high - 0.618034 * (high - low), low + 0.618034 * (high - low)
        low, high = (low, b) if loss(a) <= loss(b) else (a, high)
    return float(torch.tensor((low + high) / 2, dtype=torch.float64).exp())


def left_out_scores(solution: Solution, sums: Sums, priors: str, features: Tensor, rows: Tensor) -> Tensor:
    """Return the scores of learned samples as if each had not been learned.  # (samples, classes)

    `rows` are the class rows of the samples; each class needs two samples or more.
    """
    size, each = solution.size, torch.arange(len(rows))
    if solution.rule == "ridge":
        centred = features - sums.mean()[:size]
        leverage = 1.0 / sums.n + (centred * solution.solve(centred)).sum(1)  # (samples,)
        outputs = centred @ solution.weights.T + sums.counts / sums.n
        outputs[each, rows] -= leverage
        return outputs / (1.0 - leverage).clamp(min=1e-12)[:, None]
    n = sums.n_within - 1
    count = sums.counts[rows]
    residual = features - sums.means[rows, :size]
    solved = solution.solve(residual)  # q  # (samples, size)
    inflation = count / (count - 1)
    gain = inflation / (1.0 - inflation * (residual * solved).sum(1)).clamp(min=1e-12)  # g
    means = sums.means[:, :size] - solution.origin
    centred = features - solution.origin
    along = (centred * solved).sum(1)  # x^T q
    cross = solved @ means.T  # q^T m_c  # (samples, classes)
    inner = centred @ solution.weights.T + gain[:, None] * along[:, None] * cross  # x^T P' m_c
    norms = (means * solution.weights).sum(1) + gain[:, None] * cross.square()  # m_c^T P' m_c
    step = 1.0 / (count - 1)  # m_y' = m_y - step r
    r_x = along + gain * along * (residual * solved).sum(1)  # r^T P' x
    r_m = cross[each, rows] * (1.0 + gain * (residual * solved).sum(1))  # r^T P' m_y
    r_r = (residual * solved).sum(1) * (1.0 + gain * (residual * solved).sum(1))  # r^T P' r
    inner[each, rows] -= step * r_x
    norms[each, rows] += -2.0 * step * r_m + step.square() * r_r
    return n * (inner - norms / 2) + log_priors(sums, priors)


def left_out_novelty(novelty: Novelty, sums: Sums, features: Tensor, rows: Tensor) -> Tensor:
    """Return the novelty of learned samples as if each had not been learned.  # (samples,)"""
    count, n, each = sums.counts[rows], sums.n, torch.arange(len(rows))
    keep = 1.0 - novelty.shrinkage
    white = whiten(novelty.factor, features - novelty.mean)
    residual = white - novelty.white_means[rows]
    inflation, length = count / (count - 1), residual.square().sum(1)
    weight = keep * inflation / max(sums.n_within, 1)
    gain = weight / (1.0 - weight * length).clamp(min=1e-12)
    along = (white * residual).sum(1)[:, None] - residual @ novelty.white_means.T  # (x - m_c)^T P r
    distances = squared_distances(white, novelty.white_means) + gain[:, None] * along.square()
    distances[each, rows] = inflation.square() * length / (1.0 - weight * length).clamp(min=1e-12)
    far = whiten(novelty.total_factor, features - novelty.mean).square().sum(1)
    ratio = n / (n - 1)
    far = ratio**2 * far / (1.0 - keep * ratio / n * far).clamp(min=1e-12)
    return distances.min(1).values - far
