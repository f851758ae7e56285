"""Weight aligning (Zhao et al., 2020, "Maintaining discrimination and fairness in class incremental learning").

    L = (1 - lambda) CE + lambda * mean of - sum_{k in C_old} p'_k log p_k,   p = softmax(z / T)
    lambda = |C_old| / (|C_old| + |C_new|)

    after each task:  w_k <- gamma w_k for k in C_new,   gamma = mean_{C_old} |w_k| / mean_{C_new} |w_k|

Training on few old and many new samples makes the rows of new classes longer, which favours them. A fixed head has
unit directions: gamma is 1, and only the distillation remains.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..heads.trainable import TrainableHead
from ..learning.streams import Task
from ..options import option
from .distillation import log_answers, soft_cross_entropy
from .rehearsal import HerdingOptions, Rehearsal


@dataclass(frozen=True)
class WAOptions(HerdingOptions):
    temperature: float = option(2.0, "temperature T of the softened answers", above=0)


class WA(Rehearsal):
    """p' are the answers of the learner as it was before the task, on new samples and on samples from memory."""

    Options = WAOptions
    distils = True

    def loss(self, images: Tensor, slots: Tensor) -> Tensor:
        head, features = self.learner.head, self.learner.features(images)
        loss = head.loss(features, slots)
        if self.before is None:
            return loss
        old, temperature = self.before.head.seen, self.options.temperature
        wanted = log_answers(self.before.head, self.before.embed(images), old, temperature)
        distance = soft_cross_entropy(log_answers(head, head.embed(features), old, temperature), wanted)
        share = len(old) / len(head.seen)
        return (1 - share) * loss + share * distance

    def end_task(self, task: Task) -> None:
        if self.before is not None and isinstance(self.learner.head, TrainableHead):
            self.align(self.learner.head.rows.weight.data, self.before.head.seen, self.new_slots())
        super().end_task(task)

    @staticmethod
    def align(rows: Tensor, old: Tensor, new: Tensor) -> None:
        """Scale the new rows in place, so that old and new rows have the same mean length."""
        lengths = rows.norm(dim=1)
        rows[new] *= lengths[old].mean() / lengths[new].mean().clamp(min=torch.finfo(rows.dtype).tiny)
