"""The loop: deterministic, complete in its records, and stopped by a loss that is not finite."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from conftest import assert_same_bits, bits, make_tiny_stream, make_tiny_trainer
from holdfast.errors import BadConfig, LossNotFinite
from holdfast.learning.memory import POLICIES
from holdfast.learning.streams import Stream
from holdfast.learning.training import Trainer, Watcher


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    runs = []
    for seed in (3, 3, 4):
        torch.rand(5)  # the global generator has no say
        trainer = make_tiny_trainer(seed=seed)
        trainer.run()
        runs.append(bits(trainer))
    assert_same_bits(runs[0], runs[1])
    assert not torch.equal(runs[0]["learner.backbone.conv1.weight"], runs[2]["learner.backbone.conv1.weight"])


def test_training_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    make_tiny_trainer(augment="shift").run()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_learner_learns_what_can_be_told_apart() -> None:
    trainer = make_tiny_trainer(make_tiny_stream(per_class=16), epochs=4, memory=60)
    trainer.run()
    assert sum(trainer.at.accuracies[-1]) / 3 > 80
    forgetful = make_tiny_trainer(make_tiny_stream(per_class=16), epochs=4, method="finetune")
    forgetful.run()
    assert forgetful.at.accuracies[-1][0] < 50 < forgetful.at.accuracies[0][0]


@pytest.mark.parametrize("head", ["simplex", "expanding"])
def test_replay_without_memory_is_finetuning_with_the_same_head(head: str) -> None:
    replay, finetune = make_tiny_trainer(memory=0, head=head), make_tiny_trainer(method="finetune", head=head)
    for trainer in (replay, finetune):
        trainer.run()
    one, other = bits(replay), bits(finetune)
    assert_same_bits({k: v for k, v in one.items() if not k.startswith("method.memory.")}, other)


@pytest.mark.parametrize(
    ("memory_batch", "new"),  # 16 samples a task, batches of 8
    [(None, [4, 4, 4, 4]), (3, [5, 5, 5, 1]), (7, [1] * 16)],
)
def test_with_a_memory_part_of_each_batch_is_new_and_every_new_sample_comes_once_an_epoch(
    memory_batch: int | None, new: list[int]
) -> None:
    seen: list[int] = []
    stream = make_tiny_stream(per_class=8)
    trainer = make_tiny_trainer(stream, watcher=Watcher(step=seen.append), memory_batch=memory_batch)
    inputs: list[int] = []
    original = trainer.learner.features

    def features(images: torch.Tensor) -> torch.Tensor:
        if trainer.learner.training:
            inputs.append(len(images))
        return original(images)

    trainer.learner.features = features  # type: ignore[method-assign]
    trainer.run()
    first, others = 2 * [8, 8], 2 * 2 * new  # two epochs
    assert seen == first + others
    assert inputs == first + [size + (memory_batch or 4) for size in others]


def broken_at(trainer: Trainer, step: int, value: float) -> None:
    """From this step on (counted over the run) the loss is `value`."""
    observe, taken = trainer.method.observe, 0

    def bad(images: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        nonlocal taken
        taken += 1
        loss = observe(images, slots)
        return torch.full_like(loss, value) if taken >= step else loss

    trainer.method.observe = bad  # type: ignore[method-assign]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_the_run_and_says_where(value: float) -> None:
    saved: list[int] = []
    trainer = make_tiny_trainer(make_tiny_stream(per_class=8), lr=0.0005)
    trainer.save = lambda trainer: saved.append(trainer.at.epoch)
    broken_at(trainer, 2 + 2 + 4 + 3, value)  # two epochs of 2 steps, one of 4, and 3 more
    with pytest.raises(LossNotFinite, match=rf"{value} at step 3 of epoch 2, task 2, .* 0\.0005.*lr, such as 5e-05"):
        trainer.run()
    assert saved == [1, 0, 1]  # nothing after the last good epoch


def test_a_stop_during_a_bad_epoch_saves_nothing() -> None:
    saved: list[int] = []
    trainer = make_tiny_trainer()
    broken_at(trainer, 1, float("nan"))
    trainer.watcher = Watcher(stop=lambda: trainer.at.step == 1)
    trainer.save = lambda trainer: saved.append(1)
    with pytest.raises(LossNotFinite, match="step 1 of epoch 1, task 1"):
        trainer.run()
    assert not saved


def test_weights_that_blow_up_after_a_finite_loss_are_not_saved() -> None:
    saved: list[int] = []
    trainer = make_tiny_trainer()
    step = trainer.method.optimizer.step

    def explode(*args: Any) -> None:
        step()
        if trainer.at.step == 1:  # the last one of the first epoch
            with torch.no_grad():
                next(trainer.learner.parameters()).fill_(float("inf"))

    trainer.method.optimizer.step = explode  # type: ignore[method-assign,assignment]
    trainer.save = lambda trainer: saved.append(1)
    with pytest.raises(LossNotFinite, match=r"weights are not \(.*weight\) at step 2 of epoch 1, task 1"):
        trainer.run()
    assert not saved


def test_an_empty_task_is_refused_before_anything_starts(tiny_stream: Callable[..., Stream]) -> None:
    stream = tiny_stream()
    empty = dataclasses.replace(stream.tasks[1], train=stream.tasks[1].train.only(torch.empty(0).long()))
    with pytest.raises(BadConfig, match="Task 2 of tiny has no training samples"):
        make_tiny_trainer(dataclasses.replace(stream, tasks=(stream.tasks[0], empty, stream.tasks[2])))


@pytest.mark.parametrize("changes", [{"method": "finetune"}, *({"policy": policy} for policy in POLICIES)], ids=str)
def test_a_task_of_one_sample_is_learned(changes: dict[str, Any], tiny_stream: Callable[..., Stream]) -> None:
    stream = tiny_stream(classes=3, classes_per_task=1, per_class=1, tests=1)
    trainer = make_tiny_trainer(stream, **changes)
    trainer.run()
    assert [len(row) for row in trainer.at.accuracies] == [1, 2, 3]
    assert all(parameter.isfinite().all() for parameter in trainer.learner.parameters())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_memory_larger_than_the_data_works(policy: str) -> None:
    trainer = make_tiny_trainer(policy=policy, memory=500)
    trainer.run()
    assert len(trainer.method.memory) == 36  # all of the stream


def test_joint_learns_everything_at_once_and_is_tested_task_by_task() -> None:
    trainer = make_tiny_trainer(make_tiny_stream(per_class=16), method="joint", epochs=6)
    trainer.run()
    (row,) = trainer.at.accuracies
    assert len(row) == 3 and min(row) > 80
    assert trainer.learner.head.seen.tolist() == list(range(6))


def test_only_classes_that_have_come_are_open() -> None:
    seen: list[list[int]] = []
    trainer = make_tiny_trainer()
    trainer.watcher = Watcher(task=lambda record: seen.append(trainer.learner.head.seen.tolist()))
    trainer.run()
    assert seen == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]


def test_records_tell_every_epoch_and_every_task() -> None:
    trainer = make_tiny_trainer()
    trainer.run()
    kinds = [(r["task"], r["epoch"]) if "epoch" in r else (r["task"], "done") for r in trainer.at.records]
    assert kinds == [(t, e) for t in (1, 2, 3) for e in (1, 2, "done")]


def test_a_schedule_divides_the_learning_rate_by_ten_and_every_task_starts_anew() -> None:
    rates: list[float] = []
    trainer = make_tiny_trainer(epochs=3, schedule="1,2", lr=0.01)
    trainer.watcher = Watcher(epoch=lambda record: rates.append(trainer.method.optimizer.param_groups[0]["lr"]))
    trainer.run()
    assert rates == pytest.approx([0.01, 0.001, 0.0001] * 3)
