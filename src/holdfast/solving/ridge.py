"""Ridge regression from the sums: the penalty by generalised cross-validation, and an inverse that grows cheaply.

Targets are one-hot rows y, centred; features are centred too, so the intercept carries no penalty. With
T = sum (x - m)(x - m)^T, S = sum (x - m) y^T and P = (T + lambda I)^-1 the solution is W = P S. The simplex's
vertices are a rotation and a scale of the centred one-hot rows, so both regressions choose the same class.

    RSS(lambda) = n - sum_c n_c^2 / n - tr(S^T P S) - lambda |P S|^2
    tr H        = 1 + dim - lambda tr P                               (the 1 is the intercept)
    GCV(lambda) = (RSS / n) / (1 - tr H / n)^2

Copies of a sample are fitted by the same weights as the sample, so they leave GCV no room to see overfitting. The n
below tr H is therefore the number of distinct samples, n times the share `distinct`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import BadInput
from .sums import Sums

EXACT_SIZE = 1024  # up to this size one eigendecomposition gives every penalty; above, Cholesky factors do
PROBES = 64  # random signs that estimate tr P above EXACT_SIZE
LOWEST, HIGHEST = 1e-7, 1e3  # range of penalties, relative to the mean eigenvalue of T
USUAL = 3e-3  # where the search starts above EXACT_SIZE; GCV chose 1e-3 to 1e-2 on all measured data


@dataclass(frozen=True)
class Choice:
    """A penalty for the first `size` features, and its criterion on the first `compared` of them."""

    size: int
    penalty: float
    gcv: float
    compared: int


def grid(sums: Sums, size: int) -> list[float]:
    """Return the candidate penalties 10^(k/2), ascending.

    The values are absolute, so that a slowly growing data set keeps its penalty and its factorisation.
    """
    scale = float(total_diagonal(sums, size).mean())
    if scale <= 0.0:
        return [1.0]  # constant features: every penalty gives the same answers
    low, high = half_decade(LOWEST * scale), half_decade(HIGHEST * scale)
    return [10.0 ** (k / 2) for k in range(low, high + 1)]


def choose_penalty(sums: Sums, size: int, compared: int = EXACT_SIZE, distinct: float = 1.0) -> Choice:
    """Return the penalty with the smallest GCV for the first `size` features, from the sums alone.

    Above EXACT_SIZE the criterion sees only the first `compared` features: its valley is flat, and a search with all
    features would take longer than the solution itself.
    """
    if size > EXACT_SIZE:
        penalty, value = search_penalty(sums, min(size, compared), distinct)
        return Choice(size, penalty, value, min(size, compared))
    candidates = grid(sums, size)
    values = gcv_by_spectrum(sums, size, candidates, distinct)
    best = min(range(len(values)), key=lambda i: (values[i], -i))  # on a tie the larger penalty
    return Choice(size, candidates[best], values[best], size)


def search_penalty(sums: Sums, size: int, distinct: float = 1.0) -> tuple[float, float]:
    """Return the penalty at the bottom of the valley of GCV and its GCV, walking downhill from the usual penalty."""
    candidates, scale = grid(sums, size), float(total_diagonal(sums, size).mean())
    if scale <= 0.0:
        return candidates[0], gcv(sums, 0.0, 1.0, distinct)
    total, targets = sums.total(size), centred_targets(sums, size)
    seen: dict[int, float] = {}

    def value(index: int) -> float:
        if index not in seen:
            seen[index] = gcv_by_factor(sums, total, targets, candidates[index], distinct)
        return seen[index]

    at = half_decade(USUAL * scale) - half_decade(candidates[0])
    while True:
        around = [i for i in (at, at - 1, at + 1) if 0 <= i < len(candidates)]
        best = min(around, key=value)
        if best == at:
            return candidates[at], value(at)
        at = best


def gcv_by_spectrum(sums: Sums, size: int, penalties: list[float], distinct: float = 1.0) -> list[float]:
    """Return GCV for each penalty from one eigendecomposition of T."""
    eigenvalues, vectors = torch.linalg.eigh(sums.total(size))  # (size,), (size, size)
    eigenvalues = eigenvalues.clamp(min=0.0)
    energy = (vectors.T @ centred_targets(sums, size)).square().sum(1)  # (size,)
    values = []
    for penalty in penalties:
        shifted = eigenvalues + penalty
        explained = float((energy / shifted).sum()) + penalty * float((energy / shifted.square()).sum())
        values.append(gcv(sums, explained, 1.0 + float((eigenvalues / shifted).sum()), distinct))
    return values


def gcv_by_factor(sums: Sums, total: Tensor, targets: Tensor, penalty: float, distinct: float = 1.0) -> float:
    """Return GCV for one penalty from a Cholesky factor; tr P is estimated with random signs.

    The criterion needs few digits, so float32 is tried first: it takes half the time.
    """
    for kind in (torch.float32, torch.float64):
        scale = float(total.diagonal().mean())  # float32 overflows at 1e38
        factor, failed = torch.linalg.cholesky_ex(add_diagonal((total / scale).to(kind), penalty / scale))
        if not int(failed):
            break
    else:
        return float("inf")
    size, classes = targets.shape
    signs = torch.randint(0, 2, (size, PROBES), generator=torch.Generator().manual_seed(0)).to(torch.float64) * 2 - 1
    right = torch.cat([targets / scale**0.5, signs], 1).to(kind)
    solved = torch.cholesky_solve(right, factor).to(torch.float64)
    weights, probes = solved[:, :classes], solved[:, classes:]  # (size, classes), (size, PROBES)
    ratio = penalty / scale
    explained = float((targets / scale**0.5 * weights).sum()) + ratio * float(weights.square().sum())
    return gcv(sums, explained, 1.0 + size - ratio * float((signs * probes).sum()) / PROBES, distinct)


def gcv(sums: Sums, explained: float, freedom: float, distinct: float = 1.0) -> float:
    """Return the criterion from the explained sum of squares and the trace of the hat matrix."""
    n = sums.n
    residual = max(n - float(sums.counts.square().sum()) / n - explained, 0.0)
    room = 1.0 - freedom / (distinct * n)
    return residual / n / room**2 if room > 1e-9 else float("inf")


def ridge_weights(sums: Sums, inverse: Tensor) -> Tensor:
    """Return W^T = S^T P for the inverse of T + lambda I.  # (classes, size)"""
    return centred_targets(sums, len(inverse)).T @ inverse


def centred_targets(sums: Sums, size: int) -> Tensor:
    """Return S = sum (x - m) y^T.  # (size, classes)"""
    return (sums.sums[:, :size] - sums.counts[:, None] * sums.mean()[:size]).T


def total_diagonal(sums: Sums, size: int) -> Tensor:
    return sums.within.diagonal()[:size] + sums.between()[:, :size].square().sum(0)


def inverse_factor(matrix: Tensor, penalty: float) -> tuple[Tensor, float]:
    """Return the Cholesky factor of matrix + penalty I and the penalty, raised by decades if rounding requires it."""
    for _ in range(40):
        factor, failed = torch.linalg.cholesky_ex(add_diagonal(matrix, penalty))
        if not int(failed):
            return factor, penalty
        penalty *= 10.0
    raise BadInput("the scatter of the features cannot be factorised: their values differ too much in size; scale them")


def grow_inverse(inverse: Tensor, weights: Tensor, rows: Tensor) -> None:
    """Turn A^-1 into (A + R^T R)^-1 and weights M A^-1 into M (A + R^T R)^-1, both in place.

    Woodbury: the new inverse is A^-1 - (A^-1 R^T)(I + R A^-1 R^T)^-1 (R A^-1). The part added is positive, so the small
    system is well conditioned. `weights` has any number of rows.
    """
    right = rows @ inverse  # R A^-1  # (rows, size)
    factor = torch.linalg.cholesky(add_diagonal(right @ rows.T, 1.0))
    middle = torch.cholesky_solve(right, factor)  # (rows, size)
    weights.addmm_(weights @ rows.T, middle, alpha=-1.0)
    if len(rows) == 1:  # an outer product is faster as such
        inverse.addr_(right[0], middle[0], alpha=-1.0)
    else:
        inverse.addmm_(right.T, middle, alpha=-1.0)


def add_diagonal(matrix: Tensor, value: float) -> Tensor:
    result = matrix.clone()
    result.diagonal().add_(value)
    return result


def half_decade(value: float) -> int:
    """Return the k whose 10^(k/2) is nearest to the value."""
    return round(2.0 * float(torch.log10(torch.tensor(value, dtype=torch.float64))))
