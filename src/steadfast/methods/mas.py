"""Memory aware synapses: a parameter matters as much as the outputs move with it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..streams import Task
from .base import METHODS
from .penalty import Penalty


@METHODS.register("mas", "memory aware synapses: how much the outputs move with each parameter; needs no labels")
class MAS(Penalty):
    """Importance is the mean over samples of |d mean(logits^2) / d theta|, each sample by itself."""

    options = ("strength", "importance_samples")

    def measure(self, task: Task) -> list[Tensor]:
        return self.mean_gradients(task, self.slope, torch.abs)

    def slope(self, logits: Tensor, slots: Tensor) -> Tensor:
        """d mean(logits^2) / d logits, (batch, n); the slots are not looked at."""
        return 2 * logits / logits.shape[1]
