"""What a method is: how a learner takes one step, and what it does when a task begins and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import augment
from ..learner import Learner
from ..memory import Memory
from ..registry import Registry
from ..streams import Task

if TYPE_CHECKING:
    from ..config import Config

METHODS: Registry[type[Method]] = Registry("method", "steadfast.methods")


class Method:
    """The base of all methods; as it stands it is fine-tuning: learn each task, remember nothing.

    A method overrides what it changes: `loss` (a penalty), `observe` (the whole update),
    `begin_task` and `end_task`. What it carries from step to step goes through `state` and `load`,
    so that a resumed run continues to the same bits.
    """

    options: tuple[str, ...] = ()  # the fields of Config that only some methods listen to, and this one does
    remembers = False  # whether it keeps samples
    joint = False  # whether it learns all tasks at once
    head = "expanding"  # the head it is used with unless another is asked for
    optimizer_name, lr = "adam", 0.001  # likewise

    def __init__(
        self, learner: Learner, optimizer: torch.optim.Optimizer, config: Config, generator: torch.Generator
    ) -> None:
        self.learner, self.optimizer, self.config, self.generator = learner, optimizer, config, generator
        self.augment = augment.get(config.augment or "none")
        self.memory: Memory | None = None

    def fresh(self, batch: int) -> int:
        """How many of a batch's samples are new ones of the task."""
        return batch

    def begin_task(self, task: Task) -> None:
        """The task's classes take their slots."""
        self.learner.head.open(task.slots)

    def observe(self, images: Tensor, slots: Tensor) -> Tensor:
        """One update on new uint8 images (b, channels, height, width); returns the loss, on the device."""
        loss = self.loss(self.augment(images, self.generator), slots)
        self.step(loss)
        return loss.detach()

    def loss(self, images: Tensor, slots: Tensor) -> Tensor:
        """What an update lowers."""
        return self.learner.loss(images, slots)

    def step(self, loss: Tensor) -> None:
        """Backward and one step of the optimizer."""
        self.optimizer.zero_grad(set_to_none=True)
        self.backward(loss)
        self.optimizer.step()

    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradient to the parameters'; in a run over several devices, that of all of them."""
        loss.backward()
        if self.learner.ranks is not None:
            self.learner.ranks.average(p.grad for group in self.optimizer.param_groups for p in group["params"])

    def end_task(self, task: Task) -> None:
        """The task has been learned: consolidate."""

    def state(self) -> dict[str, Tensor]:
        """Everything the method carries besides the learner and the optimizer."""
        return {} if self.memory is None else {f"memory.{k}": v for k, v in self.memory.state().items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take up what `state` gave."""
        if self.memory is not None:
            self.memory.load({k.removeprefix("memory."): v for k, v in state.items() if k.startswith("memory.")})

    def check(self, task: Task | None) -> None:
        """After `load`: ValueError if it cannot go on so, in the middle of `task` or between two (None)."""
        if self.memory is not None and len(self.memory):
            slots = self.memory.slots[: len(self.memory)]
            if not bool(torch.isin(slots, self.learner.head.seen).all()):
                raise ValueError("a memory of slots that have not come yet")
            if task is not None and int(self.memory.tasks[: len(self.memory)].max()) > task.index:
                raise ValueError("a memory of tasks that have not come yet")
