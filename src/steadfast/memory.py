"""The episodic memory: a fixed number of images as bytes (or vectors as floats), and the policies that choose which.

Sampling a batch is one index operation. What a policy does is a few lines of index arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from . import files
from .errors import BadConfig, nearest
from .streams import Task

Embed = Callable[[Tensor], Tensor]  # uint8 images (n, ...) to features (n, dim)
MOST_OFFERED = 2**53  # samples shown to a memory; beyond, the draws of a reservoir are no longer even


class Memory:
    """At most `capacity` images (uint8) or vectors (float32) with their slots and the task each came in.

    Room is made as samples come: a capacity beyond the data costs nothing, in memory and in a checkpoint."""

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
        self.notes: dict[str, Tensor] = {}  # what else is remembered of each sample, by row (logits, say)
        self.count = 0  # rows in use: the first `count`
        self.offered = 0  # samples of the stream shown to the memory so far
        self.place: Path | None = None  # the file that the images are kept in, if not in memory

    def to_disk(self, path: Path) -> None:
        """Keep the images in a file from now on, mapped: they are in memory only as far as the system has room.

        The file has no name any more once it is mapped: however the process ends, nothing is left behind."""
        if self.images.device.type != "cpu":
            raise BadConfig(f"A memory on {self.images.device} cannot live on disk; use --device cpu.")
        self.place = path
        self.images = self._longer(self.images, len(self.images))

    def _make_room(self, rows: int) -> None:
        """For so many samples, and then some, so that a memory that grows is not copied each time."""
        if rows <= len(self.slots):
            return
        rows = min(self.capacity, max(rows, 2 * len(self.slots)))
        self.images, self.slots, self.tasks = (self._longer(c, rows) for c in (self.images, self.slots, self.tasks))
        self.notes = {name: self._longer(values, rows) for name, values in self.notes.items()}

    def _longer(self, column: Tensor, rows: int) -> Tensor:
        """As it is, and zeros up to so many rows."""
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
        """What the images take when it is full, and what is noted with them."""
        columns = (self.images, *self.notes.values())
        return self.capacity * sum(math.prod(c.shape[1:]) * c.element_size() for c in columns)

    def sample(self, size: int, generator: torch.Generator) -> Tensor:
        """Rows (size,) at random; without repetition in a batch where the memory is large enough."""
        device = self.images.device
        if size <= self.count:
            return torch.randperm(self.count, generator=generator, device=device)[:size]
        return torch.randint(self.count, (size,), generator=generator, device=device)

    def of_task(self, task: int) -> Tensor:
        """The rows remembered of one task."""
        return (self.tasks[: self.count] == task).nonzero().squeeze(1)

    def remember(self, task: Task, generator: torch.Generator, embed: Embed | None = None) -> None:
        """A task has been learned: choose anew what to keep, of the memory and of the task."""
        if self.capacity:
            POLICIES[self.policy](self, task, generator, embed)

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these, in their order."""
        for column in self._columns():
            column[: len(rows)] = column[rows].clone()
        self.count = len(rows)

    def forget(self, slot: int) -> None:
        """Drop all samples of a class; what was offered counts as if it had never come."""
        rows = (self.slots[: self.count] != slot).nonzero().squeeze(1)
        self.offered = max(len(rows), self.offered * len(rows) // max(1, self.count))
        self.keep(rows)

    def add(self, images: Tensor, slots: Tensor, task: int) -> Tensor:
        """Append as many as there is room for; returns their rows."""
        room = min(len(images), self.capacity - self.count)
        self._make_room(self.count + room)
        rows = torch.arange(self.count, self.count + room, device=self.images.device)
        self._put(rows, images[:room], slots[:room], task)
        self.count += room
        return rows

    def insert(self, images: Tensor, slots: Tensor, task: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Reservoir sampling: after n offers each has been kept with probability capacity / n, but for those that fill
        the room that a forgotten class has left.

        Returns (which of the batch were kept, the rows they went to)."""
        device = self.images.device
        place = torch.arange(len(images), device=device)
        order = self.offered + place + 1  # how many offers, this one included
        draw = torch.rand(len(images), generator=generator, device=device, dtype=torch.float64)
        rows = (draw * order).long()
        rows = torch.where(place < self.capacity - self.count, self.count + place, rows)  # the first ones fill it up
        self.offered += len(images)
        room = min(self.capacity, self.count + len(images))
        self._make_room(room)
        # Of several that draw the same row the last one stays: mark it by the largest position.
        last = torch.full((room + 1,), -1, dtype=torch.long, device=device)
        last.scatter_reduce_(0, rows.clamp(max=room), place, "amax")
        kept_rows = (last[:-1] >= 0).nonzero().squeeze(1)
        kept = last[kept_rows]
        self._put(kept_rows, images[kept], slots[kept], task)
        self.count = room
        return kept, kept_rows

    def _put(self, rows: Tensor, images: Tensor, slots: Tensor, task: int) -> None:
        """New samples take these rows; what was noted of the old ones goes with them."""
        self.images[rows], self.slots[rows], self.tasks[rows] = images, slots, task
        for values in self.notes.values():
            values[rows] = 0

    def note(self, name: str, rows: Tensor, values: Tensor) -> None:
        """Remember `values` (n, ...) beside these rows; they follow their samples through every policy."""
        if name not in self.notes:
            self.notes[name] = values.new_zeros(len(self.slots), *values.shape[1:])
        self.notes[name][rows] = values

    def state(self) -> dict[str, Tensor]:
        """What it holds; rows that are not in use are no part of it."""
        used = {"images": self.images, "slots": self.slots, "tasks": self.tasks}
        used |= {f"notes.{name}": values for name, values in self.notes.items()}
        counts = torch.tensor([self.count, self.offered])
        return {"counts": counts, **{name: column[: self.count] for name, column in used.items()}}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take up what `state` gave, or gave when it still had rows that are not in use; ValueError if it cannot be."""
        counts = state["counts"]
        count, offered = counts.tolist() if counts.dtype == torch.long and counts.shape == (2,) else (-1, -1)
        if not 0 <= count <= self.capacity or not count <= offered <= MOST_OFFERED:
            raise ValueError(f"a memory of {count} samples out of {offered}, where {self.capacity} is the most")
        notes = {k: v for k, v in state.items() if k.startswith("notes.")}
        for name, like in {"images": self.images, "slots": self.slots, "tasks": self.tasks, **notes}.items():
            found = state[name]
            if found.dtype != like.dtype or found.shape[1:] != like.shape[1:] or len(found) < count:
                raise ValueError(f"{name} of a memory of {count} that are {found.dtype} of {tuple(found.shape)}")
        if any(bool((state[name][:count] < 0).any()) for name in ("slots", "tasks")):
            raise ValueError("a memory with slots or tasks below 0")
        self._make_room(count)
        for name in ("images", "slots", "tasks"):
            getattr(self, name)[:count] = state[name][:count]
        self.count, self.offered, self.notes = count, offered, {}
        for name, values in notes.items():
            self.note(name.removeprefix("notes."), torch.arange(count), values[:count].to(self.images.device))

    def _columns(self) -> list[Tensor]:
        return [self.images, self.slots, self.tasks, *self.notes.values()]


def by_task(memory: Memory, task: Task, generator: torch.Generator, embed: Embed | None) -> None:
    """The paper's: after task t, M // t samples of each task; older sets are cut to their first M // t."""
    quota = memory.capacity // (task.index + 1)
    kept = [memory.of_task(index)[:quota] for index in range(task.index)]
    memory.keep(torch.cat([*kept, torch.empty(0, dtype=torch.long, device=memory.images.device)]))
    chosen = torch.randperm(len(task.train), generator=generator, device=memory.images.device)[:quota]
    memory.add(*task.train.batch(chosen), task.index)
    memory.offered += len(task.train)


def by_class(memory: Memory, task: Task, generator: torch.Generator, embed: Embed | None) -> None:
    """M // classes random samples of each class seen so far."""
    _class_quotas(memory, task, lambda members, quota: _random(members, quota, generator))


def by_herding(memory: Memory, task: Task, generator: torch.Generator, embed: Embed | None) -> None:
    """As by class, but the samples whose running mean stays nearest to the class's mean feature (iCaRL)."""
    if embed is None:
        raise BadConfig("herding chooses by features; give remember() an embed function.")

    def herd(members: Tensor, quota: int) -> Tensor:
        images, _ = task.train.batch(members)
        features = torch.cat([F.normalize(embed(part), dim=1) for part in images.split(512)])  # (n, dim)
        return members[herding_order(features, min(quota, len(members)))]

    _class_quotas(memory, task, herd)


def by_reservoir(memory: Memory, task: Task, generator: torch.Generator, embed: Embed | None) -> None:
    """Every sample of the stream so far is as likely as any other to be in the memory."""
    device = memory.images.device
    for part in torch.randperm(len(task.train), generator=generator, device=device).split(1024):
        memory.insert(*task.train.batch(part), task.index, generator)


def herding_order(features: Tensor, count: int) -> Tensor:
    """Greedy: the next sample is the one that brings the chosen ones' mean nearest to the mean of all."""
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
    """Each class keeps its first quota; the task's classes get theirs by `choose(members, quota)`.

    A class that comes again shares its quota between old and new samples, up to half of it for the new ones."""
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
