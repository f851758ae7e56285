"""Averaged GEM (Chaudhry et al., 2019): one constraint in place of one a task.

    g~ = g - min(<g, r>, 0) / <r, r> r

r is the gradient of the loss on a random batch of the memory, so a step costs twice a plain one,
whatever the memory's size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .base import METHODS, Method
from .gradients import GradientRows
from .replay import Replay


@METHODS.register("agem", "GEM with one constraint: the mean loss on a batch of the memory")
class AGEM(Replay):
    """Trains on new samples alone; the memory only turns the gradient. Nothing waits for the device.

    The optimizer is GEM's (plain SGD, 0.01): with Adam the step is no longer along the projected gradient.
    """

    head = "expanding"
    optimizer_name, lr = "sgd", 0.01
    rows: GradientRows | None = None  # the memory's and the batch's

    def fresh(self, batch: int) -> int:
        return batch

    def observe(self, images: Tensor, slots: Tensor) -> Tensor:
        if self.rows is None:
            self.rows = GradientRows(self.optimizer.param_groups[0]["params"], 2)
        if len(self.memory):
            self.rows.enter(0)
            chosen = self.memory.sample(self.config.batch, self.generator)
            self.learner.loss(self.memory.images[chosen], self.memory.slots[chosen]).backward()
        return Method.observe(self, images, slots)

    def step(self, loss: Tensor) -> None:
        assert self.rows is not None
        g = self.rows.enter(1)
        loss.backward()
        if len(self.memory):
            turn(g, self.rows.matrix[0])
        self.optimizer.step()


def turn(g: Tensor, reference: Tensor) -> None:
    """Take out of g (parameters,), in place, what points against the reference, if anything does."""
    along = g @ reference
    g -= torch.where(along < 0, along / (reference @ reference), 0.0) * reference
