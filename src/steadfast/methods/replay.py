"""Experience replay: theta <- theta - lr * grad l(B u B_M), the paper's update rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..memory import Memory
from ..streams import Task
from .base import METHODS, Method


@METHODS.register("replay", "half of each batch new, half remembered (the paper's method, with any head)")
class Replay(Method):
    """B is half a batch of the task, B_M half a batch of the memory; the first task has all of it new."""

    options: tuple[str, ...] = ("memory", "policy")
    remembers = True
    head = "simplex"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        shape, device = self.learner.shape, self.learner.shift.device
        self.memory: Memory = Memory(self.config.memory or 0, shape, self.config.policy, device)

    def fresh(self, batch: int) -> int:
        return batch - batch // 2 if len(self.memory) else batch

    def observe(self, images: Tensor, slots: Tensor) -> Tensor:
        if len(self.memory):
            rows = self.memory.sample(self.config.batch // 2, self.generator)
            images = torch.cat([images, self.memory.images[rows]])
            slots = torch.cat([slots, self.memory.slots[rows]])
        return super().observe(images, slots)

    def end_task(self, task: Task) -> None:
        self.memory.remember(task, self.generator, self.learner.embed_frozen)
