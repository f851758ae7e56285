"""Experience replay: theta <- theta - lr * grad l(B ∪ B_M), the paper's update rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import BadConfig
from ..heads.polytopes import MOST_LOGITS
from ..learning.augment import AUGMENTATIONS
from ..learning.streams import Task
from ..options import option
from . import distillation
from .rehearsal import Rehearsal, RehearsalOptions


@dataclass(frozen=True)
class ReplayOptions(RehearsalOptions):
    """The options of replay: the choice of samples for the memory, and their use."""

    balance: bool = option(False, "balanced softmax: add the log of each class's count in the batch to its logit")
    absent_count: float = option(
        1.0, "with balance: pseudo-count for classes absent from the batch", above=0, at_most=1
    )
    augment_memory: str = option(
        "none", "additional augmentation of images from memory: none, shift, crop-flip", choices=AUGMENTATIONS
    )
    distill: str = option(
        "none", "keep samples in memory near their stored logits, near their features before the task, or nearer to "
        "those than to other classes (contrast)",
        choices=("none", "logits", "features", "contrast"),
    )
    distill_weight: float | None = option(
        None, "weight of the distillation  (default: 0.5 for logits, 5 for features, 9 for contrast)", at_least=0
    )
    store: str = option(
        "after", "when samples enter the memory: after each task by the policy, or during it by reservoir sampling",
        choices=("after", "during"),
    )

    @property
    def weight(self) -> float:
        return distillation.WEIGHTS.get(self.distill, 0.0) if self.distill_weight is None else self.distill_weight

    def canonical(self, run: Any) -> ReplayOptions:
        """Return equivalent settings in one form, so that they have the same hash."""
        usual = distillation.WEIGHTS.get(self.distill)
        return replace(
            super().canonical(run),
            policy="task" if self.store == "during" and self.policy == "reservoir" else self.policy,
            distill_weight=None if self.distill_weight == usual else self.distill_weight,
        )

    def check_with(self, run: Any) -> None:
        super().check_with(run)
        if self.store == "during" and self.policy not in ("task", "reservoir"):
            raise BadConfig(f"store is 'during', which always uses a reservoir; leave out policy {self.policy!r}.")
        for name in ("memory_batch", "augment_memory", "distill", "distill_weight", "store"):
            value = getattr(self, name)
            if self.memory == 0 and value != getattr(ReplayOptions, name):
                raise BadConfig(f"{name} is {value!r}, which needs a memory, but memory is 0: leave {name} out, "
                                f"or give a memory.")
        if self.absent_count != 1.0 and not self.balance:
            raise BadConfig(f"absent_count is {self.absent_count}, but balance is off; set balance, or leave it out.")
        if self.distill_weight is not None and self.distill == "none":
            raise BadConfig(f"distill_weight is {self.distill_weight}, but distill is off; set it, or leave both out.")
        if run.head == "cube" and run.slots > MOST_LOGITS and (self.balance or self.distill == "logits"):
            what, off = ("balance", "balance=False, --no-balance") if self.balance else ("distill", "distill='none'")
            raise BadConfig(
                f"A cube of {run.slots} slots never computes all its logits, which {what} needs; turn {what} off "
                f"({off}), or allocate at most {MOST_LOGITS} slots."
            )


class Replay(Rehearsal):
    """B is half a batch of the task, B_M half a batch from memory. In the first task the whole batch is new.

    The paper uses only the options `memory` and `policy`.
    """

    Options = ReplayOptions
    head = "simplex"
    options: ReplayOptions

    def stores_during(self) -> bool:
        return self.options.store == "during"

    def begin_task(self, task: Task) -> None:
        self.distils = self.options.distill in ("features", "contrast") and len(self.memory) > 0
        super().begin_task(task)

    def loss(self, images: Tensor, slots: Tensor) -> Tensor:
        """Return the cross-entropy, with a balanced softmax if set, plus the distillation."""
        head, features, prior = self.learner.head, self.learner.features(images), None
        if self.options.balance:
            prior = distillation.log_frequency(slots, head.slots, self.options.absent_count)
        loss = head.loss(features, slots, prior=prior)
        if self.options.distill == "none" or self.recalled is None:
            return loss
        new = self.new_in(slots)
        embedded = head.embed(features[new:])
        if self.options.distill == "logits":
            distance = distillation.logit_distance(head, embedded, self.memory.notes["logits"][self.recalled])
        else:
            assert self.before is not None
            before, taught = self.before.embed(images[new:]), self.taught(self.recalled)
            if self.options.distill == "features":
                distance = distillation.feature_distance(embedded, before, taught)
            else:
                distance = distillation.contrast(embedded, before, slots[new:], taught)
        return loss + self.options.weight * distance

    def taught(self, rows: Tensor) -> Tensor:
        """Return a mask (b,) of the samples that `before` has learned: all but those stored during this task."""
        if self.options.store == "after":
            return torch.ones_like(rows, dtype=torch.bool)
        return self.memory.tasks[rows] < self.task

    def annotate(self, rows: Tensor) -> None:
        if self.options.distill == "logits":
            self.annotate_logits(rows)
