"""Elastic weight consolidation: importance is the diagonal of the Fisher information. Two ways to add tasks up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..streams import Task
from .base import METHODS
from .penalty import Penalty

IMPORTANCES = ("prediction", "label", "sample")


@METHODS.register("online-ewc", "elastic weight consolidation, one anchor: the latest weights, importances summed")
class OnlineEWC(Penalty):
    """Importance is the mean over samples of (d log p(y|x) / d theta)^2, each sample by itself.

    y is the model's own `prediction` (the reference), the `label` (the empirical Fisher), or a `sample` of
    p(y|x) (the Fisher information itself).
    """

    options = ("strength", "importance", "importance_samples")

    def measure(self, task: Task) -> list[Tensor]:
        return self.mean_gradients(task, self.slope, torch.square)

    def slope(self, logits: Tensor, slots: Tensor) -> Tensor:
        """d log p(y|x) / d logits = onehot(y) - p, (batch, n)."""
        p = logits.softmax(1)
        return F.one_hot(self.outcome(p, slots), p.shape[1]) - p

    def outcome(self, p: Tensor, slots: Tensor) -> Tensor:
        """The y whose likelihood it is, (batch,): a column of the logits."""
        if self.config.importance == "sample":
            return self.draw(p)
        if self.config.importance == "label":
            head = self.learner.head
            return torch.searchsorted(head.seen, slots) if head.over == "seen" else slots
        return p.argmax(1)

    def draw(self, p: Tensor) -> Tensor:
        """A column for each row, (batch,); ranks draw together, so that their generators stay alike."""
        ranks = self.learner.ranks
        every = p if ranks is None else ranks.every(p)
        drawn = torch.multinomial(every, 1, generator=self.generator).squeeze(1)
        return drawn if ranks is None else ranks.mine(drawn)


@METHODS.register("ewc", "elastic weight consolidation, one anchor a task")
class EWC(OnlineEWC):
    """sum_t F_t (theta - theta_t)^2, one pair a task, kept as one pair:

    it equals S (theta - m)^2 + constant, with S = sum_t F_t and m the mean of the theta_t weighted by F_t. So neither
    step nor checkpoint grows with the number of tasks, and the update is that of the sum.
    """

    def consolidate(self, new: list[Tensor]) -> None:
        if not self.importances:
            return super().consolidate(new)
        self.importances = list(torch._foreach_add(self.importances, new))
        for anchor, latest, f, s in zip(self.anchors, self.weights(), new, self.importances):
            share = f / s.clamp_min(torch.finfo(s.dtype).tiny)  # where nothing mattered yet, s = f = 0: stay
            anchor += share * (latest - anchor)
