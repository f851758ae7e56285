"""Numbers that should not be, each with a defined end. (Exploding rates and large memories: test_training.py.)"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from conftest import make_tiny_stream, make_tiny_trainer
from steadfast import data, experiment, streams
from steadfast.config import Config
from steadfast.errors import BadConfig, BadData
from steadfast.methods import METHODS
from steadfast.streams import Stream

BUILT_IN = ["replay", "gem", "agem", "si", "ewc", "online-ewc", "mas", "finetune", "joint"]


def options(method: str, **more: Any) -> dict[str, Any]:
    return {"method": method, **({"strength": 1.0} if "strength" in METHODS[method].options else {}), **more}


@pytest.mark.parametrize("wrong", [10, -1])
@pytest.mark.parametrize("part", ["train_labels", "test_labels"])
@pytest.mark.parametrize("kind", ["split", "permuted"])
def test_labels_out_of_range_are_refused(kind: str, part: str, wrong: int) -> None:
    digits = data.load("digits")
    labels = getattr(digits, part).clone()
    labels[5] = wrong
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(BadData, match=rf"labels of digits have {wrong}; 10 classes are 0 to 9"):
        if kind == "split":
            streams.split(replace(digits, **{part: labels}), 2, generator=generator)
        else:
            streams.permuted(replace(digits, **{part: labels}), 2, generator=generator)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_sample_of_a_slot_that_its_task_does_not_bring_is_refused(part: str) -> None:
    stream = make_tiny_stream()
    samples = getattr(stream.tasks[1], part)
    slots = samples.slots.clone()
    slots[0] = 0 if part == "train" else 6  # class 0 is another task's; 6 there is not
    task = replace(stream.tasks[1], **{part: replace(samples, slots=slots)})
    with pytest.raises(BadConfig, match="Task 2 of tiny has"):
        make_tiny_trainer(replace(stream, tasks=(stream.tasks[0], task, stream.tasks[2])))


def test_a_task_without_tests_is_refused_before_it_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = data.load("digits")
    kept = digits.test_labels != 3
    fewer = replace(digits, test_images=digits.test_images[kept], test_labels=digits.test_labels[kept])
    monkeypatch.setattr(experiment.data, "load", lambda name, root=None: fewer)
    with pytest.raises(BadConfig, match="Task 4 of split-digits has no test samples"):
        experiment.make_stream(Config("split-digits", classes_per_task=1).resolved())


@pytest.mark.parametrize("method", BUILT_IN)
def test_a_task_of_one_sample_and_a_batch_of_one_are_learned(method: str) -> None:
    """Batch norm included: lenet has it, and nine samples in batches of eight leave one."""
    stream = make_tiny_stream(classes=3, classes_per_task=1, per_class=9)
    lone = replace(stream.tasks[1], train=stream.tasks[1].train.only(torch.tensor([0])))
    trainer = make_tiny_trainer(replace(stream, tasks=(stream.tasks[0], lone, stream.tasks[2])), **options(method))
    trainer.run()
    assert all(0 <= value <= 100 for row in trainer.at.accuracies for value in row)
    assert all(bool(p.isfinite().all()) for p in trainer.learner.parameters())


@pytest.mark.parametrize("method", [m for m in BUILT_IN if METHODS[m].remembers])
@pytest.mark.parametrize("memory", [0, 10_000])
def test_no_memory_and_more_than_there_is_data_both_work(method: str, memory: int) -> None:
    stream: Stream = make_tiny_stream()
    trainer = make_tiny_trainer(stream, **options(method, memory=memory))
    trainer.run()
    assert trainer.method.memory is not None
    assert len(trainer.method.memory) == (0 if memory == 0 else sum(len(task.train) for task in stream.tasks))
