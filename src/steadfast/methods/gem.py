"""Gradient episodic memory (Lopez-Paz and Ranzato, 2017): no step may raise an old task's loss.

    min ||g~ - g||^2   subject to   <g~, g_k> >= 0   for every old task k

g is the gradient of the loss on the batch, g_k that of the loss on the whole memory of task k.
"""

from __future__ import annotations

import numpy as np
import quadprog
import torch
from torch import Tensor

from ..streams import Task
from .base import METHODS, Method
from .gradients import GradientRows
from .replay import Replay

CHUNK = 256  # remembered samples a forward pass: bounds the activations whatever the memory's size
RIDGE = 1e-6  # added to the diagonal, relative to its mean, so that the programme is positive definite


@METHODS.register("gem", "project the gradient so that no old task's memory loss rises")
class GEM(Replay):
    """The memory constrains the step; with `gem_replay` half of each batch comes from it as well.

    As in the reference the memory passes are in training mode: they normalise by the statistics of their
    own chunk and enter the running ones. So with batch norm the gradient depends on where a task's memory is cut.
    """

    options = ("memory", "policy", "margin", "gem_replay")
    head = "expanding"
    optimizer_name, lr = "sgd", 0.01
    chunks: list[list[Tensor]] | None = None  # the memory's rows: a list a task, a tensor (<= CHUNK,) a pass
    rows: GradientRows  # one a task, and the last for the batch

    def fresh(self, batch: int) -> int:
        return super().fresh(batch) if self.config.gem_replay else batch

    def observe(self, images: Tensor, slots: Tensor) -> Tensor:
        if self.chunks is None:
            self.prepare()
        for task in range(len(self.rows.matrix) - 1):
            self.memory_gradient(task)
        return super().observe(images, slots) if self.config.gem_replay else Method.observe(self, images, slots)

    def prepare(self) -> None:
        """Cut each task's memory into equal passes; it stays as it is until the task ends."""
        tasks = self.memory.tasks[: len(self.memory)].unique().tolist()
        sets = [self.memory.of_task(task) for task in tasks]
        self.chunks = [list(rows.chunk(-(-len(rows) // CHUNK))) for rows in sets]
        self.rows = GradientRows(self.optimizer.param_groups[0]["params"], len(sets) + 1)

    def memory_gradient(self, task: int) -> None:
        """g_k, chunk by chunk: each adds its share of the mean over the task's memory."""
        assert self.chunks is not None
        self.rows.enter(task)
        total = sum(map(len, self.chunks[task]))
        for chosen in self.chunks[task]:
            loss = self.learner.loss(self.memory.images[chosen], self.memory.slots[chosen], reduction="sum")
            (loss / total).backward()

    def step(self, loss: Tensor) -> None:
        g = self.rows.enter(-1)  # (parameters,)
        loss.backward()
        project(g, self.rows.matrix[:-1], self.config.margin)
        self.optimizer.step()

    def end_task(self, task: Task) -> None:
        super().end_task(task)
        self.chunks = None

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        self.chunks = None


def project(g: Tensor, old: Tensor, margin: float = 0.0) -> None:
    """Turn g (parameters,) in place to the nearest direction that has no old (tasks, parameters) against it.

    By the dual, a programme of one variable a task: min 1/2 v' G G' v + g' G' v, v >= margin; g~ = g + G' v.
    A margin above 0 favours old tasks: each violated step then goes at least that far along every g_k.
    Scaled by the mean of the diagonal, so that it is the same for small gradients as for large ones (the
    original's ridge is 0.001, absolute, which gradients near convergence are below).
    """
    along = old @ g  # (tasks,)
    if not bool((along < 0).any() & along.isfinite().all()):  # the one wait for a GPU; the rest is tasks^2 numbers
        return
    exact = old.double()
    gram, along = exact @ exact.T, exact @ g.double()
    v = dual(gram.cpu().numpy(), along.cpu().numpy(), margin)
    g += torch.from_numpy(v).to(g) @ old


def dual(gram: np.ndarray, along: np.ndarray, margin: float) -> np.ndarray:
    """v (tasks,) from G G' (tasks, tasks) and G g (tasks,)."""
    scale, eye = gram.diagonal().mean(), np.eye(len(gram))
    bound = np.full(len(gram), float(margin))
    return quadprog.solve_qp(gram / scale + RIDGE * eye, -along / scale, eye, bound)[0]
