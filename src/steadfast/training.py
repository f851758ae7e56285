"""The loop: tasks, epochs, steps, checkpoints; whatever moment it stops at, it resumes to the same bits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import resuming
from .errors import BadConfig, LossNotFinite
from .learner import Learner
from .methods import Method
from .metrics import evaluate
from .streams import Stream, Task


class Stopped(Exception):
    """Asked to stop; everything up to the current step has been saved."""


@dataclass
class Watcher:
    """Who wants to know: a progress bar, a test. All of it is optional."""

    step: Callable[[int], None] = lambda samples: None
    epoch: Callable[[dict[str, Any]], None] = lambda record: None
    task: Callable[[dict[str, Any]], None] = lambda record: None
    stop: Callable[[], bool] = lambda: False


@dataclass
class Position:
    """Where in the stream training is, between two steps."""

    task: int = 0
    begun: bool = False  # the method has begun this task
    epoch: int = 0
    step: int = 0
    order: Tensor | None = None  # this epoch's shuffled samples
    losses: Tensor | None = None  # this epoch's losses, one a step, on the device
    seconds: float = 0.0  # spent in this epoch
    records: list[dict[str, Any]] = field(default_factory=list)  # one an epoch, one a task
    accuracies: list[list[float]] = field(default_factory=list)  # row i: after task i
    features: list[Tensor] = field(default_factory=list)  # after each task, (classes, dim) mean directions
    directions: list[Tensor] = field(default_factory=list)  # after each task, (classes, dim) the head's


def _check_slots(task: Task, stream: Stream) -> None:
    """Before anything is learned: a sample of a slot that its task does not bring would be learned as another."""
    for what, samples, known in (
        ("training", task.train, set(task.slots)), ("test", task.test, set(range(len(stream.labels)))),
    ):
        if wrong := sorted(set(samples.slots.unique().tolist()) - known):
            raise BadConfig(
                f"Task {task.index + 1} of {stream.name} has {what} samples of slot {wrong[0]}; it brings the slots "
                f"{sorted(task.slots)}, and the stream names {len(stream.labels)}."
            )


class Trainer:
    """Takes a learner through a stream. Its whole state is `state()`; `load()` puts it back."""

    def __init__(
        self,
        learner: Learner,
        method: Method,
        stream: Stream,
        *,
        epochs: int,
        batch: int,
        generator: torch.Generator,
        watcher: Watcher | None = None,
        save: Callable[[Trainer], None] = lambda trainer: None,
    ) -> None:
        for task in stream.tasks:
            if not len(task.train):
                raise BadConfig(f"Task {task.index + 1} of {stream.name} has no training samples; leave it out.")
            _check_slots(task, stream)
        self.learner, self.method, self.stream = learner, method, stream
        self.tasks = stream.joined().tasks if method.joint else stream.tasks
        self.epochs, self.batch, self.generator = epochs, batch, generator
        self.watcher, self.save = watcher or Watcher(), save
        self.at = Position()

    def run(self) -> None:
        """From wherever it is to the end of the stream."""
        self.learner.train()
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
            at.order = torch.randperm(len(task.train), generator=self.generator, device=device)
        batches = at.order.split(self.method.fresh(self.batch))
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
        at.records.append(record)
        at.epoch, at.step, at.order, at.losses, at.seconds = at.epoch + 1, 0, None, None, 0.0
        self.watcher.epoch(record)

    def _finite(self, losses: Tensor) -> Tensor:
        """The losses, if they and what they led to are finite, so that no bad checkpoint is ever saved.

        That is weights, and the statistics of batch norm. Looked at once an epoch: a GPU hardly waits."""
        finite, wrong = losses.isfinite(), resuming.not_finite(self.learner)
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
        found = evaluate(self.learner, seen, classes)
        at.accuracies.append(found.accuracies)
        at.features.append(found.directions)
        at.directions.append(head.directions(torch.arange(classes, device=self.learner.shift.device)).cpu())
        record = {"task": at.task + 1, "accuracies": found.accuracies}
        at.records.append(record)
        self.watcher.task(record)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything, as tensors and JSON."""
        at = self.at
        tensors: dict[str, Tensor] = {f"learner.{k}": v for k, v in self.learner.state_dict().items()}
        for index, slot in self.method.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{k}": torch.as_tensor(v) for k, v in slot.items()}
        tensors |= {f"method.{k}": v for k, v in self.method.state().items()}
        tensors["generator"] = self.generator.get_state()
        for name in ("order", "losses"):
            value = getattr(at, name)
            tensors |= {} if value is None else {f"at.{name}": value}
        for name in ("features", "directions"):
            values = getattr(at, name)
            tensors |= {f"at.{name}": torch.stack(values)} if values else {}
        plain = {k: getattr(at, k) for k in ("task", "begun", "epoch", "step", "seconds", "records", "accuracies")}
        plain["rates"] = [group["lr"] for group in self.method.optimizer.param_groups]  # a method may change them
        return tensors, plain

    def load(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Take up what `state` gave, on a trainer built from the same configuration; what cannot be is a ValueError."""
        device = self.learner.shift.device

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        self.learner.load_state_dict(part("learner."))
        self._load_optimizer(part("optimizer."))
        self.method.load(part("method."))
        self.generator.set_state(tensors["generator"])
        groups = self.method.optimizer.param_groups
        rates = plain.get("rates", [group["lr"] for group in groups])
        if len(rates) != len(groups) or not all(type(rate) in (int, float) and 0 <= rate <= 1e30 for rate in rates):
            raise ValueError(f"learning rates of {rates!r:.100}")
        for group, rate in zip(groups, rates):
            group["lr"] = rate
        at = Position(**{k: v for k, v in plain.items() if k != "rates"})
        at.order, at.losses = (tensors[n].to(device) if n in tensors else None for n in ("at.order", "at.losses"))
        at.features, at.directions = (
            list(tensors[n]) if n in tensors else [] for n in ("at.features", "at.directions")
        )
        resuming.check(self, at)
        self.at = at

    def _load_optimizer(self, flat: dict[str, Tensor]) -> None:
        optimizer = self.method.optimizer
        whole = optimizer.state_dict()
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in flat.items():
            index, key = name.split(".", 1)
            slots.setdefault(int(index), {})[key] = value
        whole["state"] = slots
        optimizer.load_state_dict(whole)
        for parameter, slot in optimizer.state.items():
            for key, value in slot.items():  # a state lies in memory as its parameter does
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    slot[key] = torch.empty_like(parameter).copy_(value)
