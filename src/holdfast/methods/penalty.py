"""The quadratic penalty that EWC, SI and MAS share: strength * sum(importance * (theta - anchor)^2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..learning.method import Method
from ..learning.streams import Task
from ..options import Options, option
from .importance import CHUNK, Fold, Slope, batch_gradients, mean_gradients


@dataclass(frozen=True)
class PenaltyOptions(Options):
    strength: float | None = option(
        None, "weight of the penalty  (default: the benchmark's, or else an untuned value: 100 for "
        "ewc and online-ewc, 1 for si and mas)", at_least=0,
    )
    fallbacks: ClassVar = {"strength": 1.0}


@dataclass(frozen=True)
class MeasuredOptions(PenaltyOptions):
    """The options of penalties that measure importance on samples after each task."""

    importance_samples: int | None = option(
        None, "samples per task on which importance is measured  (default: all)", at_least=1
    )
    gradients: str = option(
        "sample", "gradients behind importance: of each sample (as published), or summed over batches of 128 first "
        "(as in the reference code)", choices=("sample", "batch"),
    )


class Penalty(Method):
    """Keeps important parameters near their values after earlier tasks; subclasses define the importance.

    The penalty's gradient, 2 strength importance (theta - anchor), is added after the backward pass. That is the same
    update as adding the penalty to the loss, but needs no autograd graph. The reported loss is the data's only.
    Buffers (batch norm's statistics) are not penalised.
    """

    Options: type[PenaltyOptions] = PenaltyOptions
    options: Any
    carries: tuple[str, ...] = ("importances", "anchors")  # lists with one tensor per parameter, saved in checkpoints

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.strength = float(self.options.strength or 0.0)
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
        """Return the parameters' gradients after a backward pass; zeros for unused parameters."""
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
        """Return the penalty whose gradient `pull` adds; for `ewc` up to a constant."""
        terms = zip(self.importances, self.parameters, self.anchors)
        return self.strength * sum(((i * (p - a).square()).sum() for i, p, a in terms), torch.zeros(()))

    def end_task(self, task: Task) -> None:
        self.consolidate(self.measure(task))

    def measure(self, task: Task) -> list[Tensor]:
        """Return the importance of each parameter for the task just learned."""
        raise NotImplementedError

    def consolidate(self, new: list[Tensor]) -> None:
        """Add the new importances to the old ones, and move the anchor to the current weights."""
        self.importances = list(torch._foreach_add(self.importances, new)) if self.importances else new
        self.anchors = self.weights()

    def weights(self) -> list[Tensor]:
        """Return a copy of the current parameters."""
        return [p.detach().clone() for p in self.parameters]

    def mean_gradients(self, task: Task, slope: Slope, fold: Fold) -> list[Tensor]:
        """Average over the task's training samples, or `importance_samples` random ones, without augmentation."""
        size, device = len(task.train), task.train.rows.device
        chosen = torch.arange(size, device=device)
        if (some := self.options.importance_samples) is not None and some < size:
            chosen = torch.randperm(size, generator=self.generator, device=device)[:some]
        measured = batch_gradients if self.options.gradients == "batch" else mean_gradients
        return measured(self.learner, map(task.train.batch, chosen.split(CHUNK)), slope, fold)

    def state(self) -> dict[str, Tensor]:
        return {f"{kind}.{name}": t for kind in self.carries for name, t in zip(self.names, getattr(self, kind))}

    def load(self, state: dict[str, Tensor]) -> None:
        for kind in self.carries:
            found = [state[f"{kind}.{name}"] for name in self.names if f"{kind}.{name}" in state]
            # Restore the memory layout of the parameter.
            setattr(self, kind, [torch.empty_like(p).detach().copy_(t) for p, t in zip(self.parameters, found)])
