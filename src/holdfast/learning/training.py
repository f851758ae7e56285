"""The training loop: tasks, epochs, steps, checkpoints. After a stop at any step it resumes to the same bits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import BadConfig, LossNotFinite, Stopped
from . import checkpoints
from .compatibility import Galleries
from .learner import Learner
from .method import Method
from .metrics import evaluate
from .streams import Stream, Task


@dataclass
class Watcher:
    """Functions to call while training, for a progress bar or a test. All of them are optional."""

    begin: Callable[[int, int], None] = lambda tasks, epochs: None  # epochs per task; also when a run resumes
    step: Callable[[int], None] = lambda samples: None
    losses: Callable[[Tensor, int], None] = lambda losses, first: None  # of an epoch, and its first step's number
    epoch: Callable[[dict[str, Any]], None] = lambda record: None
    task: Callable[[dict[str, Any]], None] = lambda record: None
    embedding: Callable[[int], Callable[[int], None]] = lambda total: lambda count: None  # before samples are embedded
    stop: Callable[[], bool] = lambda: False


@dataclass
class Position:
    """The position of training in the stream, between two steps."""

    task: int = 0
    begun: bool = False  # the method has begun this task
    epoch: int = 0
    step: int = 0
    order: Tensor | None = None  # this epoch's shuffled samples
    losses: Tensor | None = None  # this epoch's losses, one per step, on the device
    seconds: float = 0.0  # spent in this epoch
    records: list[dict[str, Any]] = field(default_factory=list)  # one per epoch, one per task
    accuracies: list[list[float]] = field(default_factory=list)  # row i: after task i
    features: list[Tensor] = field(default_factory=list)  # after each task, (classes, dim) mean directions
    directions: list[Tensor] = field(default_factory=list)  # after each task, (classes, dim) the head's
    galleries: Galleries = field(default_factory=Galleries)  # each model's gallery, searched by every later model


def _check_slots(task: Task, stream: Stream) -> None:
    """Raise BadConfig if a task has samples of a slot that it does not introduce."""
    for what, samples, known in (
        ("training", task.train, set(task.slots)), ("test", task.test, set(range(len(stream.labels)))),
    ):
        if wrong := sorted(set(samples.slots.unique().tolist()) - known):
            raise BadConfig(
                f"Task {task.index + 1} of {stream.name} has {what} samples of slot {wrong[0]}; it introduces the "
                f"slots {sorted(task.slots)}, and the stream names {len(stream.labels)}."
            )


class Trainer:
    """Train a learner on a stream. `state()` is its whole state, and `load()` restores it."""

    def __init__(
        self,
        learner: Learner,
        method: Method,
        stream: Stream,
        *,
        epochs: int,
        generator: torch.Generator,
        schedule: Sequence[int] = (),
        watcher: Watcher | None = None,
        save: Callable[[Trainer], None] = lambda trainer: None,
    ) -> None:
        for task in stream.tasks:
            if not len(task.train):
                raise BadConfig(f"Task {task.index + 1} of {stream.name} has no training samples; leave it out.")
            _check_slots(task, stream)
        self.learner, self.method, self.stream = learner, method, stream
        self.tasks = stream.joined().tasks if method.joint else stream.tasks
        self.epochs, self.generator = epochs, generator
        self.schedule = tuple(schedule)  # the learning rate falls by ten after these epochs of each task
        self.rates = [group["lr"] for group in method.optimizer.param_groups]  # where each task starts
        self.watcher, self.save = watcher or Watcher(), save
        self.at = Position()

    def run(self) -> None:
        """Train from the current position to the end of the stream."""
        self.learner.train()
        self.watcher.begin(len(self.tasks), self.epochs)
        while self.at.task < len(self.tasks):
            task = self.tasks[self.at.task]
            if not self.at.begun:
                self.method.begin_task(task)
                self.at.begun = True
            while self.at.epoch < self.epochs:
                self._epoch(task)
                if self.at.epoch < self.epochs:
                    self.save(self)
            self.method.end_task(task)
            self._evaluate(task)
            self.at.task, self.at.epoch, self.at.begun = self.at.task + 1, 0, False
            self.save(self)

    def _epoch(self, task: Task) -> None:
        at, device, began = self.at, self.learner.shift.device, time.perf_counter()
        if at.order is None:
            self._set_rates()
            at.order = torch.randperm(len(task.train), generator=self.generator, device=device)
        batches = at.order.split(self.method.new_per_batch())
        if at.losses is None:
            at.losses = torch.zeros(len(batches), device=device)
        task.train.expect(batches[at.step :])
        while at.step < len(batches):
            if self.watcher.stop():
                at.seconds += time.perf_counter() - began
                self._stop()
            images, slots = task.train.batch(batches[at.step])
            at.losses[at.step] = self.method.observe(images, slots)
            at.step += 1
            self.watcher.step(len(slots))
        losses = self._finite(at.losses)
        at.seconds += time.perf_counter() - began
        record = {
            "task": at.task + 1,
            "epoch": at.epoch + 1,
            "steps": len(batches),
            "loss": float(losses.mean()),
            "samples": len(task.train),
            "seconds": round(at.seconds, 3),
        }
        first = sum(earlier.get("steps", 0) for earlier in at.records)
        at.records.append(record)
        at.epoch, at.step, at.order, at.losses, at.seconds = at.epoch + 1, 0, None, None, 0.0
        self.watcher.losses(losses, first)
        self.watcher.epoch(record)

    def _set_rates(self) -> None:
        """Set the learning rate of this epoch; a run without a schedule leaves it to the method."""
        for group, rate in zip(self.method.optimizer.param_groups, self.rates if self.schedule else ()):
            group["lr"] = rate * 0.1 ** sum(self.at.epoch >= end for end in self.schedule)

    def _finite(self, losses: Tensor) -> Tensor:
        """Return the losses if they, the weights and batch norm's statistics are finite, so that no bad checkpoint is
        ever saved. Checked once per epoch, so that a GPU hardly waits."""
        finite, wrong = losses.isfinite(), checkpoints.not_finite(self.learner)
        if bool(finite.all()) and not wrong:
            return losses
        step, what = len(losses) - 1, f"The loss is finite but the weights are not ({', '.join(wrong[:1])})"
        if not bool(finite.all()):
            step = int(finite.logical_not().nonzero()[0])
            what = f"The loss became {float(losses[step])}"
        rate = self.method.optimizer.param_groups[0]["lr"]
        raise LossNotFinite(
            f"{what} at step {step + 1} of epoch {self.at.epoch + 1}, task {self.at.task + 1}, with learning rate "
            f"{rate:g}. The last good checkpoint, if any, is kept; try a lower --lr, such as {rate / 10:g}."
        )

    def _stop(self) -> None:
        assert self.at.losses is not None
        self._finite(self.at.losses[: self.at.step])
        self.save(self)
        raise Stopped

    def _evaluate(self, task: Task) -> None:
        at, head, classes = self.at, self.learner.head, len(self.stream.labels)
        seen = self.stream.tasks if self.method.joint else self.stream.tasks[: at.task + 1]
        found = evaluate(self.learner, seen, classes, predict=self.method.predict)
        at.accuracies.append(found.accuracies)
        at.features.append(found.directions)
        at.directions.append(head.directions(torch.arange(classes, device=self.learner.shift.device)).cpu())
        if len(self.tasks) > 1:
            at.galleries.add(self.learner, seen, classes)
        record = {"task": at.task + 1, "accuracies": found.accuracies}
        at.records.append(record)
        self.watcher.task(record)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything that a resumed run needs, as tensors and JSON."""
        return checkpoints.state(self)

    def load(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Continue from what `state` returned, on a trainer built from the same configuration."""
        checkpoints.load(self, tensors, plain)
