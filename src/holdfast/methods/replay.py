"""Experience replay: theta <- theta - lr * grad l(B u B_M), the paper's update rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import BadConfig
from ..heads.polytopes import MOST_LOGITS
from ..learning.augment import AUGMENTATIONS
from ..learning.learner import Learner
from ..learning.memory import Memory, MemoryOptions
from ..learning.method import Method
from ..learning.streams import Task
from ..options import option
from . import distillation


@dataclass(frozen=True)
class ReplayOptions(MemoryOptions):
    """The options of replay: the choice of samples for the memory, and their use."""

    memory_batch: int | None = option(None, "samples of each batch that come from memory  (default: half)", at_least=1)
    balance: bool = option(False, "balanced softmax: add the log of each class's count in the batch to its logit")
    absent_count: float = option(
        1.0, "with balance: pseudo-count for classes absent from the batch", above=0, at_most=1
    )
    augment_memory: str = option(
        "none", "additional augmentation of images from memory: none, shift, crop-flip", choices=AUGMENTATIONS
    )
    distill: str = option(
        "none", "keep samples in memory near their stored logits, or near their features before the task",
        choices=("none", "logits", "features"),
    )
    distill_weight: float | None = option(
        None, "weight of the distillation  (default: 0.5 for logits, 5 for features)", at_least=0
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
            self,
            memory_batch=None if self.memory_batch == run.batch // 2 else self.memory_batch,
            policy="task" if self.store == "during" and self.policy == "reservoir" else self.policy,
            distill_weight=None if self.distill_weight == usual else self.distill_weight,
        )

    def check_with(self, run: Any) -> None:
        super().check_with(run)
        if self.memory_batch is not None and self.memory_batch >= run.batch:
            raise BadConfig(
                f"memory_batch is {self.memory_batch}, but a batch has {run.batch} samples in all: "
                f"lower memory_batch, or raise batch."
            )
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


class Replay(Method):
    """B is half a batch of the task, B_M half a batch from memory. In the first task the whole batch is new.

    The paper uses only the options `memory` and `policy`.
    """

    Options = ReplayOptions
    head = "simplex"
    options: ReplayOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        shape, device = self.learner.shape, self.learner.shift.device
        self.memory: Memory = Memory(self.options.memory or 0, shape, self.options.policy, device)
        self.augment_memory = AUGMENTATIONS[self.options.augment_memory]
        self.recalls = False  # True if this task's batches contain samples from memory
        self.recalled: Tensor | None = None  # (b,) the rows of these samples in the memory
        self.before: Learner | None = None  # the learner as it was before this task, to distil features from
        self.task, self.unseen = 0, 0  # for store="during": the task's index, its samples not yet offered

    def new_per_batch(self) -> int:
        return self.batch - self.memory_batch() if self.recalls else self.batch

    def memory_batch(self) -> int:
        """Return the number of samples per batch from memory, by default half."""
        return self.options.memory_batch or self.batch // 2

    def begin_task(self, task: Task) -> None:
        self.recalls = len(self.memory) > 0
        self.task, self.unseen = task.index, len(task.train)
        if self.options.distill == "features" and self.recalls:
            self.before = distillation.frozen(self.learner)
        super().begin_task(task)

    def observe(self, images: Tensor, slots: Tensor) -> Tensor:
        new = (images, slots)
        if self.recalls:
            rows = self.recalled = self.memory.sample(self.memory_batch(), self.generator)
            images = torch.cat([images, self.augment_memory(self.memory.images[rows], self.generator)])
            slots = torch.cat([slots, self.memory.slots[rows]])
        loss = super().observe(images, slots)
        if self.options.store == "during" and self.unseen:
            self.offer(*new)
        return loss

    def loss(self, images: Tensor, slots: Tensor) -> Tensor:
        """Return the cross-entropy, with a balanced softmax if set, plus the distillation."""
        head, features, prior = self.learner.head, self.learner.features(images), None
        if self.options.balance:
            prior = distillation.log_frequency(slots, head.slots, self.options.absent_count)
        loss = head.loss(features, slots, prior=prior)
        if self.options.distill == "none" or self.recalled is None:
            return loss
        old = len(slots) - len(self.recalled)  # the samples from memory start here
        embedded = head.embed(features[old:])
        if self.options.distill == "logits":
            distance = distillation.logit_distance(head, embedded, self.memory.notes["logits"][self.recalled])
        else:
            assert self.before is not None
            before = self.before.embed(images[old:])
            distance = distillation.feature_distance(embedded, before, self.taught(self.recalled))
        return loss + self.options.weight * distance

    def taught(self, rows: Tensor) -> Tensor:
        """Return a mask (b,) of the samples that `before` has learned: all but those stored during this task."""
        if self.options.store == "after":
            return torch.ones_like(rows, dtype=torch.bool)
        return self.memory.tasks[rows] < self.task

    def offer(self, images: Tensor, slots: Tensor) -> None:
        """Offer a batch to the reservoir; each sample of the task is offered once, in the first epoch."""
        images, slots = images[: self.unseen], slots[: self.unseen]
        self.unseen -= len(images)
        _, rows = self.memory.insert(images, slots, self.task, self.generator)
        self.annotate(rows)

    def end_task(self, task: Task) -> None:
        if self.options.store == "after":
            self.memory.remember(task, self.generator, self.learner.embed_frozen)
            self.annotate(self.memory.of_task(task.index))
        self.recalled = self.before = None

    def annotate(self, rows: Tensor) -> None:
        """Store the logits of samples that have just entered the memory."""
        if self.options.distill == "logits" and len(rows):
            embedded = distillation.in_chunks(self.learner.embed_frozen, self.memory.images[rows])
            self.memory.note("logits", rows, distillation.dark_logits(self.learner.head, embedded).detach())

    def state(self) -> dict[str, Tensor]:
        state = super().state()
        if self.before is not None:
            state |= {f"before.{k}": v for k, v in self.before.state_dict().items()}
        if self.options.store == "during":
            state["here"] = torch.tensor([self.recalls, self.task, self.unseen])
        return state

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        self.recalls = len(self.memory) > 0
        if "here" in state:
            self.recalls, self.task, self.unseen = state["here"].tolist()
        if before := {k.removeprefix("before."): v for k, v in state.items() if k.startswith("before.")}:
            self.before = distillation.frozen(self.learner)
            self.before.load_state_dict(before)
