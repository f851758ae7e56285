"""Synaptic intelligence: a parameter's importance is how much its path lowered the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..learning.streams import Task
from .penalty import Penalty

DAMPING = 0.1


class SI(Penalty):
    """Importance is the path integral of -gradient * step over the task / ((total step)^2 + 0.1).

    The gradient is that of the data's loss without the penalty; the step is the one the optimizer took, as in the
    reference. A path that raised the loss gives a negative importance, which is not clipped, as in the reference.
    """

    carries = (*Penalty.carries, "paths")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.paths: list[Tensor] = []

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.anchors = self.anchors or self.weights()  # a task starts where the last one ended
        self.paths = [torch.zeros_like(p).detach() for p in self.parameters]

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.backward(loss)
        gradients, before = self.gradients(), self.weights()
        if self.importances:
            gradients = [g.clone() for g in gradients]  # before the penalty is added
        self.pull(self.gradients())
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_sub_(before, self.parameters)  # -step
            torch._foreach_addcmul_(self.paths, gradients, before)

    @torch.no_grad()
    def measure(self, task: Task) -> list[Tensor]:
        total = torch._foreach_sub(self.parameters, self.anchors)
        damped = torch._foreach_add(torch._foreach_mul(total, total), DAMPING)
        return list(torch._foreach_div(self.paths, damped))
