"""The base class of methods: how a learner takes one step, and what happens when a task begins and ends."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import options
from .augment import AUGMENTATIONS
from .learner import Learner
from .memory import Memory
from .streams import Task


class Method:
    """The base class of all methods. By itself it is fine-tuning: it learns each task and has no memory.

    A method overrides what it changes: `loss` (a penalty), `observe` (the whole update), `begin_task`, `end_task`, and
    `predict` (the answer, if it is not the head's). Everything it carries from step to step goes through `state` and
    `load`, so that a resumed run continues to the same bits. Its hyperparameters are the fields of its `Options`.
    """

    Options = options.Options
    joint = False  # True if the method learns all tasks at once
    head = "expanding"  # default head
    optimizer_name, lr = "adam", 0.001  # default optimizer and learning rate

    def __init__(
        self, learner: Learner, optimizer: torch.optim.Optimizer, options: options.Options,
        generator: torch.Generator, *, batch: int = 128, augment: str = "none",
    ) -> None:
        self.learner, self.optimizer, self.options, self.generator = learner, optimizer, options, generator
        self.batch = batch  # samples per step: new ones and those from memory
        self.augment = AUGMENTATIONS[augment]
        self.memory: Memory | None = None

    def new_per_batch(self) -> int:
        """Return the number of new samples per batch."""
        return self.batch

    def begin_task(self, task: Task) -> None:
        """Prepare for a task: its classes take their slots."""
        self.learner.head.open(task.slots)

    def observe(self, images: Tensor, slots: Tensor) -> Tensor:
        """Take one step on new uint8 images (b, channels, height, width); return the loss, on the device."""
        loss = self.loss(self.augment(images, self.generator), slots)
        self.step(loss)
        return loss.detach()

    def loss(self, images: Tensor, slots: Tensor) -> Tensor:
        """Return the loss that a step minimises."""
        return self.learner.loss(images, slots)

    def step(self, loss: Tensor) -> None:
        """Compute the gradients and take one step of the optimizer."""
        self.optimizer.zero_grad(set_to_none=True)
        self.backward(loss)
        self.optimizer.step()

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of the loss; in a distributed run, average them over the ranks."""
        loss.backward()
        if self.learner.ranks is not None:
            self.learner.ranks.average(p.grad for group in self.optimizer.param_groups for p in group["params"])

    def end_task(self, task: Task) -> None:
        """Consolidate what was learned of the task."""

    def predict(self, embedded: Tensor) -> Tensor:
        """Return the slot of each embedded sample, (batch,), from (batch, dim); by default the head's answer."""
        return self.learner.head.nearest(embedded)

    def kept_bytes(self) -> int:
        """Return the bytes that the method keeps from task to task, besides the learner: its memory and its state."""
        rest = (v.numel() * v.element_size() for k, v in self.state().items() if not k.startswith("memory."))
        return sum(rest) + (0 if self.memory is None else self.memory.bytes)

    def state(self) -> dict[str, Tensor]:
        """Return everything the method carries besides the learner and the optimizer."""
        return {} if self.memory is None else {f"memory.{k}": v for k, v in self.memory.state().items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        if self.memory is not None:
            self.memory.load({k.removeprefix("memory."): v for k, v in state.items() if k.startswith("memory.")})
