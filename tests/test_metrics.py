"""The measures, against matrices and angles worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from conftest import make_tiny_trainer
from holdfast.learning import metrics
from holdfast.learning.streams import Stream

FALLING = [[90.0], [80.0, 95.0], [70.0, 85.0, 99.0]]
RISING_FIRST = [[60.0], [75.0, 90.0], [50.0, 80.0, 70.0]]


def test_average_accuracy_is_the_unweighted_mean_over_the_tasks_seen() -> None:
    assert metrics.average_accuracy(FALLING) == [90.0, 87.5, pytest.approx(254 / 3)]
    assert metrics.final_average_accuracy(FALLING) == pytest.approx(254 / 3)
    assert metrics.final_average_accuracy(RISING_FIRST) == pytest.approx(200 / 3)


def test_forgetting_counts_from_the_best_before_the_end() -> None:
    assert metrics.forgetting(FALLING) == pytest.approx((20 + 10) / 2)
    assert metrics.forgetting(RISING_FIRST) == pytest.approx((25 + 10) / 2)  # 75, not the 60 when just learned
    assert metrics.forgetting([[50.0], [80.0, 90.0]]) == pytest.approx(-30)  # a task that rises is negative
    assert metrics.forgetting([[50.0]]) == 0


def test_backward_transfer_counts_from_when_just_learned() -> None:
    assert metrics.backward_transfer(FALLING) == pytest.approx((-20 - 10) / 2)
    assert metrics.backward_transfer(RISING_FIRST) == pytest.approx((-10 - 10) / 2)
    assert metrics.backward_transfer([[50.0]]) == 0


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-9, 1e-4, 0.5, math.pi / 2, 3.0, math.pi - 1e-9, math.pi])
def test_degrees_are_exact_even_where_the_cosine_is_one(angle: float) -> None:
    a = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    b = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    assert float(metrics.degrees(a, b)) == pytest.approx(math.degrees(angle), rel=1e-7, abs=1e-16)


def turned(*angles: float) -> list[list[float]]:
    """Directions in the plane, at these degrees."""
    return [[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in angles]


def test_drift_is_measured_from_where_a_class_was_when_learned() -> None:
    history = torch.tensor([turned(0, 0, 0), turned(10, 80, 0), turned(30, 75, 200)], dtype=torch.float64)
    found = metrics.drift(history, [[0], [1], [2]])
    assert found == [
        [pytest.approx(0), None, None],
        [pytest.approx(10), pytest.approx(0), None],
        [pytest.approx(30), pytest.approx(5), pytest.approx(0)],
    ]


def test_alignment_is_the_angle_to_the_heads_direction_at_that_time() -> None:
    history = torch.tensor([turned(0, 0), turned(10, 80)], dtype=torch.float64)
    directions = torch.tensor([turned(5, 90), turned(7, 90)], dtype=torch.float64)
    found = metrics.alignment(history, [[0], [1]], directions)
    assert found == [[pytest.approx(5), None], [pytest.approx(3), pytest.approx(10)]]


@pytest.mark.parametrize("head", ["simplex", "expanding"])
def test_evaluation_is_what_a_loop_over_single_samples_finds(head: str, tiny_stream: Callable[..., Stream]) -> None:
    stream = tiny_stream()
    trainer = make_tiny_trainer(stream, head=head)
    trainer.run()
    learner, found = trainer.learner, metrics.evaluate(trainer.learner, stream.tasks, 6, batch=5)
    assert learner.training  # as it was before
    learner.eval()
    sums = torch.zeros(6, learner.head.dim)
    for task, accuracy in zip(stream.tasks, found.accuracies):
        right = 0
        for i in range(len(task.test)):
            images, slots = task.test.batch(torch.tensor([i]))
            with torch.no_grad():
                embedded, logits = learner.embed(images)[0], learner.logits(images)[0]
            best = int(logits.argmax())
            right += (int(learner.head.seen[best]) if head == "expanding" else best) == int(slots)
            sums[int(slots)] += embedded / embedded.norm()
        assert accuracy == pytest.approx(100 * right / len(task.test))
    torch.testing.assert_close(found.directions, sums / sums.norm(dim=1, keepdim=True), rtol=1e-4, atol=1e-5)


def test_evaluation_takes_each_test_set_once_in_batches_and_without_gradients(
    tiny_stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = tiny_stream()  # eight test samples a task
    learner = make_tiny_trainer(stream).learner
    features, passed = learner.features, []

    def watched(images: torch.Tensor) -> torch.Tensor:
        made = features(images)
        passed.append((images.clone(), made.requires_grad, learner.training))
        return made

    monkeypatch.setattr(learner, "features", watched)
    metrics.evaluate(learner, stream.tasks, 6, batch=5)
    images, gradients, training = zip(*passed)
    assert [len(each) for each in images] == 3 * [5, 3] and not any(gradients) and not any(training)
    assert torch.equal(torch.cat(images), torch.cat([task.test.images[task.test.rows] for task in stream.tasks]))


def test_separation_is_the_mean_angle_between_the_classes_that_have_test_samples() -> None:
    """A class without test samples has the direction zero, which is at no angle to anything."""
    angles = torch.tensor([0.0, 20.0, 60.0]).deg2rad()
    classes = torch.stack([angles.cos(), angles.sin()], 1).double()  # (3, 2)
    history = torch.stack([classes, classes])
    tasks = [(0, 1), (2,)]
    assert metrics.separation(history, tasks) == pytest.approx([20.0, (20 + 60 + 40) / 3])
    untested = torch.cat([history, torch.zeros(2, 1, 2, dtype=torch.float64)], 1)
    assert metrics.separation(untested, [(0, 1), (2, 3)]) == pytest.approx([20.0, (20 + 60 + 40) / 3])
    assert metrics.separation(untested, [(0, 3), (1, 2)])[0] is None
