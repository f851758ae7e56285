"""A small random subset of the samples, kept for calibration only and independent of the order of the data.

Each sample has a key computed from its values. The subset is the samples with the smallest keys (a bottom-k sketch), so
any partition of the data gives the same subset, and two subsets merge into the subset of the joint data.
"""

from __future__ import annotations

import torch
from torch import Tensor

FULL = 2**63 - 1


class HeldSamples:
    """Hold at most `limit` samples with the smallest keys."""

    def __init__(self, dim: int, limit: int) -> None:
        self.limit, self.bound = limit, FULL  # keys at or above the bound were refused once and stay refused
        self.features = torch.zeros(0, dim, dtype=torch.float64)
        self.slots = torch.zeros(0, dtype=torch.int64)
        self.keys = torch.zeros(0, dtype=torch.int64)
        self._factors = key_factors(dim)

    def add(self, features: Tensor, slots: Tensor) -> None:
        if self.limit > 0:
            keys = keys_of(features, self._factors)
            admitted = keys < self.bound
            if bool(admitted.any()):
                self._take(features[admitted], slots[admitted], keys[admitted])

    def merge(self, other: HeldSamples) -> None:
        self.bound = min(self.bound, other.bound)
        self._take(other.features, other.slots, other.keys)

    def forget(self, slot: int) -> None:
        keep = self.slots != slot
        self.features, self.slots, self.keys = self.features[keep], self.slots[keep], self.keys[keep]

    def distinct(self) -> float:
        """Return the share of the samples that are no copy of another one, as the held samples tell; 1 without any."""
        return len(self.keys.unique()) / len(self.keys) if len(self.keys) else 1.0

    def keys_and_bound(self) -> Tensor:
        """Return the keys and the bound after them; JSON readers may round such large numbers.  # (samples + 1,)"""
        return torch.cat([self.keys, torch.tensor([self.bound])])

    def restore(self, features: Tensor, slots: Tensor, keys_and_bound: Tensor) -> None:
        self.features, self.slots, self.keys = features, slots, keys_and_bound[:-1]
        self.bound = int(keys_and_bound[-1])

    def _take(self, features: Tensor, slots: Tensor, keys: Tensor) -> None:
        features, slots = torch.cat([self.features, features]), torch.cat([self.slots, slots])
        keys, order = torch.cat([self.keys, keys]).sort(stable=True)
        if len(keys) > self.limit:
            self.bound = min(self.bound, int(keys[self.limit]))
        order = order[keys < self.bound]
        self.features, self.slots, self.keys = features[order], slots[order], keys[: len(order)]


def key_factors(dim: int) -> Tensor:
    return torch.randint(-FULL, FULL, (dim,), generator=torch.Generator().manual_seed(20)) | 1


def keys_of(features: Tensor, factors: Tensor) -> Tensor:
    """Return a number in [0, 2^63) per row that looks random but depends on the row's values only.  # (rows,)"""
    total = ((features + 0.0).contiguous().view(torch.int64) * factors).sum(1)  # + 0.0 turns -0.0 into 0.0
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685), (31, 1)):  # SplitMix64
        total = (total ^ ((total >> shift) & (FULL >> (shift - 1)))) * factor
    return total & FULL
