"""One batch grouped by class, and the few matrix operations that the sums need."""

from __future__ import annotations

import torch
from torch import Tensor

COLUMN_BLOCK = 512


class ClassBatch:
    """Group one batch by class: counts, sums, means and residuals."""

    def __init__(self, features: Tensor, slots: Tensor) -> None:
        unique, self.index, counts = torch.unique(slots, return_inverse=True, return_counts=True)
        self.features, self.slots, self.counts = features, unique.tolist(), counts.to(torch.float64)
        self.sums = torch.zeros(len(unique), features.shape[1], dtype=torch.float64).index_add_(0, self.index, features)
        self.means = self.sums / self.counts[:, None]

    def residuals(self, index: int | None = None) -> Tensor:
        """Return the samples minus their class means, without rows that are zero by construction."""
        keep = (self.counts[self.index] > 1) if index is None else (self.index == index)
        rows: Tensor = self.features[keep] - self.means[self.index[keep]]
        return rows


def add_gram(target: Tensor, rows: Tensor, sign: float = 1.0) -> None:
    """Add sign * rows^T rows to a symmetric matrix in place, computing only blocks on or above the diagonal."""
    size = target.shape[0]
    if len(rows) == 0:
        return
    if len(rows) == 1:
        target.addr_(rows[0], rows[0], alpha=sign)
        return
    if size <= COLUMN_BLOCK or len(rows) < 32:
        target.addmm_(rows.T, rows, alpha=sign)
        return
    for i in range(0, size, COLUMN_BLOCK):
        left, k = rows[:, i : i + COLUMN_BLOCK].T, min(i + COLUMN_BLOCK, size)
        target[i:k, i:].addmm_(left, rows[:, i:], alpha=sign)
        target[k:, i:k] = target[i:k, k:].T


def grow(buffer: Tensor, rows: int) -> Tensor:
    """Return a buffer with room for `rows` rows, doubling its size so that n appends copy O(n) rows."""
    if rows <= len(buffer):
        return buffer
    larger = buffer.new_zeros(max(rows, 2 * len(buffer)), *buffer.shape[1:])
    larger[: len(buffer)] = buffer
    return larger


def preview(values: list[int], limit: int = 10) -> str:
    """Return the first values as text, for messages."""
    return ", ".join(map(str, values[:limit])) + (", ..." if len(values) > limit else "")
