"""The memory: how much of each task or class stays, which samples, and what a batch of it is."""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from holdfast.errors import BadConfig, CannotWrite, UnknownName
from holdfast.learning.memory import POLICIES, Memory, herding_order
from holdfast.learning.streams import Stream

SHAPE = (1, 8, 8)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def embed(images: Tensor) -> Tensor:
    return images.flatten(1).double()


def remembered(memory: Memory, stream: Stream, seed: int = 0) -> list[Counter[int]]:
    """After each task, how many samples of each task are in the memory."""
    generator, found = seeded(seed), []
    for task in stream.tasks:
        memory.remember(task, generator, embed)
        found.append(Counter(memory.tasks[: len(memory)].tolist()))
    return found


def contents(memory: Memory) -> list[tuple[bytes, int, int]]:
    images, slots, tasks = (column[: len(memory)] for column in (memory.images, memory.slots, memory.tasks))
    return [
        (image.numpy().tobytes(), slot, task) for image, slot, task in zip(images, slots.tolist(), tasks.tolist())
    ]


def stored_are_true(memory: Memory, stream: Stream) -> bool:
    """Every remembered image is a training sample of its task, with its slot, and none is there twice."""
    known = set()
    for task in stream.tasks:
        images, slots = task.train.batch(torch.arange(len(task.train)))
        known |= {(image.numpy().tobytes(), slot, task.index) for image, slot in zip(images, slots.tolist())}
    inside = contents(memory)
    return set(inside) <= known and len(set(inside)) == len(inside)


def test_by_task_each_of_t_tasks_has_a_share_of_m_over_t(tiny_stream: Callable[..., Stream]) -> None:
    stream, memory = tiny_stream(classes=8, classes_per_task=2, per_class=10), Memory(17, SHAPE, "task")
    for t, counts in enumerate(remembered(memory, stream), 1):
        assert counts == {task: 17 // t for task in range(t)}
    assert stored_are_true(memory, stream)


def test_by_task_the_older_sets_are_cut_to_their_first(tiny_stream: Callable[..., Stream]) -> None:
    stream, memory, generator = tiny_stream(classes=8, per_class=10), Memory(17, SHAPE, "task"), seeded()
    before: dict[int, list[tuple[bytes, int, int]]] = {}
    for t, task in enumerate(stream.tasks, 1):
        memory.remember(task, generator)
        now = {i: [sample for sample in contents(memory) if sample[2] == i] for i in range(t)}
        for old, samples in before.items():
            assert now[old] == samples[: 17 // t]
        before = now


@pytest.mark.parametrize("policy", ["class", "herding"])
def test_by_class_every_class_seen_has_the_same_number(policy: str, tiny_stream: Callable[..., Stream]) -> None:
    stream, memory, generator = tiny_stream(classes=6, per_class=10), Memory(17, SHAPE, policy), seeded()
    for task in stream.tasks:
        memory.remember(task, generator, embed)
        seen = 2 * (task.index + 1)
        assert Counter(memory.slots[: len(memory)].tolist()) == {slot: min(10, 17 // seen) for slot in range(seen)}
    assert stored_are_true(memory, stream)


def test_the_reservoir_is_full_as_soon_as_it_can_be(tiny_stream: Callable[..., Stream]) -> None:
    stream, memory = tiny_stream(classes=6, per_class=10), Memory(25, SHAPE, "reservoir")
    assert [sum(counts.values()) for counts in remembered(memory, stream)] == [20, 25, 25]
    assert stored_are_true(memory, stream)


def test_the_reservoir_keeps_every_sample_with_the_same_probability() -> None:
    offers, capacity, repetitions = 120, 10, 1500
    images = torch.arange(offers, dtype=torch.uint8).view(-1, 1, 1, 1)
    kept = torch.zeros(offers)
    generator = seeded(5)
    for _ in range(repetitions):
        memory = Memory(capacity, (1, 1, 1), "reservoir")
        for part in torch.arange(offers).split(50):  # a batch may itself overwrite what it has just put in
            memory.insert(images[part], part, 0, generator)
        kept[memory.slots] += 1
        assert len(memory) == len(memory.slots.unique()) == capacity
        assert torch.equal(memory.images.flatten().long(), memory.slots)
    share = capacity / offers
    statistic = ((kept - repetitions * share) ** 2).sum() / (repetitions * share * (1 - share))
    assert stats.chi2.sf(float(statistic), offers - 1) > 1e-4
    assert stats.chi2.cdf(float(statistic), offers - 1) > 1e-4  # nor suspiciously even


@pytest.mark.parametrize("before", [4, 6, 40])  # offered to a memory of 6, every other one of the class to be forgotten
def test_what_a_reservoir_forgot_does_not_come_back(before: int) -> None:
    memory, generator = Memory(6, (1, 1, 1), "reservoir"), seeded(0)
    images = torch.arange(100, dtype=torch.uint8).view(-1, 1, 1, 1)
    memory.insert(images[:before], torch.arange(before) % 2, 0, generator)
    memory.forget(1)
    left = len(memory)
    assert 0 < left < 6 and memory.offered >= left
    kept, rows = memory.insert(images[50:52], torch.tensor([2, 2]), 1, generator)
    assert len(memory) == left + min(2, 6 - left)  # the room that is left is filled at once
    assert {*rows.tolist()} <= {*range(len(memory))} and torch.equal(memory.images[rows], images[50:52][kept])
    memory.insert(images[52:90], torch.full((38,), 2), 1, generator)
    assert len(memory) == 6
    assert all(int(image) >= 50 or int(image) % 2 == 0 for image in memory.images[:6].flatten())
    assert torch.equal(memory.images[:6].flatten() < 50, memory.slots[:6] == 0)


def test_herding_takes_the_sample_that_brings_the_mean_nearest() -> None:
    features = torch.randn(9, 3, dtype=torch.float64, generator=seeded(2))
    mean, chosen = features.mean(0), []
    for _ in range(6):
        distances = {
            i: float((features[[*chosen, i]].mean(0) - mean).norm()) for i in range(9) if i not in chosen
        }
        chosen.append(min(distances, key=distances.__getitem__))
    assert herding_order(features, 6).tolist() == chosen
    assert sorted(herding_order(features, 9).tolist()) == list(range(9))
    assert herding_order(features, 0).tolist() == []


def test_herding_remembers_in_that_order_and_cuts_from_the_end(tiny_stream: Callable[..., Stream]) -> None:
    stream, memory = tiny_stream(classes=6, per_class=7), Memory(12, SHAPE, "herding")
    remembered(memory, stream)
    for task in stream.tasks:
        for slot in task.slots:
            members = task.train.only((task.train.slots == slot).nonzero().squeeze(1))
            images, _ = members.batch(torch.arange(len(members)))
            features = embed(images)
            order = herding_order(features / features.norm(dim=1, keepdim=True), 2)
            inside = memory.images[: len(memory)][memory.slots[: len(memory)] == slot]
            assert torch.equal(inside, images[order])


def test_herding_needs_features(tiny_stream: Callable[..., Stream]) -> None:
    with pytest.raises(BadConfig, match="embed"):
        Memory(12, SHAPE, "herding").remember(tiny_stream().tasks[0], seeded())


def test_its_bytes_are_the_images_bytes() -> None:
    assert Memory(100, (3, 32, 32)).bytes == 100 * 3 * 32 * 32
    assert Memory(0, (3, 32, 32)).bytes == 0
    noted = Memory(10, (1, 4, 4))
    rows = noted.add(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), torch.tensor([0]), 0)
    noted.note("logits", rows, torch.zeros(1, 7))
    assert noted.bytes == 10 * 16 + 10 * 7 * 4


@pytest.mark.parametrize("policy", POLICIES)
def test_a_memory_larger_than_the_data_holds_all_of_it(policy: str, tiny_stream: Callable[..., Stream]) -> None:
    stream, memory = tiny_stream(classes=6, per_class=5), Memory(1000, SHAPE, policy)
    assert remembered(memory, stream)[-1] == {0: 10, 1: 10, 2: 10}
    assert stored_are_true(memory, stream)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_memory_of_nothing_stays_empty(policy: str, tiny_stream: Callable[..., Stream]) -> None:
    memory, generator = Memory(0, SHAPE, policy), seeded()
    before = generator.get_state()
    for task in tiny_stream().tasks:
        memory.remember(task, generator, embed)
    assert len(memory) == 0
    assert torch.equal(generator.get_state(), before)  # and draws nothing, so a run without it is the same


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_remembered_is_the_seeds(policy: str, tiny_stream: Callable[..., Stream]) -> None:
    def of(seed: int) -> list[tuple[bytes, int, int]]:
        memory = Memory(12, SHAPE, policy)
        remembered(memory, tiny_stream(), seed)
        return contents(memory)

    assert of(1) == of(1)
    assert policy == "herding" or of(1) != of(2)


def test_a_batch_has_no_sample_twice_where_the_memory_is_large_enough(tiny_stream: Callable[..., Stream]) -> None:
    memory, generator = Memory(12, SHAPE), seeded()
    memory.remember(tiny_stream(per_class=10).tasks[0], generator)
    counts: Counter[int] = Counter()
    for _ in range(300):
        rows = memory.sample(5, generator).tolist()
        assert len(set(rows)) == 5
        counts.update(rows)
    assert set(counts) == set(range(12))
    assert stats.chisquare([counts[row] for row in range(12)]).pvalue > 1e-4
    assert sorted(memory.sample(12, generator).tolist()) == list(range(12))
    many = memory.sample(40, generator)
    assert len(many) == 40 and set(many.tolist()) <= set(range(12))


@pytest.mark.parametrize("policy", POLICIES)
def test_notes_follow_their_samples(policy: str, tiny_stream: Callable[..., Stream]) -> None:
    stream, memory, generator = tiny_stream(classes=8, per_class=10), Memory(17, SHAPE, policy), seeded()
    for task, other in itertools.pairwise(stream.tasks):
        memory.remember(task, generator, embed)
        rows = torch.arange(len(memory))
        memory.note("sum", rows, embed(memory.images[rows]).sum(1, keepdim=True))
        inside = {image: i for i, (image, _, _) in enumerate(contents(memory))}
        noted = memory.notes["sum"].clone()
        memory.remember(other, generator, embed)
        stayed = [(row, inside[s[0]]) for row, s in enumerate(contents(memory)) if s[0] in inside]
        assert stayed
        for row, was in stayed:
            assert torch.equal(memory.notes["sum"][row], noted[was])


def test_a_saved_memory_is_the_same_memory(tiny_stream: Callable[..., Stream]) -> None:
    stream, memory, other = tiny_stream(), Memory(12, SHAPE, "reservoir"), Memory(12, SHAPE, "reservoir")
    memory.remember(stream.tasks[0], seeded())
    memory.note("logits", torch.arange(3), torch.randn(3, 4))
    other.load({k: v.clone() for k, v in memory.state().items()})
    assert contents(other) == contents(memory)
    assert torch.equal(other.notes["logits"], memory.notes["logits"])
    for each in (memory, other):
        each.remember(stream.tasks[1], seeded(1))
    assert contents(other) == contents(memory)


def test_a_capacity_beyond_the_data_costs_nothing(tiny_stream: Callable[..., Stream]) -> None:
    for policy in POLICIES:
        memory, stream = Memory(2**31 - 1, SHAPE, policy), tiny_stream()
        remembered(memory, stream)
        samples = sum(len(task.train) for task in stream.tasks)
        assert len(memory) == samples <= len(memory.images) <= 2 * samples
        assert {len(column) for name, column in memory.state().items() if name != "counts"} == {samples}


def test_a_memory_saved_with_rows_that_were_not_in_use_is_still_read(tiny_stream: Callable[..., Stream]) -> None:
    memory, other = Memory(30, SHAPE), Memory(30, SHAPE)
    memory.remember(tiny_stream().tasks[0], seeded())
    memory.note("logits", torch.arange(12), torch.randn(12, 4))
    old = memory.state()
    longer = {k: torch.cat([v, v.new_ones(18, *v.shape[1:])]) for k, v in old.items() if k != "counts"}
    other.load({**longer, "counts": old["counts"]})
    assert len(other) == 12 and contents(other) == contents(memory)
    assert all(torch.equal(value, old[name]) for name, value in other.state().items())


def test_a_memory_on_disk_grows_and_is_the_same_memory(tmp_path: Path, tiny_stream: Callable[..., Stream]) -> None:
    resident, mapped = Memory(30, SHAPE, "reservoir"), Memory(30, SHAPE, "reservoir")
    mapped.to_disk(tmp_path / "images")
    remembered(resident, tiny_stream())
    remembered(mapped, tiny_stream())
    assert contents(mapped) == contents(resident)
    assert list(tmp_path.iterdir()) == []  # nothing to leave behind


def test_a_disk_without_room_for_the_memory_is_named_before_it_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_stream: Callable[..., Stream]
) -> None:
    def full(descriptor: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    memory = Memory(30, SHAPE)
    memory.to_disk(tmp_path / "images")
    with pytest.raises(CannotWrite, match=r"images cannot be written: No space left.*free some space"):
        memory.remember(tiny_stream().tasks[0], seeded())
    assert list(tmp_path.iterdir()) == []


def test_bad_memories_are_refused() -> None:
    with pytest.raises(BadConfig, match="-1"):
        Memory(-1, SHAPE)
    with pytest.raises(UnknownName, match="Did you mean 'reservoir'"):
        Memory(10, SHAPE, "reservoire")
