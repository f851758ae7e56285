"""Gradient episodic memory (Lopez-Paz and Ranzato, 2017): no step may increase an old task's loss.

    min ||g~ - g||^2   subject to   <g~, g_k> >= 0   for every old task k

g is the gradient of the loss on the batch, g_k that of the loss on the whole memory of task k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import quadprog
import torch
from torch import Tensor

from ..learning.memory import Memory, MemoryOptions
from ..learning.method import Method
from ..learning.streams import Task
from ..options import option
from .gradients import GradientRows

CHUNK = 256  # samples from memory per forward pass, to bound the activations
RIDGE = 1e-6  # added to the diagonal, relative to its mean, so that the problem is positive definite


@dataclass(frozen=True)
class GEMOptions(MemoryOptions):
    margin: float = option(
        0.5, "how far a step that would raise an old task's loss is turned towards that task; 0 is just enough",
        at_least=0,
    )
    gem_replay: bool = option(False, "also train on the memory, half of each batch, as the reference code does")


class GEM(Method):
    """The memory constrains the step; with `gem_replay` half of each batch also comes from memory.

    `gem_replay` is off by default, because GEM's authors train on new data only. The paper most likely used it
    (docs/rivals.md).

    As in the reference, the memory passes through the network in training mode: batch norm uses the statistics of
    each chunk and updates the running ones. So with batch norm g_k depends on how a task's memory is split.
    """

    Options: type[MemoryOptions] = GEMOptions
    options: Any
    optimizer_name, lr = "sgd", 0.01  # only plain SGD steps along the projected gradient

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        shape, device = self.learner.shape, self.learner.shift.device
        self.memory: Memory = Memory(self.options.memory or 0, shape, self.options.policy, device)
        self.replays = bool(getattr(self.options, "gem_replay", False))
        self.chunks: list[list[Tensor]] | None = None  # rows of the memory: one list per task, one tensor per pass

    def new_per_batch(self) -> int:
        return self.batch - self.batch // 2 if self.replays and len(self.memory) else self.batch

    def observe(self, images: Tensor, slots: Tensor) -> Tensor:
        if self.chunks is None:
            self.prepare()
        self.look_back()
        if self.replays and len(self.memory):
            rows = self.memory.sample(self.batch // 2, self.generator)
            images = torch.cat([images, self.memory.images[rows]])
            slots = torch.cat([slots, self.memory.slots[rows]])
        return super().observe(images, slots)

    def prepare(self) -> None:
        """Split each task's memory into equal passes; the memory does not change until the task ends."""
        sets = [self.memory.of_task(task) for task in self.memory.tasks[: len(self.memory)].unique().tolist()]
        self.chunks = [list(rows.chunk(-(-len(rows) // CHUNK))) for rows in sets]
        self.gradients = GradientRows(self.optimizer.param_groups[0]["params"], len(sets) + 1)  # the last row is g

    def look_back(self) -> None:
        """Compute every g_k; each chunk adds its share of the mean over the task's memory."""
        for k, chunks in enumerate(self.chunks or []):
            self.gradients.enter(k)
            total = sum(map(len, chunks))
            for rows in chunks:
                loss = self.learner.loss(self.memory.images[rows], self.memory.slots[rows], reduction="sum")
                self.backward(loss / total)

    def step(self, loss: Tensor) -> None:
        g = self.gradients.enter(-1)  # (parameters,)
        self.backward(loss)
        self.turn(g, self.gradients.matrix[:-1])
        self.optimizer.step()

    def turn(self, g: Tensor, old: Tensor) -> None:
        """Change g in place so that its product with every row of `old` (tasks, parameters) is at least 0."""
        project(g, old, self.options.margin)

    def end_task(self, task: Task) -> None:
        self.memory.remember(task, self.generator, self.learner.embed_frozen)
        self.chunks = None

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        self.chunks = None


def project(g: Tensor, old: Tensor, margin: float = 0.0) -> None:
    """Project g (parameters,) in place to the nearest vector with <g, row> >= 0 for all rows of old.

    It solves the dual, with one variable per task: min 1/2 v' G G' v + g' G' v, v >= margin; then g~ = g + G' v.
    A margin above 0 favours old tasks: a violating step also moves along every old task's gradient.
    """
    along = old @ g  # (tasks,)
    if not bool((along < 0).any() & along.isfinite().all()):  # synchronises with the GPU; the rest is small
        return
    exact = old.double()
    v = dual((exact @ exact.T).cpu().numpy(), (exact @ g.double()).cpu().numpy(), margin)
    g += torch.from_numpy(v).to(g) @ old


def dual(gram: np.ndarray, along: np.ndarray, margin: float) -> np.ndarray:
    """Return v (tasks,) from G G' (tasks, tasks) and G g (tasks,).

    The problem is divided by the mean of the diagonal, so that small gradients are projected as exactly as large ones.
    (The original adds an absolute 0.001 to the diagonal, which near convergence exceeds the gradients themselves.)
    """
    scale, eye = gram.diagonal().mean(), np.eye(len(gram))
    bound = np.full(len(gram), float(margin))
    return quadprog.solve_qp(gram / scale + RIDGE * eye, -along / scale, eye, bound)[0]
