"""Elastic weight consolidation: importance is the diagonal of the Fisher information."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..learning.streams import Task
from ..options import option
from .penalty import MeasuredOptions, Penalty


@dataclass(frozen=True)
class EWCOptions(MeasuredOptions):
    importance: str = option(
        "prediction", "class in EWC's Fisher information: prediction (the model's own), label (the true one) or sample "
        "(drawn from the model)", choices=("prediction", "label", "sample"),
    )
    fallbacks: ClassVar = {"strength": 100.0}


class OnlineEWC(Penalty):
    """Importance is the mean over samples of (d log p(y|x) / d theta)^2; gamma is 1.

    y is the model's own `prediction` (as in the reference), the `label` (the empirical Fisher), or a `sample` from
    p(y|x) (the Fisher information itself).
    """

    Options = EWCOptions
    options: EWCOptions

    def measure(self, task: Task) -> list[Tensor]:
        return self.mean_gradients(task, self.slope, torch.square)

    def slope(self, logits: Tensor, slots: Tensor) -> Tensor:
        """Return d log p(y|x) / d logits = onehot(y) - p, (batch, n)."""
        p = logits.softmax(1)
        return F.one_hot(self.outcome(p, slots), p.shape[1]) - p

    def outcome(self, p: Tensor, slots: Tensor) -> Tensor:
        """Return y as a column of the logits, (batch,)."""
        if self.options.importance == "sample":
            return self.draw(p)
        if self.options.importance == "label":
            head = self.learner.head
            return torch.searchsorted(head.seen, slots) if head.softmax_over == "seen" else slots
        return p.argmax(1)

    def draw(self, p: Tensor) -> Tensor:
        """Draw one column per row, (batch,); all ranks draw for the whole batch, to keep their generators equal."""
        ranks = self.learner.ranks
        every = p if ranks is None else ranks.every(p)
        drawn = torch.multinomial(every, 1, generator=self.generator).squeeze(1)
        return drawn if ranks is None else ranks.mine(drawn)


class EWC(OnlineEWC):
    """The penalty sum_t F_t (theta - theta_t)^2, with one (importance, anchor) pair per task, stored as one pair.

    It equals S (theta - m)^2 + constant, with S = sum_t F_t and m the mean of the theta_t weighted by F_t. So neither
    a step nor a checkpoint grows with the number of tasks, and the update is exact.
    """

    def consolidate(self, new: list[Tensor]) -> None:
        if not self.importances:
            return super().consolidate(new)
        self.importances = list(torch._foreach_add(self.importances, new))
        for anchor, latest, f, s in zip(self.anchors, self.weights(), new, self.importances):
            share = f / s.clamp_min(torch.finfo(s.dtype).tiny)  # s = f = 0: keep the anchor
            anchor += share * (latest - anchor)
