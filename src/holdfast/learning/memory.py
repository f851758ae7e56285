"""The replay memory: a bounded number of images (uint8) or vectors (float32), and the policies that choose them.

Sampling a batch is one index operation. A policy is a few lines of index arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import files
from ..errors import BadConfig, nearest
from ..options import Options, option
from .streams import Task

Embed = Callable[[Tensor], Tensor]  # uint8 images (n, ...) to features (n, dim)


class Memory:
    """At most `capacity` images (uint8) or vectors (float32), with the slot and task of each.

    It grows as samples arrive, so unused capacity costs nothing in memory or in a checkpoint."""

    def __init__(
        self, capacity: int, shape: tuple[int, ...], policy: str = "task", device: torch.device | str = "cpu"
    ) -> None:
        if capacity < 0:
            raise BadConfig(f"memory is {capacity}; it is a number of images, 0 or more.")
        if policy not in POLICIES:
            raise nearest("memory policy", policy, POLICIES)
        self.capacity, self.policy = capacity, policy
        kept_as = torch.uint8 if len(shape) == 3 else torch.float32
        self.images = torch.zeros(0, *shape, dtype=kept_as, device=device)
        self.slots = torch.zeros(0, dtype=torch.long, device=device)
        self.tasks = torch.zeros(0, dtype=torch.long, device=device)
        self.notes: dict[str, Tensor] = {}  # additional values per row, such as logits
        self.count = 0  # rows in use: the first `count`
        self.offered = 0  # samples of the stream offered to the memory so far
        self.place: Path | None = None  # the file that holds the images, if they are not in RAM

    def to_disk(self, path: Path) -> None:
        """Move the images to a memory-mapped file; the system keeps in RAM what fits.

        The file is unlinked once it is mapped, so that nothing is left behind however the process ends."""
        if self.images.device.type != "cpu":
            raise BadConfig(f"A memory on {self.images.device} cannot live on disk; use --device cpu.")
        self.place = path
        self.images = self._longer(self.images, len(self.images))

    def _make_room(self, rows: int) -> None:
        """Grow to at least `rows`, by doubling, so that the samples are not copied at every addition."""
        if rows <= len(self.slots):
            return
        rows = min(self.capacity, max(rows, 2 * len(self.slots)))
        self.images, self.slots, self.tasks = (self._longer(c, rows) for c in (self.images, self.slots, self.tasks))
        self.notes = {name: self._longer(values, rows) for name, values in self.notes.items()}

    def _longer(self, column: Tensor, rows: int) -> Tensor:
        """Return the column extended with zeros to `rows` rows."""
        if column is self.images and self.place is not None and rows:
            numbers = rows * math.prod(column.shape[1:])
            files.reserve(self.place, numbers * column.element_size())
            mapped = torch.from_file(str(self.place), shared=True, size=numbers, dtype=column.dtype)
            self.place.unlink()
            longer = mapped.view(rows, *column.shape[1:])
        else:
            longer = column.new_zeros(rows, *column.shape[1:])
        longer[: len(column)] = column
        return longer

    def __len__(self) -> int:
        return self.count

    @property
    def bytes(self) -> int:
        """Return the bytes of images and notes when the memory is full."""
        columns = (self.images, *self.notes.values())
        return self.capacity * sum(math.prod(c.shape[1:]) * c.element_size() for c in columns)

    def sample(self, size: int, generator: torch.Generator) -> Tensor:
        """Return random rows (size,), without repetition if the memory is large enough."""
        device = self.images.device
        if size <= self.count:
            return torch.randperm(self.count, generator=generator, device=device)[:size]
        return torch.randint(self.count, (size,), generator=generator, device=device)

    def of_task(self, task: int) -> Tensor:
        """Return the rows of one task."""
        return (self.tasks[: self.count] == task).nonzero().squeeze(1)

    def remember(self, task: Task, generator: torch.Generator, embed: Embed | None = None) -> None:
        """Choose what to keep from the memory and from a task that has just been learned."""
        if self.capacity:
            POLICIES[self.policy](self, task, generator, embed)

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, in this order."""
        for column in self._columns():
            column[: len(rows)] = column[rows].clone()
        self.count = len(rows)

    def forget(self, slot: int) -> None:
        """Delete all samples of a class, and reduce `offered` as if the class had never been offered."""
        rows = (self.slots[: self.count] != slot).nonzero().squeeze(1)
        self.offered = max(len(rows), self.offered * len(rows) // max(1, self.count))
        self.keep(rows)

    def add(self, images: Tensor, slots: Tensor, task: int) -> Tensor:
        """Append as many samples as fit; return their rows."""
        room = min(len(images), self.capacity - self.count)
        self._make_room(self.count + room)
        rows = torch.arange(self.count, self.count + room, device=self.images.device)
        self._put(rows, images[:room], slots[:room], task)
        self.count += room
        return rows

    def insert(self, images: Tensor, slots: Tensor, task: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Insert a batch by reservoir sampling; return (indices of the samples kept, their rows).

        After n offers each sample has been kept with probability capacity / n. Samples that fill the room left by a
        forgotten class are an exception."""
        device = self.images.device
        place = torch.arange(len(images), device=device)
        order = self.offered + place + 1  # number of offers so far, including this one
        draw = torch.rand(len(images), generator=generator, device=device, dtype=torch.float64)
        rows = (draw * order).long()
        rows = torch.where(place < self.capacity - self.count, self.count + place, rows)  # fill free rows first
        self.offered += len(images)
        room = min(self.capacity, self.count + len(images))
        self._make_room(room)
        # If several samples draw the same row, the last one wins: it has the largest position.
        last = torch.full((room + 1,), -1, dtype=torch.long, device=device)
        last.scatter_reduce_(0, rows.clamp(max=room), place, "amax")
        kept_rows = (last[:-1] >= 0).nonzero().squeeze(1)
        kept = last[kept_rows]
        self._put(kept_rows, images[kept], slots[kept], task)
        self.count = room
        return kept, kept_rows

    def _put(self, rows: Tensor, images: Tensor, slots: Tensor, task: int) -> None:
        """Write new samples to these rows and clear the notes of the old ones."""
        self.images[rows], self.slots[rows], self.tasks[rows] = images, slots, task
        for values in self.notes.values():
            values[rows] = 0

    def note(self, name: str, rows: Tensor, values: Tensor) -> None:
        """Store `values` (n, ...) with these rows; they stay with their samples under every policy."""
        if name not in self.notes:
            self.notes[name] = values.new_zeros(len(self.slots), *values.shape[1:])
        self.notes[name][rows] = values

    def state(self) -> dict[str, Tensor]:
        """Return the rows in use as tensors."""
        used = {"images": self.images, "slots": self.slots, "tasks": self.tasks}
        used |= {f"notes.{name}": values for name, values in self.notes.items()}
        counts = torch.tensor([self.count, self.offered])
        return {"counts": counts, **{name: column[: self.count] for name, column in used.items()}}

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        count, offered = state["counts"].tolist()
        if count > self.capacity or any(len(state[name]) < count for name in ("images", "slots", "tasks")):
            raise ValueError(f"a memory of {count} samples, where {self.capacity} is the most")
        notes = {k: v for k, v in state.items() if k.startswith("notes.")}
        self._make_room(count)
        for name in ("images", "slots", "tasks"):
            getattr(self, name)[:count] = state[name][:count]
        self.count, self.offered, self.notes = count, offered, {}
        for name, values in notes.items():
            self.note(name.removeprefix("notes."), torch.arange(count), values[:count].to(self.images.device))

    def _columns(self) -> list[Tensor]:
        return [self.images, self.slots, self.tasks, *self.notes.values()]


def by_task(memory: Memory, task: Task, generator: torch.Generator, embed: Embed | None) -> None:
    """Keep M // t random samples of each task after task t; older sets are cut to their first M // t (the paper)."""
    quota = memory.capacity // (task.index + 1)
    kept = [memory.of_task(index)[:quota] for index in range(task.index)]
    memory.keep(torch.cat([*kept, torch.empty(0, dtype=torch.long, device=memory.images.device)]))
    chosen = torch.randperm(len(task.train), generator=generator, device=memory.images.device)[:quota]
    memory.add(*task.train.batch(chosen), task.index)
    memory.offered += len(task.train)


def by_class(memory: Memory, task: Task, generator: torch.Generator, embed: Embed | None) -> None:
    """Keep M // classes random samples of each class seen so far."""
    _class_quotas(memory, task, lambda members, quota: _random(members, quota, generator))


def by_herding(memory: Memory, task: Task, generator: torch.Generator, embed: Embed | None) -> None:
    """Keep M // classes samples of each class, chosen so that their mean stays near the class mean (iCaRL)."""
    if embed is None:
        raise BadConfig("herding chooses by features; give remember() an embed function.")

    def herd(members: Tensor, quota: int) -> Tensor:
        images, _ = task.train.batch(members)
        features = torch.cat([F.normalize(embed(part), dim=1) for part in images.split(512)])  # (n, dim)
        return members[herding_order(features, min(quota, len(members)))]

    _class_quotas(memory, task, herd)


def by_reservoir(memory: Memory, task: Task, generator: torch.Generator, embed: Embed | None) -> None:
    """Keep a uniform random sample of the stream so far."""
    device = memory.images.device
    for part in torch.randperm(len(task.train), generator=generator, device=device).split(1024):
        memory.insert(*task.train.batch(part), task.index, generator)


def herding_order(features: Tensor, count: int) -> Tensor:
    """Choose samples greedily: the next one brings the mean of the chosen nearest to the mean of all."""
    mean, chosen = features.mean(0), torch.zeros_like(features[0])
    order, free = [], torch.zeros(len(features), device=features.device)
    for k in range(1, count + 1):
        distance = ((mean - (chosen + features) / k) ** 2).sum(1) + free  # (n,)
        best = distance.argmin()
        order.append(best)
        free[best] = float("inf")
        chosen = chosen + features[best]
    return torch.stack(order) if order else torch.empty(0, dtype=torch.long, device=features.device)


def _class_quotas(memory: Memory, task: Task, choose: Callable[[Tensor, int], Tensor]) -> None:
    """Give each class the same quota; choose the samples of the task's classes with `choose(members, quota)`.

    A class that comes again gives up to half of its quota to new samples."""
    device = memory.images.device
    old = memory.slots[: memory.count].unique().tolist()
    new = {slot: (task.train.slots == slot).nonzero().squeeze(1) for slot in task.train.slots.unique().tolist()}
    quota = memory.capacity // len({*old, *new})
    room = dict.fromkeys(new, quota)
    kept = []
    for slot in old:
        rows = (memory.slots[: memory.count] == slot).nonzero().squeeze(1)[:quota]
        if slot in new:
            rows = rows[: quota - min(len(new[slot]), quota - quota // 2)]
            room[slot] = quota - len(rows)
        kept.append(rows)
    memory.keep(torch.cat([*kept, torch.empty(0, dtype=torch.long, device=device)]))
    for slot, members in new.items():
        memory.add(*task.train.batch(choose(members, room[slot])), task.index)
    memory.offered += len(task.train)


def _random(members: Tensor, quota: int, generator: torch.Generator) -> Tensor:
    return members[torch.randperm(len(members), generator=generator, device=members.device)[:quota]]


Policy = Callable[[Memory, Task, torch.Generator, Embed | None], None]
POLICIES: dict[str, Policy] = {"task": by_task, "class": by_class, "herding": by_herding, "reservoir": by_reservoir}


@dataclass(frozen=True)
class MemoryOptions(Options):
    """The options of every method with a memory."""

    memory: int | None = option(None, "samples in memory, in total  (default: the benchmark's)", at_least=0)
    policy: str = option(
        "task", "how to choose samples for the memory: equally per task (paper) or per class, herding, or a reservoir",
        choices=POLICIES,
    )

    def check_with(self, run: Any) -> None:
        if self.memory and self.memory < run.classes:
            raise BadConfig(
                f"A memory of {self.memory} samples cannot hold the {run.classes} classes of {run.benchmark}: "
                f"give it at least {run.classes}, or 0 for none."
            )
