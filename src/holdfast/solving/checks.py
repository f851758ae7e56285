"""Checks of what users hand in, once, at the boundary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput

FOREIGN = 1e6  # ratio of typical sizes beyond which two batches cannot have the same features


def as_features(values: Any, dim: int | None) -> Tensor:
    """Return finite float64 features, or say which row is wrong.  # (batch, dim)"""
    data = torch.as_tensor(values).detach().to("cpu", torch.float64)
    if data.ndim != 2:
        raise BadInput(f"features have shape {tuple(data.shape)}; give one row per sample, shape (samples, features)")
    if dim is not None and data.shape[1] != dim:
        raise BadInput(f"samples have {data.shape[1]} features, the solver learned {dim}; use the same embedder")
    if not bool(torch.isfinite(data.sum())):  # the sum is finite if every value is, unless it overflows
        bad = (~torch.isfinite(data)).any(1).nonzero()
        if len(bad):
            raise BadInput(f"row {int(bad[0])} contains NaN or infinity ({len(bad)} such rows); remove or repair them")
    return data


def as_slots(values: Any, count: int) -> Tensor:
    """Return one slot per sample as int64.  # (batch,)"""
    slots = torch.as_tensor(values)
    if slots.ndim != 1 or len(slots) != count:
        raise BadInput(f"slots have shape {tuple(slots.shape)} for {count} samples; give one slot per sample")
    if slots.is_floating_point() or slots.dtype == torch.bool:
        raise BadInput(f"slots are {slots.dtype}; give whole numbers, and map labels to slots first")
    if len(slots) and int(slots.min()) < 0:
        raise BadInput(f"slot {int(slots.min())} is negative; slots start at 0")
    return slots.to(torch.int64)


def check_scale(data: Tensor, sums: Tensor, counts: Tensor, within: Tensor) -> None:
    """Refuse a batch whose values are FOREIGN times as large, or as small, as those learned so far.

    Such values drown the others in float64 sums. They usually come from another embedder or other units."""
    n = float(counts.sum())
    if n == 0 or not len(data):
        return
    square = float(within.diagonal().sum()) + float((sums.square().sum(1) / counts).sum())
    known, new = (square / n / data.shape[1]) ** 0.5, float(data.square().mean().sqrt())
    if known > 0 and new > 0 and not 1 / FOREIGN < new / known < FOREIGN:
        raise BadInput(
            f"these features have a typical size of {new:.3g}, those learned so far {known:.3g}; they come from "
            f"another embedder or have other units: use the same for all batches, or begin a new model"
        )
