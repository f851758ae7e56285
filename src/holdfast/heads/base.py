"""The base class of all heads."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadConfig

SOFTMAX_OVER = ("all", "seen")
OVER_HELP = "slots in the softmax: all from the start, or only those of the classes seen so far"


class Head(nn.Module):
    """The interface of every head.

    `softmax_over` says which outputs the softmax runs over, in training and at test: `all` slots from the start, so
    that classes to come are trained as negatives, or only the slots `seen` so far.
    """

    def __init__(self, slots: int, dim: int, softmax_over: str) -> None:
        super().__init__()
        if softmax_over not in SOFTMAX_OVER:
            raise BadConfig(f"softmax_over is {softmax_over!r}; choose one of {', '.join(SOFTMAX_OVER)}.")
        self.slots, self.dim, self.softmax_over = slots, dim, softmax_over
        self.register_buffer("seen", torch.empty(0, dtype=torch.long), persistent=False)
        self.seen: Tensor  # (n,) the slots in use, in ascending order

    def open(self, slots: Iterable[int]) -> None:
        """Put these slots to use: their classes have come."""
        new = sorted({*self.seen.tolist(), *slots})
        if outside := [slot for slot in new if not 0 <= slot < self.slots]:
            raise BadConfig(f"Slots {outside} do not exist: this head has {self.slots} slots; allocate more.")
        self.seen = torch.tensor(new, dtype=torch.long, device=self.seen.device)

    def close(self, slot: int) -> None:
        """Free a slot: its class is gone."""
        self.seen = self.seen[self.seen != slot]

    def embed(self, features: Tensor) -> Tensor:
        """Map features (batch, in) to the space of the class directions, (batch, dim)."""
        raise NotImplementedError

    def directions(self, slots: Tensor) -> Tensor:
        """Return the unit vectors of these slots, (n, dim)."""
        raise NotImplementedError

    def outputs(self, embedded: Tensor, slots: Tensor | None = None) -> Tensor:
        """Map (batch, dim) to the logits of all slots, or of the given ones."""
        raise NotImplementedError

    def cross_entropy(self, embedded: Tensor, slots: Tensor, prior: Tensor | None, reduction: str) -> Tensor:
        """Return the cross-entropy over all slots; `prior` (slots,) is added to the logits."""
        logits = self.outputs(embedded)
        return F.cross_entropy(logits if prior is None else logits + prior, slots, reduction=reduction)

    def logits(self, features: Tensor) -> Tensor:
        """Map features (batch, in) to logits (batch, slots), or (batch, seen) in the order of `seen`."""
        return self.outputs(self.embed(features), self.seen if self.softmax_over == "seen" else None)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, so that a head can replace a classifier's last layer."""
        return self.logits(features)

    def loss(self, features: Tensor, slots: Tensor, *, prior: Tensor | None = None, reduction: str = "mean") -> Tensor:
        """Return the cross-entropy of these features; `prior` (slots,) is added to the logits in training."""
        embedded = self.embed(features)
        if self.softmax_over == "all":
            return self.cross_entropy(embedded, slots, prior, reduction)
        columns, known = self._columns(slots)
        logits = self.outputs(embedded, self.seen)  # (batch, seen)
        if prior is not None:
            logits = logits + prior[self.seen]
        loss = F.cross_entropy(logits, columns, reduction=reduction)
        # A GPU does not wait to see whether a slot is unknown: the loss becomes NaN instead.
        return loss if known is None else torch.where(known.all(), loss, torch.nan)

    def _columns(self, slots: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the column of each slot among the seen ones and, on a GPU, which of the slots have been opened."""
        if not len(self.seen):
            raise BadConfig("No slot has been opened yet; call head.open(slots) first.")
        columns = torch.searchsorted(self.seen, slots).clamp(max=len(self.seen) - 1)
        known = self.seen[columns] == slots
        if slots.device.type != "cpu":
            return columns, known
        if not bool(known.all()):
            strange = sorted({*slots[~known].tolist()})[:5]
            raise BadConfig(f"Slots {strange} have not been opened; call head.open({strange}) first.")
        return columns, None

    def predict(self, features: Tensor) -> Tensor:
        """Return the slot of the largest logit, (batch,)."""
        return self.nearest(self.embed(features))

    def nearest(self, embedded: Tensor) -> Tensor:
        """Return the slot of the largest logit, (batch,), from embedded features (batch, dim)."""
        if self.softmax_over == "seen":
            return self.seen[self.outputs(embedded, self.seen).argmax(1)]
        return self.outputs(embedded).argmax(1)

    def get_extra_state(self) -> Tensor:
        return self.seen

    def set_extra_state(self, state: Tensor) -> None:
        self.seen = state.to(self.seen.device)
