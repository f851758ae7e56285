"""A stream is a data set cut into tasks: nothing is lost, nothing is twice, and the seed decides the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from holdfast.data import Dataset
from holdfast.errors import BadConfig
from holdfast.learning import streams
from holdfast.learning.streams import Samples, Stream
from holdfast.runs.benchmarks import BENCHMARKS


def dataset(classes: int = 10, per_class: int = 5, size: int = 4) -> Dataset:
    """Every image is its own: its first two pixels are its number, in base 256."""

    def images(count: int, offset: int) -> torch.Tensor:
        numbers = torch.arange(count) + offset
        made = torch.randint(0, 256, (count, 1, size, size), generator=torch.Generator().manual_seed(offset))
        made[:, 0, 0, 0], made[:, 0, 0, 1] = numbers % 256, numbers // 256
        return made.to(torch.uint8)

    labels = torch.arange(classes).repeat(per_class)
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))]
    test_labels = torch.arange(classes).repeat(2)
    names = tuple(f"name {c}" for c in range(classes))
    return Dataset(
        "made", images(len(labels), 0), labels, images(len(test_labels), 500), test_labels, names, (0.5,), (0.25,)
    )


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def everything(samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    return samples.batch(torch.arange(len(samples)))


@pytest.mark.parametrize("order", streams.ORDERS)
@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_every_sample_is_in_exactly_one_task_of_a_split(size: int, order: str) -> None:
    data = dataset()
    stream = streams.split(data, size, order=order, generator=seeded())
    for part, count in (("train", len(data.train_images)), ("test", len(data.test_images))):
        rows = torch.cat([getattr(task, part).rows for task in stream.tasks])
        assert rows.sort().values.tolist() == list(range(count))


def test_slots_are_given_by_arrival_and_labels_follow_them() -> None:
    data = dataset()
    stream = streams.split(data, 2, order="shuffled", generator=seeded(3))
    assert [slot for task in stream.tasks for slot in task.slots] == list(range(10))
    for task in stream.tasks:
        for samples, labels in ((task.train, data.train_labels), (task.test, data.test_labels)):
            assert set(samples.slots.tolist()) == set(task.slots)
            for row, slot in zip(samples.rows.tolist(), samples.slots.tolist()):
                assert stream.labels[slot] == data.classes[labels[row]]
    in_order = streams.split(data, 2, generator=seeded())
    assert in_order.labels == data.classes


def test_the_order_of_classes_is_the_seeds() -> None:
    def order(seed: int) -> tuple[str, ...]:
        return streams.split(dataset(), 2, order="shuffled", generator=seeded(seed)).labels

    assert order(1) == order(1)
    assert len({order(seed) for seed in range(5)}) == 5
    assert sorted(order(1)) == sorted(dataset().classes)


def test_the_last_task_has_what_is_left() -> None:
    stream = streams.split(dataset(), 4, generator=seeded())
    assert [task.slots for task in stream.tasks] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]
    assert [len(task.train) for task in stream.tasks] == [20, 20, 10]


@pytest.mark.parametrize("size", [0, -1, 11])
def test_a_split_that_cannot_be_is_refused_with_the_range(size: int) -> None:
    with pytest.raises(BadConfig, match=rf"{size}.*1 to 10"):
        streams.split(dataset(), size, generator=seeded())


def test_permuted_tasks_are_one_fixed_bijection_of_the_pixels_each() -> None:
    data = dataset(size=6)
    stream = streams.permuted(data, 4, generator=seeded())
    known = torch.arange(36, dtype=torch.uint8).view(1, 1, 6, 6)  # every pixel is its own place
    moves = []
    for index, task in enumerate(stream.tasks):
        assert task.slots == tuple(range(10 * index, 10 * index + 10))
        for samples, images, labels in (
            (task.train, data.train_images, data.train_labels),
            (task.test, data.test_images, data.test_labels),
        ):
            move = Samples(known, torch.tensor([0]), torch.tensor([0]), samples.pixels)
            places = everything(move)[0].flatten().long()
            assert places.sort().values.tolist() == list(range(36))
            seen, slots = everything(samples)
            assert torch.equal(slots, labels + 10 * index)
            assert torch.equal(seen.flatten(1), images.flatten(1)[:, places])  # the same move for every image
            moves.append(tuple(places.tolist()))
    assert moves[0] == moves[1] == tuple(range(36))  # the first task is as it was
    assert len(set(moves)) == 4  # training and test of a task agree, tasks do not
    again = streams.permuted(data, 4, generator=seeded())
    other = streams.permuted(data, 4, generator=seeded(1))
    assert torch.equal(again.tasks[3].train.pixels, stream.tasks[3].train.pixels)
    assert not torch.equal(other.tasks[3].train.pixels, stream.tasks[3].train.pixels)


def test_permuting_moves_all_channels_of_a_pixel_together() -> None:
    images = torch.arange(2 * 3 * 4, dtype=torch.uint8).view(2, 3, 2, 2)
    pixels = torch.tensor([2, 0, 3, 1])
    seen, _ = Samples(images, torch.arange(2), torch.zeros(2).long(), pixels).batch(torch.tensor([1, 0]))
    for i, image in enumerate((1, 0)):
        for channel in range(3):
            assert seen[i, channel].flatten().tolist() == [images[image, channel].flatten()[p] for p in pixels]


@pytest.mark.parametrize("kind", ["split", "permuted"])
def test_validation_samples_are_kept_from_training(kind: str) -> None:
    make: Callable[..., Stream] = streams.split if kind == "split" else streams.permuted
    stream, whole = make(dataset(), 2, validation=0.3, generator=seeded()), make(dataset(), 2, generator=seeded())
    for task, all_of_it in zip(stream.tasks, whole.tasks):
        assert task.validation is not None
        train, held = set(task.train.rows.tolist()), set(task.validation.rows.tolist())
        assert not train & held
        assert train | held == set(all_of_it.train.rows.tolist())
        assert len(held) == round(0.3 * len(all_of_it.train))
        assert torch.equal(task.test.rows, all_of_it.test.rows)
    scored = streams.validated(stream)
    assert all(torch.equal(s.test.rows, t.validation.rows) for s, t in zip(scored.tasks, stream.tasks))
    with pytest.raises(BadConfig, match="validation"):
        streams.validated(whole)


def test_a_shortened_stream_has_fewer_training_samples_and_the_same_tests() -> None:
    whole = streams.split(dataset(), 2, generator=seeded())
    short = streams.shortened(whole, 7, seeded())
    for task, full in zip(short.tasks, whole.tasks):
        assert len(set(task.train.rows.tolist())) == 7
        assert set(task.train.rows.tolist()) <= set(full.train.rows.tolist())
        assert torch.equal(task.test.rows, full.test.rows)


def test_moving_a_stream_keeps_shared_images_shared(tiny_stream: Callable[..., Stream]) -> None:
    stream = tiny_stream()
    moved = stream.to("meta")
    assert all(task.train.images.device.type == "meta" for task in moved.tasks)
    assert len({id(task.train.images) for task in moved.tasks}) == 1
    assert len({id(task.test.images) for task in moved.tasks}) == 1
    here = streams.permuted(dataset(), 3, validation=0.2, generator=seeded()).to("cpu")
    there = streams.permuted(dataset(), 3, validation=0.2, generator=seeded())
    for a, b in zip(here.tasks, there.tasks):
        for one, other in ((a.train, b.train), (a.test, b.test), (a.validation, b.validation)):
            assert all(torch.equal(x, y) for x, y in zip(everything(one), everything(other)))


@pytest.mark.parametrize("kind", ["split", "permuted", "separate images"])
def test_a_joined_stream_has_all_training_samples_in_one_task(kind: str) -> None:
    make: Callable[..., Stream] = streams.permuted if kind == "permuted" else streams.split
    stream = make(dataset(), 3, generator=seeded())
    if kind == "separate images":  # as when every task came from a folder of its own
        own = []
        for task in stream.tasks:
            images, slots = everything(task.train)
            own.append(dataclasses.replace(task, train=Samples(images, torch.arange(len(images)), slots)))
        stream = dataclasses.replace(stream, tasks=tuple(own))
    joined = stream.joined()
    (task,) = joined.tasks
    images, slots = everything(task.train)
    parts = [everything(t.train) for t in stream.tasks]
    assert torch.equal(images, torch.cat([p[0] for p in parts]))
    assert torch.equal(slots, torch.cat([p[1] for p in parts]))
    assert task.slots == tuple(slot for t in stream.tasks for slot in t.slots)
    assert joined.labels == stream.labels


def test_the_benchmarks_cut_as_their_protocol_says() -> None:
    for name, benchmark in BENCHMARKS.items():
        classes = benchmark.classes_per_task if benchmark.kind == "permuted" else benchmark.classes
        stream = benchmark.stream(dataset(classes), generator=seeded())
        assert (stream.name, len(stream.tasks)) == (name, benchmark.tasks)
        assert len(stream.labels) == benchmark.classes
