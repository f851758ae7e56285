"""Share the sums of methods on frozen features: each sample enters them once, in the first epoch of its task."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..learning.method import Method
from ..learning.streams import Task


class Accumulating(Method):
    """Accumulate in the first epoch of each task. Subclasses define `accumulate`, and solve in `end_task`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.left = 0  # samples of this task that are not in the sums yet

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.left = len(task.train)

    @torch.no_grad()
    def observe(self, images: Tensor, slots: Tensor) -> Tensor:
        """Add new samples to the sums, each once, not augmented; there is no loss."""
        if self.left > 0:
            training = self.learner.training
            self.learner.eval()
            self.accumulate(images, slots)
            self.learner.train(training)
            self.left -= len(images)
        return torch.zeros((), device=self.learner.shift.device)

    def accumulate(self, images: Tensor, slots: Tensor) -> None:
        """Add a batch to the sums; the learner is in evaluation mode, without gradients."""
        raise NotImplementedError
