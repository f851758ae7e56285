"""Synaptic intelligence: a parameter matters as much as its way lowered the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..streams import Task
from .base import METHODS
from .penalty import Penalty

DAMPING = 0.1


@METHODS.register("si", "synaptic intelligence: what each parameter did for the loss on its way")
class SI(Penalty):
    """Importance is the path integral of -gradient * step over the task / ((total step)^2 + 0.1).

    The gradient is that of the data's loss without the penalty, the step the one really taken (as in the
    reference). A path that raised the loss counts as negative; the reference does not clip it, nor is it here.
    """

    carries = (*Penalty.carries, "paths")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.paths: list[Tensor] = []

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.anchors = self.anchors or self.weights()  # where the task starts is where the last one ended
        self.paths = [torch.zeros_like(p).detach() for p in self.parameters]

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.backward(loss)
        gradients, before = self.gradients(), self.weights()
        if self.importances:
            gradients = [g.clone() for g in gradients]  # of the loss alone
        self.pull(self.gradients())
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_sub_(before, self.parameters)  # -step
            torch._foreach_addcmul_(self.paths, gradients, before)

    def check(self, task: Task | None) -> None:
        super().check(task)
        if task is not None and not (self.anchors and self.paths):
            raise ValueError("a task without the paths of its parameters")

    @torch.no_grad()
    def measure(self, task: Task) -> list[Tensor]:
        total = torch._foreach_sub(self.parameters, self.anchors)
        damped = torch._foreach_add(torch._foreach_mul(total, total), DAMPING)
        return list(torch._foreach_div(self.paths, damped))
