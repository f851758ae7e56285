"""Metrics: accuracies over the stream, forgetting, and the movement of the features."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .learner import Learner
from .streams import Samples, Task

Predict = Callable[[Tensor], Tensor]
Matrix = Sequence[Sequence[float]]  # row i: a[i][j], the accuracy on task j after learning task i, j <= i


def final_average_accuracy(matrix: Matrix) -> float:
    """Return the mean over tasks j of a[T, j], as in the paper."""
    return average_accuracy(matrix)[-1]


def average_accuracy(matrix: Matrix) -> list[float]:
    """Return, after each task, the unweighted mean over the tasks seen so far."""
    return [sum(row) / len(row) for row in matrix]


def forgetting(matrix: Matrix) -> float:
    """Return the mean over all tasks but the last of (best earlier accuracy - final accuracy)."""
    last = len(matrix) - 1
    if last < 1:
        return 0.0
    return sum(max(matrix[i][j] for i in range(j, last)) - matrix[last][j] for j in range(last)) / last


def backward_transfer(matrix: Matrix) -> float:
    """Return the mean over all tasks but the last of (final accuracy - accuracy when just learned)."""
    last = len(matrix) - 1
    if last < 1:
        return 0.0
    return sum(matrix[last][j] - matrix[j][j] for j in range(last)) / last


def degrees(a: Tensor, b: Tensor) -> Tensor:
    """Return the angles (n,) between rows of unit vectors, (n, dim) each; accurate for tiny angles too."""
    a, b = a.double(), b.double()
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1)) * (180 / math.pi)


@dataclass(frozen=True)
class Evaluation:
    """One pass over the test sets of the tasks seen."""

    accuracies: list[float]  # in percent, one per task
    directions: Tensor  # (classes, dim) unit mean embedding of each class, by slot; zero where unseen


@torch.no_grad()
def evaluate(
    learner: Learner, tasks: Sequence[Task], classes: int, *, batch: int = 500, predict: Predict | None = None
) -> Evaluation:
    """Return the accuracy on each test set, and the mean direction of each class.

    `predict` maps embedded samples (batch, dim) to slots (batch,); by default it is the head's answer."""
    predict = predict or learner.head.nearest
    training = learner.training
    learner.eval()
    device = learner.shift.device
    sums = torch.zeros(classes, learner.head.dim, dtype=torch.float32, device=device)
    correct = [_pass(learner, task.test, sums, batch, predict) for task in tasks]
    learner.train(training)
    accuracies = [100 * float(c) / len(t.test) if len(t.test) else math.nan for c, t in zip(correct, tasks)]
    return Evaluation(accuracies, F.normalize(sums, dim=1).cpu())


def _pass(learner: Learner, samples: Samples, sums: Tensor, batch: int, predict: Predict) -> Tensor:
    correct = torch.zeros((), dtype=torch.long, device=sums.device)
    for chosen in torch.arange(len(samples), device=sums.device).split(batch):
        images, slots = samples.batch(chosen)
        embedded = learner.embed(images)
        correct += (predict(embedded) == slots).sum()
        sums.index_add_(0, slots, F.normalize(embedded.float(), dim=1))
    return correct


def drift(history: Tensor, slots_of_task: Sequence[Sequence[int]]) -> list[list[float | None]]:
    """Return, after task i (row i), how many degrees each class's mean direction has turned since it was learned.

    `history` is (tasks done, classes, dim). Classes not learned yet are None."""
    learned = {slot: index for index, slots in enumerate(slots_of_task) for slot in slots}
    return [
        [_turned(now, history[learned[slot]], slot) if learned.get(slot, len(history)) <= after else None
         for slot in range(history.shape[1])]
        for after, now in enumerate(history)
    ]


def alignment(history: Tensor, slots_of_task: Sequence[Sequence[int]], directions: Tensor) -> list[list[float | None]]:
    """Return, after task i (row i), the angle between each class's mean direction and the head's direction.

    `directions` is (tasks done, classes, dim): the head's directions after each task."""
    learned = {slot: index for index, slots in enumerate(slots_of_task) for slot in slots}
    return [
        [_turned(now, directions[after], slot) if learned.get(slot, len(history)) <= after else None
         for slot in range(history.shape[1])]
        for after, now in enumerate(history)
    ]


def _turned(a: Tensor, b: Tensor, slot: int) -> float | None:
    """Return the angle between two directions of a class, or None if the class has no test samples."""
    known = bool(a[slot].any()) and bool(b[slot].any())
    return float(degrees(a[slot], b[slot])) if known else None


def separation(history: Tensor, slots_of_task: Sequence[Sequence[int]]) -> list[float | None]:
    """Return, after each task, the mean angle between the mean directions of the learned classes.

    It is the scale for drift: 30 degrees is little where classes are 96 degrees apart (a simplex), and much where
    they are 40 degrees apart (after a ReLU all features share an orthant). Classes without test samples do not
    count. The value is None while fewer than two classes count."""
    means: list[float | None] = []
    slots: list[int] = []
    for after, new in enumerate(slots_of_task):
        slots += new
        known = [slot for slot in slots if bool(history[after, slot].any())]  # classes with test samples
        if len(known) < 2:
            means.append(None)
            continue
        a, b = torch.combinations(torch.tensor(known), 2).unbind(1)
        means.append(float(degrees(history[after, a], history[after, b]).mean()))
    return means
