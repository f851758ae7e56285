"""Whether what a checkpoint says can be of the run that is to go on from it: a ValueError says what cannot.

A digest keeps out accidents. A file that someone has made may have a right one over anything, so nothing in it is
taken for granted: it is refused here, before a step is taken, or it goes on as what it says it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .training import Position, Trainer

LARGEST = 1e300  # of a number that was measured; JSON may hold integers of a thousand digits
KEPT = {torch.optim.Adam: {"step", "exp_avg", "exp_avg_sq"}, torch.optim.SGD: {"momentum_buffer"}}  # a parameter


def check(trainer: Trainer, at: Position) -> None:
    """The trainer has loaded its learner, optimizer and method; `at` is where it is to go on."""
    _check_place(trainer, at)
    _check_order(trainer, at)
    _check_history(trainer, at)
    _check_learner(trainer, at)
    _check_optimizer(trainer.method.optimizer)
    trainer.method.check(trainer.tasks[at.task] if at.begun else None)


def _check_place(trainer: Trainer, at: Position) -> None:
    if not all(type(value) is int for value in (at.task, at.epoch, at.step)) or type(at.begun) is not bool:
        raise ValueError(f"no place in a stream: {at.task!r:.50}, {at.begun!r:.50}, {at.epoch!r:.50}, {at.step!r:.50}")
    if not 0 <= at.task <= len(trainer.tasks) or (at.begun and at.task == len(trainer.tasks)):
        raise ValueError(f"task {at.task + 1} of {len(trainer.tasks)}")
    if not 0 <= at.epoch < trainer.epochs or (at.epoch and not at.begun):
        raise ValueError(f"epoch {at.epoch + 1} of {trainer.epochs}, begun: {at.begun}")


def _check_order(trainer: Trainer, at: Position) -> None:
    """An epoch that has begun has an order of all the task's samples, and a loss for each step of it."""
    if at.order is None or at.losses is None:
        if at.order is not at.losses or at.step:
            raise ValueError(f"step {at.step + 1} of an epoch that has not begun")
        return
    if not at.begun:
        raise ValueError("an epoch of a task that has not begun")
    size = len(trainer.tasks[at.task].train)
    every = torch.arange(size, device=at.order.device)
    if at.order.dtype != torch.long or at.order.shape != (size,) or not torch.equal(at.order.sort().values, every):
        raise ValueError(f"an order that is not of the {size} samples of task {at.task + 1}")
    steps = len(at.order.split(trainer.method.fresh(trainer.batch)))
    if not 0 <= at.step < steps:
        raise ValueError(f"step {at.step + 1} of {steps}")
    fitting = at.losses.is_floating_point() and at.losses.shape == (steps,)
    if not fitting or not bool(at.losses.isfinite().all()):
        raise ValueError(f"losses that are not those of {steps} steps")


def _check_history(trainer: Trainer, at: Position) -> None:
    """What was measured is of the epochs and tasks that are done, no more and no less."""
    if not _number(at.seconds, 0, LARGEST):
        raise ValueError(f"{at.seconds!r:.50} seconds")
    every = len(trainer.stream.tasks) if trainer.method.joint else None
    rows = at.accuracies
    if not isinstance(rows, list) or len(rows) != at.task or not all(
        isinstance(row, list) and len(row) == (every or index + 1) and all(_number(value, 0, 100) for value in row)
        for index, row in enumerate(rows)
    ):
        raise ValueError(f"accuracies that are not those of {at.task} tasks")
    wanted: list[tuple[int, int | None]] = []
    for task in range(at.task + 1):
        wanted += [(task + 1, epoch + 1) for epoch in range(trainer.epochs if task < at.task else at.epoch)]
        wanted += [(task + 1, None)] if task < at.task else []
    if not isinstance(at.records, list) or not all(isinstance(record, dict) for record in at.records):
        raise ValueError("records that are none")
    if [(record.get("task"), record.get("epoch")) for record in at.records] != wanted:
        raise ValueError(f"records that are not those of {at.task} tasks and {at.epoch} epochs")
    for record in at.records:
        if "epoch" not in record and record.get("accuracies") != rows[record["task"] - 1]:
            raise ValueError(f"two accounts of the accuracies after task {record['task']}")
        if "epoch" in record and not (
            _number(record.get("seconds"), 0, LARGEST) and _number(record.get("loss"), -LARGEST, LARGEST)
        ):
            raise ValueError(f"a record of epoch {record['epoch']} of task {record['task']} without its numbers")
    shape = (len(trainer.stream.labels), trainer.learner.head.dim)
    for vectors in (at.features, at.directions):
        if len(vectors) != at.task or any(v.shape != shape or not v.is_floating_point() for v in vectors):
            raise ValueError(f"directions that are not those of {shape[0]} classes after {at.task} tasks")


def _check_learner(trainer: Trainer, at: Position) -> None:
    if wrong := not_finite(trainer.learner):
        raise ValueError(f"values that are not finite in {wrong[0]}")
    head, done = trainer.learner.head, trainer.tasks[: at.task + at.begun]
    open_slots, come = head.seen.tolist(), {slot for task in done for slot in task.slots}
    if trainer.tasks and (not {*open_slots} <= come or (head.over == "seen" and {*open_slots} != come)):
        raise ValueError(f"the slots {open_slots[:10]} in use, where the tasks so far have brought {sorted(come)[:10]}")


def not_finite(learner: torch.nn.Module) -> list[str]:
    """The names of weights and of batch norm's statistics that have a NaN or an infinite value."""
    named = {k: v for k, v in (*learner.named_parameters(), *learner.named_buffers()) if v.is_floating_point()}
    finite = torch.stack([value.isfinite().all() for value in named.values()]).tolist()  # a GPU is waited for once
    return [name for name, good in zip(named, finite) if not good]


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Its running sums are shaped as their parameters, all of them or none; whether they are finite is its business."""
    kept = KEPT.get(type(optimizer))
    for parameter, slot in optimizer.state.items():
        if kept is not None and slot and {*slot} != kept:
            raise ValueError(f"an optimizer's state of {sorted(slot)}, not of {sorted(kept)}")
        for name, value in slot.items():
            shape = () if name == "step" else parameter.shape
            if isinstance(value, Tensor) and (value.shape != shape or not value.is_floating_point()):
                raise ValueError(f"an optimizer's {name} that is {value.dtype} of {tuple(value.shape)}")


def _number(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
