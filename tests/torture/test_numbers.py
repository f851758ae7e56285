"""Labels, tasks and memories at their limits: each is refused by name, or learned."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conftest import make_tiny_stream, make_tiny_trainer, needed
from holdfast import data
from holdfast.errors import BadConfig, BadData
from holdfast.learning import streams
from holdfast.learning.streams import Stream
from holdfast.methods import METHODS
from holdfast.options import declared
from holdfast.runs import build
from holdfast.runs.config import Config

WITH_MEMORY = [m for m in METHODS if "memory" in {each.name for each in declared(METHODS.options(m))}]


@pytest.mark.parametrize("wrong", [10, -1])
@pytest.mark.parametrize("part", ["train_labels", "test_labels"])
@pytest.mark.parametrize("kind", ["split", "permuted"])
def test_labels_out_of_range_are_refused(kind: str, part: str, wrong: int) -> None:
    digits = data.load("digits")
    labels = getattr(digits, part).clone()
    labels[5] = wrong
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(BadData, match=rf"labels of digits contain {wrong}; 10 classes are 0 to 9"):
        if kind == "split":
            streams.split(replace(digits, **{part: labels}), 2, generator=generator)
        else:
            streams.permuted(replace(digits, **{part: labels}), 2, generator=generator)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_sample_of_a_slot_that_its_task_does_not_bring_is_refused(part: str) -> None:
    stream = make_tiny_stream()
    samples = getattr(stream.tasks[1], part)
    slots = samples.slots.clone()
    slots[0] = 0 if part == "train" else 6  # class 0 belongs to another task, and class 6 to none
    task = replace(stream.tasks[1], **{part: replace(samples, slots=slots)})
    with pytest.raises(BadConfig, match="Task 2 of tiny has"):
        make_tiny_trainer(replace(stream, tasks=(stream.tasks[0], task, stream.tasks[2])))


def test_a_task_without_tests_is_refused_before_it_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = data.load("digits")
    kept = digits.test_labels != 3
    fewer = replace(digits, test_images=digits.test_images[kept], test_labels=digits.test_labels[kept])
    monkeypatch.setattr(data, "load", lambda name, root=None: fewer)
    with pytest.raises(BadConfig, match="Task 4 of split-digits has no test samples"):
        build.make_stream(Config("split-digits", classes_per_task=1).resolved())


@pytest.mark.parametrize("method", METHODS)
def test_a_task_of_one_sample_and_a_batch_of_one_are_learned(method: str) -> None:
    """Batch norm included: lenet has it, and nine samples in batches of eight leave one."""
    stream = make_tiny_stream(classes=3, classes_per_task=1, per_class=9)
    lone = replace(stream.tasks[1], train=stream.tasks[1].train.only(torch.tensor([0])))
    stream = replace(stream, tasks=(stream.tasks[0], lone, stream.tasks[2]))
    trainer = make_tiny_trainer(stream, method=method, **needed(method))
    trainer.run()
    assert all(0 <= value <= 100 for row in trainer.at.accuracies for value in row)
    assert all(bool(p.isfinite().all()) for p in trainer.learner.parameters())


@pytest.mark.parametrize("method", WITH_MEMORY)
@pytest.mark.parametrize("memory", [0, 10_000])
def test_no_memory_and_a_memory_larger_than_the_data_both_work(method: str, memory: int) -> None:
    stream: Stream = make_tiny_stream()
    trainer = make_tiny_trainer(stream, method=method, memory=memory)
    trainer.run()
    assert trainer.method.memory is not None
    assert len(trainer.method.memory) == (0 if memory == 0 else sum(len(task.train) for task in stream.tasks))
