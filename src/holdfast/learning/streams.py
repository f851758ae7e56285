"""Split a data set into tasks, by class or by permutations of the pixels, and map labels to slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..data.stored import Stored
from ..errors import BadConfig, BadData

ORDERS = ("label", "shuffled")


@dataclass(frozen=True)
class Samples:
    """Some rows of a shared data set with their slots. A batch is an index operation; nothing is copied earlier."""

    images: Tensor | Stored  # (n, channels, height, width) uint8, shared by all tasks; resident or on disk
    rows: Tensor  # (m,) int64
    slots: Tensor  # (m,) int64
    pixels: Tensor | None = None  # (height * width,) this task's permutation of the pixels

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return images (b, channels, height, width) uint8 and slots (b,) of the chosen samples."""
        images = self.images[self.rows[chosen]]
        if self.pixels is not None:
            images = images.flatten(2)[:, :, self.pixels].view_as(images)
        return images, self.slots[chosen]

    def expect(self, batches: Sequence[Tensor]) -> None:
        """Announce the next batches, so that images on disk can be read in advance."""
        if isinstance(self.images, Stored):
            self.images.expect(self.rows[chosen] for chosen in batches)

    def only(self, chosen: Tensor) -> Samples:
        """Return the chosen samples."""
        return replace(self, rows=self.rows[chosen], slots=self.slots[chosen])

    def to(self, device: torch.device) -> Samples:
        pixels = None if self.pixels is None else self.pixels.to(device)
        return Samples(self.images.to(device), self.rows.to(device), self.slots.to(device), pixels)


@dataclass(frozen=True)
class Task:
    """One task of the stream: the slots it introduces, and their training and test samples."""

    index: int  # from 0
    slots: tuple[int, ...]
    train: Samples
    test: Samples
    validation: Samples | None = None


@dataclass(frozen=True)
class Stream:
    """Tasks in order, and the values they share."""

    name: str
    tasks: tuple[Task, ...]
    labels: tuple[str, ...]  # by slot
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str | None = None  # of the data, if they are the user's own

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tasks[0].train.images.shape[1:])

    def to(self, device: torch.device | str) -> Stream:
        """Return the stream with its tensors on `device`; images shared by tasks stay shared."""
        every = [part for t in self.tasks for part in (t.train, t.test, t.validation) if part is not None]
        images = {id(part.images): part.images.to(device) for part in every}

        def move(samples: Samples) -> Samples:
            pixels = None if samples.pixels is None else samples.pixels.to(device)
            rows, slots = samples.rows.to(device), samples.slots.to(device)
            return Samples(images[id(samples.images)], rows, slots, pixels)

        tasks = (
            replace(t, train=move(t.train), test=move(t.test), validation=t.validation and move(t.validation))
            for t in self.tasks
        )
        return replace(self, tasks=tuple(tasks))

    def joined(self) -> Stream:
        """Return a stream with all training data in one task, for the method `joint`."""
        shared, slots = self.tasks[0].train.images, torch.cat([t.train.slots for t in self.tasks])
        if all(t.train.images is shared and t.train.pixels is None for t in self.tasks):
            train = Samples(shared, torch.cat([t.train.rows for t in self.tasks]), slots)
        else:
            every = [torch.arange(len(t.train), device=slots.device) for t in self.tasks]
            images = torch.cat([t.train.batch(rows)[0] for t, rows in zip(self.tasks, every)])
            train = Samples(images, torch.arange(len(images), device=slots.device), slots)
        classes = tuple(slot for task in self.tasks for slot in task.slots)
        return replace(self, tasks=(replace(self.tasks[0], slots=classes, train=train),))


def split(
    data: Dataset,
    classes_per_task: int,
    *,
    order: str = "label",
    validation: float = 0.0,
    generator: torch.Generator,
    name: str | None = None,
) -> Stream:
    """Split into tasks of `classes_per_task` classes each; the last task may have fewer."""
    count = len(data.classes)
    if not 1 <= classes_per_task <= count:
        raise BadConfig(f"{classes_per_task} classes per task: {data.name} has {count} classes; choose 1 to {count}.")
    sizes = [len(slots) for slots in torch.arange(count).split(classes_per_task)]
    return split_sizes(data, sizes, order=order, validation=validation, generator=generator, name=name)


def split_sizes(
    data: Dataset,
    sizes: Sequence[int],
    *,
    order: str = "label",
    validation: float = 0.0,
    generator: torch.Generator,
    name: str | None = None,
) -> Stream:
    """Split into tasks with the numbers of classes in `sizes`; remaining classes are left out."""
    count = len(data.classes)
    if not sizes or min(sizes) < 1 or sum(sizes) > count:
        raise BadConfig(
            f"tasks of {list(sizes)} classes cannot be cut from the {count} classes of {data.name}: "
            f"give each at least one, and no more than {count} in all."
        )
    _check_labels(data)
    arrival = class_order(count, order, generator)  # the labels of slot 0, 1, ...
    slot_of = torch.empty(count, dtype=torch.long)
    slot_of[arrival] = torch.arange(count)
    train_slots, test_slots = slot_of[data.train_labels], slot_of[data.test_labels]
    tasks = []
    for index, slots in enumerate(torch.arange(sum(sizes)).split(list(sizes))):
        train = _samples_of(data.train_images, train_slots, slots)
        held, train = _hold_back(train, validation, generator)
        test = _samples_of(data.test_images, test_slots, slots)
        tasks.append(Task(index, tuple(slots.tolist()), train, test, held))
    labels = tuple(data.classes[label] for label in arrival[: sum(sizes)].tolist())
    return Stream(name or f"split-{data.name}", tuple(tasks), labels, data.mean, data.std, data.fingerprint)


def permuted(
    data: Dataset, tasks: int, *, validation: float = 0.0, generator: torch.Generator, name: str | None = None
) -> Stream:
    """Make each task from the whole data set under its own permutation of the pixels; the first is not permuted.

    Each task introduces its own classes: label + classes * task."""
    if tasks < 1:
        raise BadConfig(f"tasks is {tasks}; a stream needs at least 1.")
    _check_labels(data)
    count, pixels = len(data.classes), data.train_images.shape[2] * data.train_images.shape[3]
    every_train, every_test = torch.arange(len(data.train_images)), torch.arange(len(data.test_images))
    made = []
    for index in range(tasks):
        permutation = None if index == 0 else torch.randperm(pixels, generator=generator)
        train = Samples(data.train_images, every_train, data.train_labels + count * index, permutation)
        held, train = _hold_back(train, validation, generator)
        test = Samples(data.test_images, every_test, data.test_labels + count * index, permutation)
        made.append(Task(index, tuple(range(count * index, count * (index + 1))), train, test, held))
    labels = tuple(f"{label}@{index + 1}" for index in range(tasks) for label in data.classes)
    return Stream(name or f"permuted-{data.name}", tuple(made), labels, data.mean, data.std, data.fingerprint)


def _check_labels(data: Dataset) -> None:
    """Raise BadData for labels outside the classes; a negative one would silently count as another class."""
    for part, labels in (("training", data.train_labels), ("test", data.test_labels)):
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(data.classes):
            wrong = int(labels.min()) if int(labels.min()) < 0 else int(labels.max())
            raise BadData(f"The {part} labels of {data.name} contain {wrong}; {len(data.classes)} classes are 0 to "
                          f"{len(data.classes) - 1}.")


def class_order(count: int, order: str, generator: torch.Generator) -> Tensor:
    """Return the labels in order of arrival."""
    if order not in ORDERS:
        raise BadConfig(f"class order is {order!r}; choose one of {', '.join(ORDERS)}.")
    return torch.arange(count) if order == "label" else torch.randperm(count, generator=generator)


def _samples_of(images: Tensor | Stored, slots: Tensor, wanted: Tensor) -> Samples:
    rows = torch.isin(slots, wanted).nonzero().squeeze(1)
    return Samples(images, rows, slots[rows])


def _hold_back(samples: Samples, share: float, generator: torch.Generator) -> tuple[Samples | None, Samples]:
    """Split off a random `share` of the training samples for validation."""
    if share == 0:
        return None, samples
    if not 0 < share < 1:
        raise BadConfig(f"validation is {share}; it is the share of training samples for validation, 0 to below 1.")
    shuffled = torch.randperm(len(samples), generator=generator)
    held = max(1, round(share * len(samples)))
    return samples.only(shuffled[:held]), samples.only(shuffled[held:].sort().values)


def validated(stream: Stream) -> Stream:
    """Return the stream with its validation samples as test samples, to score a search."""
    missing = [task.index for task in stream.tasks if task.validation is None]
    if missing:
        raise BadConfig(f"tasks {missing} have no validation samples; set validation to a share above 0.")
    tasks: Sequence[Task] = [replace(t, test=t.validation, validation=None) for t in stream.tasks]  # type: ignore[arg-type]
    return replace(stream, tasks=tuple(tasks))


def shortened(stream: Stream, samples: int, generator: torch.Generator) -> Stream:
    """Return the stream with at most `samples` random training samples per task; the test samples stay."""
    tasks = []
    for task in stream.tasks:
        chosen = torch.randperm(len(task.train), generator=generator)[:samples].sort().values
        tasks.append(replace(task, train=task.train.only(chosen)))
    return replace(stream, tasks=tuple(tasks))
