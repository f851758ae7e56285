"""Learning without forgetting (Li and Hoiem, 2016): distillation without a memory.

    L = CE(B; C_new) + lambda * mean of - sum_{k in C_old} p'_k log p_k,   p = softmax(z / T)

p' are the answers of the learner as it was before the task, on the new samples. Each sum has its own softmax: one over
the classes of the task, C_new, one over the classes before it, C_old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..options import Options, option
from .distillation import log_answers, soft_cross_entropy
from .rehearsal import Distilling


@dataclass(frozen=True)
class LwFOptions(Options):
    old_weight: float | None = option(
        None, "lwf's lambda: weight of the answers over the old classes  (default: the benchmark's, or else the "
        "paper's, 1)", at_least=0,
    )
    temperature: float = option(2.0, "temperature T of the softened answers", above=0)
    fallbacks: ClassVar = {"old_weight": 1.0}


class LwF(Distilling):
    """The teacher is the learner before the task; the first task has none."""

    Options = LwFOptions
    options: LwFOptions

    def loss(self, images: Tensor, slots: Tensor) -> Tensor:
        head, new = self.learner.head, self.new_slots()
        embedded = head.embed(self.learner.features(images))
        loss = F.nll_loss(log_answers(head, embedded, new), torch.searchsorted(new, slots))
        if self.before is None:
            return loss
        old, temperature = self.before.head.seen, self.options.temperature
        wanted = log_answers(self.before.head, self.before.embed(images), old, temperature)
        distance = soft_cross_entropy(log_answers(head, embedded, old, temperature), wanted)
        return loss + (self.options.old_weight or 0.0) * distance
