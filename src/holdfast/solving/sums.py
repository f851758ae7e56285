"""The sums that are kept instead of samples: counts, class sums and the scatter within classes.

The scatter within classes W = sum_i (x_i - m_y)(x_i - m_y)^T and the class means m_c hold the same information
as the second moments G = sum_i x_i x_i^T, since G = W + sum_c n_c m_c m_c^T. W is stored because features with a
large offset lose their digits in G, and because every batch adds a positive part of low rank to W (Chan et al. 1979).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput
from .class_batch import ClassBatch, add_gram, grow, preview


class Sums:
    """Hold n_c, s_c and W in float64 for the classes seen so far, in the order of their first sample."""

    def __init__(self, dim: int, keep_scatter: bool = False) -> None:
        self.dim = dim
        self.within = torch.zeros(dim, dim, dtype=torch.float64)
        self.n_within = 0  # samples inside `within`; larger than n after an inexact forget
        self.row_of: dict[int, int] = {}  # slot -> row
        self.scatter: dict[int, Tensor] | None = {} if keep_scatter else None  # slot -> (dim, dim)
        self._counts = torch.zeros(0, dtype=torch.float64)
        self._sums = torch.zeros(0, dim, dtype=torch.float64)

    @property
    def n(self) -> int:
        """Return the number of samples of the classes in use."""
        return int(self.counts.sum())

    @property
    def n_classes(self) -> int:
        return len(self.row_of)

    @property
    def counts(self) -> Tensor:
        """Return the samples per class.  # (classes,)"""
        return self._counts[: self.n_classes]

    @property
    def sums(self) -> Tensor:
        """Return the sum of the features per class.  # (classes, dim)"""
        return self._sums[: self.n_classes]

    @property
    def means(self) -> Tensor:
        return self.sums / self.counts[:, None]

    @property
    def slots(self) -> list[int]:
        """Return the slots in row order."""
        return list(self.row_of)

    def mean(self) -> Tensor:
        """Return the mean of all samples.  # (dim,)"""
        return self.sums.sum(0) / max(self.n, 1)

    def between(self) -> Tensor:
        """Return rows R with R^T R = scatter of the class means around the overall mean.  # (classes, dim)"""
        return (self.means - self.mean()) * self.counts.sqrt()[:, None]

    def total(self, size: int | None = None) -> Tensor:
        """Return the scatter of the first `size` features around their overall mean.  # (size, size)"""
        size = self.dim if size is None else size
        rows = self.between()[:, :size]
        return self.within[:size, :size] + rows.T @ rows

    def moments(self) -> Tensor:
        """Return G, the second moments with the bias column last.  # (dim + 1, dim + 1)"""
        sums, means = self.sums, self.means
        top = torch.cat([self.within + means.T @ sums, sums.sum(0)[:, None]], 1)
        last = torch.cat([sums.sum(0), torch.tensor([float(self.n)], dtype=torch.float64)])
        return torch.cat([top, last[None]])

    def add(self, features: Tensor, slots: Tensor) -> Tensor:
        """Add samples and return rows R such that `within` grew by R^T R.  # (at most samples, dim)"""
        if not bool(torch.isfinite(features.square().sum())):
            raise BadInput("features are too large: their squares overflow float64; divide them by their largest value")
        batch = ClassBatch(features, slots)
        self._ensure_rows(batch.slots)
        at = self.rows(batch.slots)
        old = self._counts[at]
        shift = batch.means - self._sums[at] / old.clamp(min=1)[:, None]
        shift = shift * (old * batch.counts / (old + batch.counts)).sqrt()[:, None]
        rows = torch.cat([batch.residuals(), shift[old > 0]])
        add_gram(self.within, rows)
        if self.scatter is not None:
            for index, slot in enumerate(batch.slots):
                part = torch.cat([batch.residuals(index), shift[index : index + 1] * float(old[index] > 0)])
                add_gram(self.scatter.setdefault(slot, torch.zeros_like(self.within)), part)
        self._counts[at] += batch.counts
        self._sums[at] += batch.sums
        self.n_within += len(features)
        return rows

    def subtract(self, features: Tensor, slots: Tensor) -> None:
        """Remove samples that were added before; a class without samples disappears."""
        batch = ClassBatch(features, slots)
        for index, slot in enumerate(batch.slots):
            if slot not in self.row_of:
                raise BadInput(f"slot {slot} was never learned; subtract only samples that were added")
            row, count = self.row_of[slot], float(batch.counts[index])
            left = float(self._counts[row]) - count
            if left < 0:
                raise BadInput(
                    f"slot {slot} holds {int(self._counts[row])} samples, {int(count)} cannot be removed; "
                    "give each sample once"
                )
            rest = (self._sums[row] - batch.sums[index]) / max(left, 1.0)
            if left == 0:
                self._check_same_sum(slot, batch.sums[index])
            shift = (batch.means[index] - rest)[None] * (left * count / (left + count)) ** 0.5
            part = torch.cat([batch.residuals(index), shift])
            add_gram(self.within, part, -1.0)
            if self.scatter is not None:
                add_gram(self.scatter[slot], part, -1.0)
            self.n_within -= int(count)
            if left == 0:
                self._drop(slot)
            else:
                self._counts[row] = left
                self._sums[row] -= batch.sums[index]

    def forget(self, slot: int, features: Tensor | None = None) -> bool:
        """Remove a class. Return True if nothing of it remains, False if `within` still contains its scatter."""
        if slot not in self.row_of:
            raise BadInput(f"slot {slot} was never learned; learned slots are {preview(self.slots)}")
        if features is not None:
            count = int(self._counts[self.row_of[slot]])
            if len(features) != count:
                raise BadInput(
                    f"slot {slot} was learned from {count} samples, {len(features)} were given; give all of them"
                )
            self.subtract(features, torch.full((count,), slot))
            return True
        if self.scatter is not None:
            self.within -= self.scatter[slot]
            self.n_within -= int(self._counts[self.row_of[slot]])
            self._drop(slot)
            return True
        self._drop(slot)
        return False

    def merge(self, other: Sums) -> None:
        """Add the sums of a model taught elsewhere: the result equals the sums over both data sets."""
        if other.dim != self.dim:
            raise BadInput(
                f"cannot merge sums of {other.dim} features into sums of {self.dim}; use the same feature map"
            )
        if (self.scatter is None) != (other.scatter is None):
            raise BadInput("only one of the two models keeps class scatters; set keep_scatter alike in both")
        if other.n_classes == 0:
            return
        self._ensure_rows(other.slots)
        at = self.rows(other.slots)
        old = self._counts[at]
        shift = other.means - self._sums[at] / old.clamp(min=1)[:, None]
        shift = shift * (old * other.counts / (old + other.counts)).sqrt()[:, None]  # zero for new classes
        self.within += other.within
        add_gram(self.within, shift[old > 0])
        if self.scatter is not None and other.scatter is not None:
            for index, slot in enumerate(other.slots):
                mine = self.scatter.setdefault(slot, torch.zeros_like(self.within))
                mine += other.scatter[slot]
                add_gram(mine, shift[index : index + 1])
        self._counts[at] += other.counts
        self._sums[at] += other.sums
        self.n_within += other.n_within

    def relabel(self, new: dict[int, int]) -> None:
        """Give the slots new numbers."""
        self.row_of = {new[slot]: row for slot, row in self.row_of.items()}
        if self.scatter is not None:
            self.scatter = {new[slot]: part for slot, part in self.scatter.items()}

    def state(self, single: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and plain values, classes sorted by slot. `single` halves the size with float32."""
        slots = sorted(self.row_of)
        at, kind = self.rows(slots), torch.float32 if single else torch.float64
        tensors = {
            "slots": torch.tensor(slots, dtype=torch.int64),
            "counts": self._counts[at].to(torch.int64),
            "sums": self._sums[at].to(kind),
            "within": self.within.to(kind),
        }
        if self.scatter is not None:
            parts = [self.scatter[slot] for slot in slots] or [self.within.new_zeros(0, self.dim, self.dim)]
            tensors["scatter"] = (torch.stack(parts) if slots else parts[0]).to(kind)
        return tensors, {"dim": self.dim, "n_within": self.n_within, "keep_scatter": self.scatter is not None}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], plain: dict[str, Any]) -> Sums:
        """Rebuild the sums from `state()`."""
        self = cls(int(plain["dim"]), bool(plain["keep_scatter"]))
        slots, shape = tensors["slots"].tolist(), (self.dim, self.dim)
        if tuple(tensors["within"].shape) != shape or tuple(tensors["sums"].shape) != (len(slots), self.dim):
            raise BadInput(
                f"the stored sums have shapes {tuple(tensors['within'].shape)} and {tuple(tensors['sums'].shape)}, "
                f"expected {shape} and {(len(slots), self.dim)}; the file is damaged"
            )
        self.row_of = {slot: row for row, slot in enumerate(slots)}
        self._counts = tensors["counts"].to(torch.float64, copy=True)
        self._sums = tensors["sums"].to(torch.float64, copy=True)
        self.within = tensors["within"].to(torch.float64, copy=True)
        self.n_within = int(plain["n_within"])
        if self.scatter is not None:
            self.scatter = {
                slot: tensors["scatter"][row].to(torch.float64, copy=True) for row, slot in enumerate(slots)
            }
        return self

    def rows(self, slots: list[int]) -> Tensor:
        return torch.tensor([self.row_of[slot] for slot in slots], dtype=torch.int64)

    def _ensure_rows(self, slots: list[int]) -> None:
        for slot in slots:
            self.row_of.setdefault(slot, len(self.row_of))
        self._counts = grow(self._counts, self.n_classes)
        self._sums = grow(self._sums, self.n_classes)

    def _drop(self, slot: int) -> None:
        """Remove a row; the last class takes its place."""
        row, last = self.row_of.pop(slot), len(self.row_of)
        if row != last:
            moved = next(s for s, r in self.row_of.items() if r == last)
            slots = [s for s in self.row_of if s != moved]
            slots.insert(row, moved)
            self.row_of = {s: r for r, s in enumerate(slots)}
            self._counts[row], self._sums[row] = self._counts[last], self._sums[last]
        self._counts[last], self._sums[last] = 0.0, 0.0
        if self.scatter is not None:
            self.scatter.pop(slot, None)

    def _check_same_sum(self, slot: int, given: Tensor) -> None:
        kept = self._sums[self.row_of[slot]]
        if not torch.allclose(kept, given, rtol=1e-6, atol=1e-6 * float(kept.abs().max())):
            raise BadInput(
                f"the samples given for slot {slot} are not the ones it was learned from; give the same samples"
            )
