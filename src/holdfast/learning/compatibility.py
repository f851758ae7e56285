"""Compatibility: can the model after task i search a gallery that the model after task j embedded?

M[i][j], j <= i, is the share of queries, embedded by the model after task i, whose nearest gallery vector, embedded by
the model after task j, has the right class. Both cover the classes of the tasks up to j, which both models know. The
measures are those of CL2R (Biondi et al., 2023), computed as in its authors' code:

    AC = share of the pairs i > j with M[i][j] >= M[j][j]
    AM = mean of all entries
    BC = mean over i < T of M[T][i] - M[i][i]
    FC = mean over i > 1 of M[i][i-1] - M[i][i]

Cosines are compared within one space, so this is fair between heads; angles in spaces of different kinds are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .learner import Learner
from .metrics import Matrix
from .streams import Task

MOST = 2000  # limit on the queries, and on the gallery, over all classes of a stream


def chosen(task: Task, classes: int) -> tuple[Tensor, Tensor]:
    """Return rows of the task's test set: queries and gallery, the same number of each class.

    They are the first ones of each class, so that every model of a run is measured on the same samples."""
    most = max(1, MOST // max(1, classes))
    queries, gallery = [], []
    for slot in sorted(task.slots):
        rows = (task.test.slots == slot).nonzero().squeeze(1)
        count = min(most, len(rows) // 2)
        queries.append(rows[:count])
        gallery.append(rows[count : 2 * count])
    return torch.cat(queries), torch.cat(gallery)


@torch.no_grad()
def embed(learner: Learner, tasks: Sequence[Task], classes: int, *, batch: int = 500) -> tuple[Tensor, Tensor, Tensor]:
    """Return unit vectors of the queries and of the gallery, (n, dim) each in half precision, and their slots (n,)."""
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    slots = []
    for task in tasks:
        both = chosen(task, classes)
        for side, rows in zip(parts, both):
            for some in rows.split(batch):
                images, _ = task.test.batch(some)
                side.append(F.normalize(learner.embed_frozen(images).float(), dim=1).half())
        slots.append(task.test.slots[both[0]])
    dim, device = learner.head.dim, learner.shift.device
    queries, gallery = (torch.cat([torch.zeros(0, dim, dtype=torch.half, device=device), *side]) for side in parts)
    return queries, gallery, torch.cat(slots)


def search(queries: Tensor, gallery: Tensor, slots: Tensor) -> tuple[float, float]:
    """Return the percentage of queries whose nearest gallery vector, and nearest class mean, has the right class.

    Query i and gallery row i both have the class `slots[i]`. Without queries both are NaN."""
    if not len(queries):
        return math.nan, math.nan
    queries, gallery = queries.float(), gallery.float()
    single = slots[torch.cat([(part @ gallery.T).argmax(1) for part in queries.split(500)])] == slots
    names, column = slots.unique(return_inverse=True)
    means = gallery.new_zeros(len(names), gallery.shape[1]).index_add_(0, column, gallery)
    mean = (queries @ F.normalize(means, dim=1).T).argmax(1) == column
    return 100 * float(single.double().mean()), 100 * float(mean.double().mean())


class Galleries:
    """The gallery of each model of a run, and the searches of every later model in them."""

    def __init__(self) -> None:
        self.vectors: list[Tensor] = []  # after each task, (gallery, dim), on the CPU
        self.single: list[list[float]] = []  # M against single samples
        self.means: list[list[float]] = []  # M against class means

    def add(self, learner: Learner, tasks: Sequence[Task], classes: int) -> None:
        """Embed with the model of this moment, and search in all galleries so far."""
        queries, gallery, slots = (part.cpu() for part in embed(learner, tasks, classes))
        self.vectors.append(gallery)
        found = [search(queries[: len(old)], old, slots[: len(old)]) for old in self.vectors]
        self.single.append([single for single, _ in found])
        self.means.append([mean for _, mean in found])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything as tensors and JSON."""
        return {str(i): v for i, v in enumerate(self.vectors)}, {"single": self.single, "means": self.means}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], plain: dict[str, Any]) -> Galleries:
        """Continue from what `state` returned."""
        found = cls()
        found.vectors = [tensors[str(i)] for i in range(len(tensors))]
        found.single, found.means = plain["single"], plain["means"]
        return found


def summary(single: Matrix, means: Matrix) -> dict[str, Any] | None:
    """Return both matrices and the measures of the first, in percent; None if a task has no queries, or is alone."""
    tasks, entries = len(single), [value for row in single for value in row]
    if tasks < 2 or any(math.isnan(value) for value in entries):
        return None
    pairs = [(i, j) for i in range(tasks) for j in range(i)]
    return {
        "matrix": single,
        "means": means,
        "ac": _mean([100.0 * (single[i][j] >= single[j][j]) for i, j in pairs]),
        "am": _mean(entries),
        "bc": _mean([single[-1][i] - single[i][i] for i in range(tasks - 1)]),
        "fc": _mean([single[i][i - 1] - single[i][i] for i in range(1, tasks)]),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
