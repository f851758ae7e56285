"""Experience replay: theta <- theta - lr * grad l(B u B_M), the paper's update rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import augment
from ..learner import Learner
from ..memory import Memory
from ..streams import Task
from . import recipe
from .base import METHODS, Method


@METHODS.register("replay", "half of each batch new, half remembered (the paper's method, with any head)")
class Replay(Method):
    """B is half a batch of the task, B_M half a batch of the memory; the first task has all of it new.

    B_M is `remembered` samples, if that is set. What else `recipe` makes of them is off unless asked for.
    """

    options: tuple[str, ...] = ("memory", "policy", "remembered", *recipe.OPTIONS)
    remembers = True
    head = "simplex"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        shape, device = self.learner.shape, self.learner.shift.device
        self.memory: Memory = Memory(self.config.memory or 0, shape, self.config.policy, device)
        self.vary = augment.get(self.config.vary or "none")  # of each remembered image, before each use
        self.recalls = False  # whether this task's batches have a remembered half
        self.recalled: Tensor | None = None  # (b,) the rows of it
        self.before: Learner | None = None  # the learner as it was before this task, to distil features from
        self.task, self.unseen = 0, 0  # for insertion during the task: its index, its samples not yet offered

    def fresh(self, batch: int) -> int:
        return batch - self.recall(batch) if self.recalls else batch

    def recall(self, batch: int) -> int:
        """How many of a batch are remembered: half of it, if nothing else is said."""
        return self.config.remembered or batch // 2

    def begin_task(self, task: Task) -> None:
        self.recalls = len(self.memory) > 0
        self.task, self.unseen = task.index, len(task.train)
        if self.config.distill == "features" and self.recalls:
            self.before = recipe.frozen(self.learner)
        super().begin_task(task)

    def observe(self, images: Tensor, slots: Tensor) -> Tensor:
        new = (images, slots)
        if self.recalls:
            rows = self.recalled = self.memory.sample(self.recall(self.config.batch), self.generator)
            images = torch.cat([images, self.vary(self.memory.images[rows], self.generator)])
            slots = torch.cat([slots, self.memory.slots[rows]])
        loss = super().observe(images, slots)
        if self.config.insert == "during" and self.unseen:
            self.insert(*new)
        return loss

    def loss(self, images: Tensor, slots: Tensor) -> Tensor:
        """Cross-entropy, as a balanced softmax if asked for, plus what distillation adds."""
        head, features, prior = self.learner.head, self.learner.features(images), None
        if self.config.balance:
            prior = recipe.log_frequency(slots, head.slots, self.config.empty)
        loss = head.loss(features, slots, prior=prior)
        if self.config.distill == "none" or self.recalled is None:
            return loss
        old = len(slots) - len(self.recalled)  # where the remembered half starts
        embedded = head.embed(features[old:])
        if self.config.distill == "logits":
            distance = recipe.logit_distance(head, embedded, self.memory.notes["logits"][self.recalled])
        else:
            assert self.before is not None
            distance = recipe.feature_distance(embedded, self.before.embed(images[old:]), self.taught(self.recalled))
        return loss + (self.config.distill_weight or 0.0) * distance

    def taught(self, rows: Tensor) -> Tensor:
        """Which of these samples `before` has learned, (b,): all, but for what came in during this task."""
        if self.config.insert == "after":
            return torch.ones_like(rows, dtype=torch.bool)
        return self.memory.tasks[rows] < self.task

    def insert(self, images: Tensor, slots: Tensor) -> None:
        """Offer a batch to the reservoir; each sample of the task once, in its first epoch."""
        images, slots = images[: self.unseen], slots[: self.unseen]
        self.unseen -= len(images)
        _, rows = self.memory.insert(images, slots, self.task, self.generator)
        self.annotate(rows)

    def end_task(self, task: Task) -> None:
        if self.config.insert == "after":
            self.memory.remember(task, self.generator, self.learner.embed_frozen)
            self.annotate(self.memory.of_task(task.index))
        self.recalled = self.before = None

    def annotate(self, rows: Tensor) -> None:
        """Note with these samples, which have just come into the memory, their logits."""
        if self.config.distill == "logits" and len(rows):
            embedded = recipe.in_parts(self.learner.embed_frozen, self.memory.images[rows])
            self.memory.note("logits", rows, recipe.dark_logits(self.learner.head, embedded).detach())

    def state(self) -> dict[str, Tensor]:
        state = super().state()
        if self.before is not None:
            state |= {f"before.{k}": v for k, v in self.before.state_dict().items()}
        if self.config.insert == "during":
            state["here"] = torch.tensor([self.recalls, self.task, self.unseen])
        return state

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        self.recalls = len(self.memory) > 0
        if "here" in state:
            self.recalls, self.task, self.unseen = state["here"].tolist()
        if before := {k.removeprefix("before."): v for k, v in state.items() if k.startswith("before.")}:
            self.before = recipe.frozen(self.learner)
            self.before.load_state_dict(before)

    def check(self, task: Task | None) -> None:
        super().check(task)
        if self.config.insert == "during" and task is not None and not (
            self.recalls in (0, 1) and self.task == task.index and 0 <= self.unseen <= len(task.train)
            and (not self.recalls or len(self.memory))
        ):
            raise ValueError(f"{self.unseen} samples of task {self.task + 1} not yet offered, in task {task.index + 1}")
        if self.config.distill == "features" and task is not None and self.recalls and self.before is None:
            raise ValueError("nothing to distil the features from")
        if self.config.distill == "logits" and len(self.memory):
            noted, head = self.memory.notes["logits"], self.learner.head
            if noted.shape[1:] != (head.slots,) or not noted.is_floating_point():
                raise ValueError(f"remembered logits that are not those of {head.slots} slots")
