"""What methods with a teacher or with a replay memory share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import BadConfig
from ..learning.augment import AUGMENTATIONS
from ..learning.learner import Learner
from ..learning.memory import Memory, MemoryOptions
from ..learning.method import Method
from ..learning.streams import Task
from ..options import option
from . import distillation


class Distilling(Method):
    """A method with a teacher: the learner as it was before the task. The first task has none."""

    distils = True
    before: Learner | None = None

    def begin_task(self, task: Task) -> None:
        if self.distils and len(self.learner.head.seen):
            self.before = distillation.frozen(self.learner)
        super().begin_task(task)

    def end_task(self, task: Task) -> None:
        super().end_task(task)
        self.before = None

    def new_slots(self) -> Tensor:
        """Return the slots of this task, (n,): those in use that the teacher does not know."""
        seen = self.learner.head.seen
        return seen if self.before is None else seen[~torch.isin(seen, self.before.head.seen)]

    def state(self) -> dict[str, Tensor]:
        state = super().state()
        if self.before is not None:
            state |= {f"before.{k}": v for k, v in self.before.state_dict().items()}
        return state

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        if before := {k.removeprefix("before."): v for k, v in state.items() if k.startswith("before.")}:
            self.before = distillation.frozen(self.learner)
            self.before.load_state_dict(before)


@dataclass(frozen=True)
class RehearsalOptions(MemoryOptions):
    memory_batch: int | None = option(None, "samples of each batch that come from memory  (default: half)", at_least=1)

    def canonical(self, run: Any) -> Any:
        """Return equivalent settings in one form, so that they have the same hash."""
        return replace(self, memory_batch=None if self.memory_batch == run.batch // 2 else self.memory_batch)

    def check_with(self, run: Any) -> None:
        super().check_with(run)
        if self.memory_batch is not None and self.memory_batch >= run.batch:
            raise BadConfig(
                f"memory_batch is {self.memory_batch}, but a batch has {run.batch} samples in all: "
                f"lower memory_batch, or raise batch."
            )


@dataclass(frozen=True)
class ReservoirOptions(RehearsalOptions):
    """For methods whose memory is a reservoir that is filled while a task is learned."""

    policy: str = option("reservoir", "how to choose samples for the memory", choices=("reservoir",))


@dataclass(frozen=True)
class HerdingOptions(RehearsalOptions):
    """For methods whose papers choose the memory by herding, equally per class."""

    policy: str = option("herding", "how to choose samples for the memory", choices=("herding", "class", "task"))


class Rehearsal(Distilling):
    """Half of each batch is new and half comes from memory. In the first task the whole batch is new."""

    Options: type[MemoryOptions] = RehearsalOptions
    options: Any
    distils = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        shape, device = self.learner.shape, self.learner.shift.device
        self.memory: Memory = Memory(self.options.memory or 0, shape, self.options.policy, device)
        self.augment_memory = AUGMENTATIONS[getattr(self.options, "augment_memory", "none")]
        self.recalls = False  # True if this task's batches contain samples from memory
        self.recalled: Tensor | None = None  # (b,) the rows of these samples in the memory
        self.task, self.unseen = 0, 0  # the task's index, its samples not yet offered to a reservoir

    def stores_during(self) -> bool:
        """Return True if samples enter the memory while a task is learned, and not at its end."""
        return isinstance(self.options, ReservoirOptions)

    def new_per_batch(self) -> int:
        return self.batch - self.memory_batch() if self.recalls else self.batch

    def memory_batch(self) -> int:
        """Return the number of samples per batch from memory, by default half."""
        return self.options.memory_batch or self.batch // 2

    def new_in(self, slots: Tensor) -> int:
        """Return the number of new samples in a batch; the samples from memory follow them."""
        return len(slots) - (0 if self.recalled is None else len(self.recalled))

    def begin_task(self, task: Task) -> None:
        self.recalls = len(self.memory) > 0
        self.task, self.unseen = task.index, len(task.train)
        super().begin_task(task)

    def observe(self, images: Tensor, slots: Tensor) -> Tensor:
        new = (images, slots)
        if self.recalls:
            rows = self.recalled = self.memory.sample(self.memory_batch(), self.generator)
            images = torch.cat([images, self.augment_memory(self.memory.images[rows], self.generator)])
            slots = torch.cat([slots, self.memory.slots[rows]])
        loss = super().observe(images, slots)
        if self.stores_during() and self.unseen:
            self.offer(*new)
        return loss

    def offer(self, images: Tensor, slots: Tensor) -> None:
        """Offer a batch to the reservoir; each sample of the task is offered once, in the first epoch."""
        images, slots = images[: self.unseen], slots[: self.unseen]
        self.unseen -= len(images)
        _, rows = self.memory.insert(images, slots, self.task, self.generator)
        self.annotate(rows)

    def end_task(self, task: Task) -> None:
        if not self.stores_during():
            self.memory.remember(task, self.generator, self.learner.embed_frozen)
            self.annotate(self.memory.of_task(task.index))
        self.recalled = None
        super().end_task(task)

    def annotate(self, rows: Tensor) -> None:
        """Add notes to samples that have just entered the memory."""

    def annotate_logits(self, rows: Tensor) -> None:
        """Store the logits of samples that have just entered the memory."""
        if len(rows):
            embedded = distillation.in_chunks(self.learner.embed_frozen, self.memory.images[rows])
            self.memory.note("logits", rows, distillation.dark_logits(self.learner.head, embedded).detach())

    def state(self) -> dict[str, Tensor]:
        state = super().state()
        if self.stores_during():
            state["here"] = torch.tensor([self.recalls, self.task, self.unseen])
        return state

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        self.recalls = len(self.memory) > 0
        if "here" in state:
            self.recalls, self.task, self.unseen = state["here"].tolist()
