"""Memory aware synapses: a parameter's importance is how strongly the outputs depend on it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..learning.streams import Task
from .penalty import MeasuredOptions, Penalty


class MAS(Penalty):
    """Importance is the mean over samples of |d mean(logits^2) / d theta|."""

    Options = MeasuredOptions

    def measure(self, task: Task) -> list[Tensor]:
        return self.mean_gradients(task, self.slope, torch.abs)

    def slope(self, logits: Tensor, slots: Tensor) -> Tensor:
        """Return d mean(logits^2) / d logits, (batch, n); MAS needs no labels."""
        return 2 * logits / logits.shape[1]
