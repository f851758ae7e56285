"""Fixed random features: x is followed by max(0, x P), with P drawn from a seed and never stored.

The columns of P are drawn in blocks, each from its own seed, so a narrower map is the beginning of a wider one. One
matrix of second moments therefore holds the moments of every candidate width as its leading blocks, and choosing
the width later needs no samples and does not depend on the order of the data.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .ridge import EXACT_SIZE, Choice, choose_penalty
from .sums import Sums

BLOCK = 256  # columns of P per seed; candidate widths are BLOCK * 2^k
WIDEST = 2560
JUDGED = 512  # random features that the criterion sees at least, if the map has as many
SECONDS_PER_CUBE = 4e-11  # measured: one full solution takes this times size^3 on one core of a current server


class RandomFeatures:
    """Map features to themselves followed by `width` random ReLU features."""

    def __init__(self, dim: int, width: int, seed: int) -> None:
        self.dim, self.width, self.seed = dim, width, seed
        self._projection: Tensor | None = None

    @property
    def size(self) -> int:
        return self.dim + self.width

    def __call__(self, features: Tensor, width: int | None = None) -> Tensor:
        """Return the features and the first `width` random ones.  # (batch, dim + width)"""
        width = self.width if width is None else width
        if width == 0:
            return features
        if self._projection is None:
            self._projection = projection(self.dim, self.width, self.seed)  # a cache; states never contain it
        return torch.cat([features, (features @ self._projection[:, :width]).clamp_(min=0.0)], 1)


def projection(dim: int, width: int, seed: int) -> Tensor:
    """Return P with entries of variance 1 / dim, so that both parts of the map have similar scales.  # (dim, width)"""
    blocks = [torch.zeros(dim, 0, dtype=torch.float64)]  # alone if the width is 0
    for start in range(0, width, BLOCK):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + start) % 2**63)
        blocks.append(torch.randn(dim, BLOCK, generator=generator, dtype=torch.float64))
    return torch.cat(blocks, 1)[:, :width].div_(dim**0.5)


def widest_in_budget(dim: int, memory_mb: float, seconds: float) -> int:
    """Return the largest candidate width whose moments and solution stay within the budget, or 0.

    Memory: the moments, the solution and one temporary, 8 bytes per entry. Time: one full solution on one core.
    """
    best = 0
    for width in candidate_widths(WIDEST):
        size = dim + width
        if 3 * 8 * size**2 <= memory_mb * 1e6 and SECONDS_PER_CUBE * size**3 <= seconds:
            best = width
    return best


def candidate_widths(widest: int) -> list[int]:
    """Return BLOCK, 2 BLOCK, 4 BLOCK, ... up to `widest`, which is always included."""
    widths, width = [], BLOCK
    while width < widest:
        widths.append(width)
        width *= 2
    return [*widths, widest] if widest > 0 else []


def choose_map(sums: Sums, dim: int, width: int, auto: bool, distinct: float = 1.0) -> Choice:
    """Return the better of no random features and the widest map below the number of distinct samples, by GCV.

    A wide map is judged by its first random features: where some help, more help more. Without `auto` the width is
    fixed and only the penalty is chosen.
    """
    if not auto:
        return choose_penalty(sums, dim + width, distinct=distinct)
    plain = choose_penalty(sums, dim, distinct=distinct)
    below = [w for w in candidate_widths(width) if dim + w < distinct * sums.n]  # GCV is too hopeful beyond n
    if not below:
        return plain
    wide = choose_penalty(sums, dim + below[-1], max(EXACT_SIZE, dim + JUDGED), distinct)
    return min(plain, wide, key=lambda choice: choice.gcv)
