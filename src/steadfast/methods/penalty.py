"""The quadratic penalty that EWC, SI and MAS share: strength * sum(importance * (theta - anchor)^2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import BadConfig
from ..streams import Task
from .base import Method
from .importance import CHUNK, Fold, Slope, mean_gradients


class Penalty(Method):
    """Parameters that mattered are held near where they were; a method only says how much each one mattered.

    The penalty's gradient, 2 strength importance (theta - anchor), is added to the data's after the backward pass:
    the same update as adding the penalty to the loss, in two passes over the parameters and no graph. The loss
    reported is the data's alone. Buffers (batch norm's statistics) are not held.
    """

    options: tuple[str, ...] = ("strength",)
    carries: tuple[str, ...] = ("importances", "anchors")  # lists of one tensor a parameter, kept in checkpoints

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.config.strength is None:
            raise BadConfig(f"{self.config.method} needs a strength, the weight of its penalty: give --strength.")
        self.strength = float(self.config.strength)
        named = {name: p for name, p in self.learner.named_parameters() if p.requires_grad}
        self.names = list(named)
        self.parameters: list[Tensor] = list(named.values())
        self.importances: list[Tensor] = []  # empty until a task has been learned
        self.anchors: list[Tensor] = []

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.backward(loss)
        self.pull(self.gradients())
        self.optimizer.step()

    def gradients(self) -> list[Tensor]:
        """The parameters' gradients after a backward pass; zero for those that took no part."""
        for p in self.parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        return [p.grad for p in self.parameters]  # type: ignore[misc]

    @torch.no_grad()
    def pull(self, gradients: list[Tensor]) -> None:
        """Add the penalty's gradient, 2 strength importance (theta - anchor)."""
        if self.importances:
            away = torch._foreach_sub(self.parameters, self.anchors)
            torch._foreach_addcmul_(gradients, self.importances, away, 2 * self.strength)

    def penalty(self) -> Tensor:
        """What `pull` adds the gradient of; for `ewc` up to a constant."""
        terms = zip(self.importances, self.parameters, self.anchors)
        return self.strength * sum(((i * (p - a).square()).sum() for i, p, a in terms), torch.zeros(()))

    def end_task(self, task: Task) -> None:
        self.consolidate(self.measure(task))

    def measure(self, task: Task) -> list[Tensor]:
        """The importance of each parameter for the task just learned."""
        raise NotImplementedError

    def consolidate(self, new: list[Tensor]) -> None:
        """Importances add up, the anchor is the latest: one pair for all tasks."""
        self.importances = list(torch._foreach_add(self.importances, new)) if self.importances else new
        self.anchors = self.weights()

    def weights(self) -> list[Tensor]:
        """A copy of the parameters as they are now."""
        return [p.detach().clone() for p in self.parameters]

    def mean_gradients(self, task: Task, slope: Slope, fold: Fold) -> list[Tensor]:
        """Over the task's training samples, or `importance_samples` of them at random, not augmented."""
        size, device = len(task.train), task.train.rows.device
        chosen = torch.arange(size, device=device)
        if (some := self.config.importance_samples) is not None and some < size:
            chosen = torch.randperm(size, generator=self.generator, device=device)[:some]
        return mean_gradients(self.learner, map(task.train.batch, chosen.split(CHUNK)), slope, fold)

    def state(self) -> dict[str, Tensor]:
        return {f"{kind}.{name}": t for kind in self.carries for name, t in zip(self.names, getattr(self, kind))}

    def load(self, state: dict[str, Tensor]) -> None:
        for kind in self.carries:
            found = [state[f"{kind}.{name}"] for name in self.names if f"{kind}.{name}" in state]
            if found and [t.shape for t in found] != [p.shape for p in self.parameters]:
                raise ValueError(f"{kind} that are not shaped as the parameters")
            # It lies in memory as its parameter does.
            setattr(self, kind, [torch.empty_like(p).detach().copy_(t) for p, t in zip(self.parameters, found)])

    def check(self, task: Task | None) -> None:
        super().check(task)
        if len(self.anchors) < len(self.importances):
            raise ValueError("importances without anchors")
