"""Averaged GEM (Chaudhry et al., 2019): one constraint in place of one a task.

    g~ = g - min(<g, r>, 0) / <r, r> r

r is the gradient of the loss on a random batch of the memory, so a step costs twice a plain one,
whatever the memory's size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .base import METHODS
from .gem import GEM
from .gradients import GradientRows


@METHODS.register("agem", "GEM with one constraint: the mean loss on a batch of the memory")
class AGEM(GEM):
    """Trains on new samples alone; the memory only turns the gradient, and nothing waits for the device.

    Plain SGD at 0.01 as for GEM, and for the same reason.
    """

    options = ("memory", "policy")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.replays = False

    def prepare(self) -> None:
        self.chunks = []
        self.gradients = GradientRows(self.optimizer.param_groups[0]["params"], 2 if len(self.memory) else 1)

    def look_back(self) -> None:
        """r, of as many remembered samples as a batch has new ones."""
        if len(self.memory):
            self.gradients.enter(0)
            rows = self.memory.sample(self.config.batch, self.generator)
            self.backward(self.learner.loss(self.memory.images[rows], self.memory.slots[rows]))

    def turn(self, g: Tensor, old: Tensor) -> None:
        for reference in old:  # one, or none in the first task
            along = g @ reference
            g -= torch.where(along < 0, along / (reference @ reference), 0.0) * reference
