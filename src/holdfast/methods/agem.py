"""Averaged GEM (Chaudhry et al., 2019): one constraint instead of one per task.

    g~ = g - min(<g, r>, 0) / <r, r> r

r is the gradient of the loss on a random batch from memory. So a step costs twice a plain one, whatever the size of
the memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..learning.memory import MemoryOptions
from .gem import GEM
from .gradients import GradientRows


class AGEM(GEM):
    """Trains on new samples only; the memory only turns the gradient. No step synchronises with the GPU.

    The default optimizer is GEM's, for the same reason.
    """

    Options = MemoryOptions

    def prepare(self) -> None:
        self.chunks = []
        self.gradients = GradientRows(self.optimizer.param_groups[0]["params"], 2 if len(self.memory) else 1)

    def look_back(self) -> None:
        """Compute r from as many samples in memory as a batch has new ones."""
        if len(self.memory):
            self.gradients.enter(0)
            rows = self.memory.sample(self.batch, self.generator)
            self.backward(self.learner.loss(self.memory.images[rows], self.memory.slots[rows]))

    def turn(self, g: Tensor, old: Tensor) -> None:
        for reference in old:  # one, or none in the first task
            along = g @ reference
            g -= torch.where(along < 0, along / (reference @ reference), 0.0) * reference
