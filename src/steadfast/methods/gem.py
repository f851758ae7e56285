"""Gradient episodic memory (Lopez-Paz and Ranzato, 2017): no step may raise an old task's loss.

    min ||g~ - g||^2   subject to   <g~, g_k> >= 0   for every old task k

g is the gradient of the loss on the batch, g_k that of the loss on the whole memory of task k.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import quadprog
import torch
from torch import Tensor

from ..memory import Memory
from ..streams import Task
from .base import METHODS, Method
from .gradients import GradientRows

CHUNK = 256  # remembered samples a forward pass: bounds the activations whatever the memory's size
RIDGE = 1e-6  # added to the diagonal, relative to its mean, so that the programme is positive definite


@METHODS.register("gem", "project the gradient so that no old task's memory loss rises")
class GEM(Method):
    """The memory constrains the step; with `gem_replay` half of each batch comes from it as well.

    Off by default: GEM as its authors have it learns from new data alone. The paper's numbers are most likely with it
    (docs/rivals.md).

    As in the reference the memory passes are in training mode: they normalise by the statistics of their own
    chunk and enter the running ones. So with batch norm g_k depends on where a task's memory is cut.
    """

    options: tuple[str, ...] = ("memory", "policy", "margin", "gem_replay")
    remembers = True
    optimizer_name, lr = "sgd", 0.01  # the projection is of the gradient: only plain SGD steps along it

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        shape, device = self.learner.shape, self.learner.shift.device
        self.memory: Memory = Memory(self.config.memory or 0, shape, self.config.policy, device)
        self.replays = self.config.gem_replay
        self.chunks: list[list[Tensor]] | None = None  # rows of the memory: a list a task, a tensor a pass

    def fresh(self, batch: int) -> int:
        return batch - batch // 2 if self.replays and len(self.memory) else batch

    def observe(self, images: Tensor, slots: Tensor) -> Tensor:
        if self.chunks is None:
            self.prepare()
        self.look_back()
        if self.replays and len(self.memory):
            rows = self.memory.sample(self.config.batch // 2, self.generator)
            images = torch.cat([images, self.memory.images[rows]])
            slots = torch.cat([slots, self.memory.slots[rows]])
        return super().observe(images, slots)

    def prepare(self) -> None:
        """Cut each task's memory into equal passes; it stays as it is until the task ends."""
        sets = [self.memory.of_task(task) for task in self.memory.tasks[: len(self.memory)].unique().tolist()]
        self.chunks = [list(rows.chunk(-(-len(rows) // CHUNK))) for rows in sets]
        self.gradients = GradientRows(self.optimizer.param_groups[0]["params"], len(sets) + 1)  # the last for g

    def look_back(self) -> None:
        """Every g_k, chunk by chunk: each adds its share of the mean over the task's memory."""
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
        """Change g in place so that it points against none of `old` (tasks, parameters)."""
        project(g, old, self.config.margin)

    def end_task(self, task: Task) -> None:
        self.memory.remember(task, self.generator, self.learner.embed_frozen)
        self.chunks = None

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        self.chunks = None


def project(g: Tensor, old: Tensor, margin: float = 0.0) -> None:
    """Turn g (parameters,) in place to the nearest direction that has no row of old (tasks, parameters) against it.

    By the dual, a programme of one variable a task: min 1/2 v' G G' v + g' G' v, v >= margin; g~ = g + G' v.
    A margin above 0 favours old tasks: a step that would violate any then goes at least so far along all.
    """
    along = old @ g  # (tasks,)
    if not bool((along < 0).any() & along.isfinite().all()):  # here a GPU waits; what follows is tasks^2 numbers
        return
    exact = old.double()
    v = dual((exact @ exact.T).cpu().numpy(), (exact @ g.double()).cpu().numpy(), margin)
    g += torch.from_numpy(v).to(g) @ old


def dual(gram: np.ndarray, along: np.ndarray, margin: float) -> np.ndarray:
    """v (tasks,) from G G' (tasks, tasks) and G g (tasks,).

    Divided by the mean of the diagonal, so that small gradients are projected as well as large ones. (The
    original adds an absolute 0.001 to the diagonal; near convergence that outweighs the gradients themselves.)
    """
    scale, eye = gram.diagonal().mean(), np.eye(len(gram))
    bound = np.full(len(gram), float(margin))
    return quadprog.solve_qp(gram / scale + RIDGE * eye, -along / scale, eye, bound)[0]
