"""The equations of the methods since the paper, each against NumPy written from the paper's formula."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from conftest import make_tiny_config, make_tiny_stream, make_tiny_trainer
from holdfast.errors import BadConfig
from holdfast.learning.learner import Learner
from holdfast.methods import METHODS
from holdfast.methods.rehearsal import Rehearsal
from holdfast.paper import rivals
from holdfast.solving.ridge import choose_penalty
from penalties_factory import Flat, make_learner, make_method, make_task, moved

NEW = ("er-ace", "der", "der++", "lwf", "icarl", "lucir", "il2m", "wa", "ncm", "slda", "ranpac")
Array = np.ndarray


# The model once more, in NumPy: pixels as features, then a linear head.


def features(images: torch.Tensor) -> Array:
    return ((images.double().numpy() / 255 - 0.5) / 0.25).reshape(len(images), -1)


def logits(learner: Learner, images: torch.Tensor) -> Array:
    """All six logits of an expanding head."""
    rows: Any = learner.head.rows
    return features(images) @ rows.weight.detach().numpy().T + rows.bias.detach().numpy()


def log_softmax(z: Array) -> Array:
    return np.array([[value - math.log(sum(math.exp(v) for v in row)) for value in row] for row in z])


def cross_entropy(z: Array, among: list[int], slots: torch.Tensor) -> float:
    """The mean of -log p over some slots only."""
    p = log_softmax(z[:, among])
    return float(np.mean([-p[i, among.index(int(slot))] for i, slot in enumerate(slots)]))


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def in_second_task(name: str, head: str = "expanding", **options: Any) -> tuple[Any, torch.Tensor, torch.Tensor, int]:
    """A method in its second task, its weights moved since the first; a batch of 8 new samples and 6 from memory."""
    learner = make_learner(Flat(), head, torch.float64)
    if issubclass(METHODS[name], Rehearsal):
        options = {"memory": 12, **options}
    method: Any = make_method(name, learner, batch=16, **options)
    first, second = make_task(0), make_task(1, slots=(2, 3))
    method.begin_task(first)
    if getattr(method, "stores_during", lambda: False)():
        method.offer(*first.train.batch(torch.arange(24)))
    method.end_task(first)
    moved(learner, 0.3)
    method.begin_task(second)
    moved(learner, 0.5)
    images, slots = second.train.batch(torch.arange(8))
    if method.memory is None:
        return method, images, slots, 8
    method.recalled = rows = torch.tensor([5, 0, 3, 1, 4, 2])
    images, slots = torch.cat([images, method.memory.images[rows]]), torch.cat([slots, method.memory.slots[rows]])
    return method, images, slots, 8


def test_er_ace_lets_new_samples_compete_with_new_classes_only() -> None:
    method, images, slots, new = in_second_task("er-ace")
    z = logits(method.learner, images)
    expected = cross_entropy(z[:new], [2, 3], slots[:new]) + cross_entropy(z[new:], [0, 1, 2, 3], slots[new:])
    assert float(method.loss(images, slots).detach()) == pytest.approx(expected)


def test_er_ace_takes_the_classes_of_the_batch_and_not_of_the_task() -> None:
    method, images, slots, _ = in_second_task("er-ace")
    method.recalled = None
    alone = slots == 2
    assert float(method.loss(images[alone], slots[alone]).detach()) == pytest.approx(0.0)  # one class has no rival


@pytest.mark.parametrize("name", ["der", "der++"])
def test_der_holds_the_memory_near_the_logits_it_stored(name: str) -> None:
    weights = {"alpha": 0.7, **({"beta": 0.3} if name == "der++" else {})}
    learner = make_learner(Flat(), "expanding", torch.float64)
    stored: dict[bytes, Array] = {}
    task = make_task(0)
    for image in task.train.batch(torch.arange(24))[0]:
        stored[image.numpy().tobytes()] = logits(learner, image[None])[0, :2]  # before anything moves
    method, images, slots, new = in_second_task(name, **weights)
    z = logits(method.learner, images)
    dark = 6 if name == "der" else 3
    errors = [(z[new + i, k] - stored[images[new + i].numpy().tobytes()][k]) ** 2 for i in range(dark) for k in (0, 1)]
    expected = cross_entropy(z[:new], [0, 1, 2, 3], slots[:new]) + 0.7 * sum(errors) / len(errors)
    if name == "der++":
        expected += 0.3 * cross_entropy(z[new + 3 :], [0, 1, 2, 3], slots[new + 3 :])
    assert float(method.loss(images, slots).detach()) == pytest.approx(expected)


def soft(z: Array, temperature: float) -> Array:
    return np.exp(log_softmax(z / temperature))


def test_lwf_holds_the_answers_over_old_classes() -> None:
    method, images, slots, _ = in_second_task("lwf", old_weight=0.7, temperature=3.0)
    now, before = logits(method.learner, images), logits(method.before, images)
    wanted, given = soft(before[:, :2], 3.0), soft(now[:, :2], 3.0)
    held = -np.mean([sum(w * math.log(g) for w, g in zip(*pair)) for pair in zip(wanted, given)])
    assert float(method.loss(images, slots).detach()) == pytest.approx(cross_entropy(now, [2, 3], slots) + 0.7 * held)


def test_icarl_s_loss_is_binary_with_old_outputs_as_targets() -> None:
    method, images, slots, _ = in_second_task("icarl")
    now, before = (1 / (1 + np.exp(-logits(each, images))) for each in (method.learner, method.before))
    total = 0.0
    for i, slot in enumerate(slots.tolist()):
        targets = [before[i, 0], before[i, 1], float(slot == 2), float(slot == 3)]
        total -= sum(t * math.log(g) + (1 - t) * math.log(1 - g) for t, g in zip(targets, now[i]))
    assert float(method.loss(images, slots).detach()) == pytest.approx(total / len(images))


def test_icarl_answers_with_the_nearest_mean_of_exemplars() -> None:
    method, images, _, _ = in_second_task("icarl")
    method.end_task(make_task(1, slots=(2, 3)))
    kept = {k: unit(features(method.memory.images[:12][method.memory.slots[:12] == k])) for k in range(4)}
    assert [len(rows) for rows in kept.values()] == [3, 3, 3, 3]
    means = [rows.mean(0) / np.linalg.norm(rows.mean(0)) for rows in kept.values()]
    expected = [int(np.argmin([np.linalg.norm(x - mean) for mean in means])) for x in unit(features(images))]
    found = method.predict(method.learner.embed_frozen(images)).tolist()
    assert found == expected != method.learner.head.nearest(method.learner.embed_frozen(images)).tolist()


def test_icarl_keeps_the_samples_whose_mean_is_nearest_to_the_class_mean() -> None:
    method, *_ = in_second_task("icarl", memory=8)
    task = make_task(0)
    images, slots = task.train.batch(torch.arange(24))
    for k in (0, 1):
        every = unit(features(images[slots == k]))
        nearest = np.argmin(np.linalg.norm(every - every.mean(0), axis=1))
        first = method.memory.images[:8][method.memory.slots[:8] == k][0]
        assert torch.equal(first, images[slots == k][nearest])


def lucir_by_hand(now: Array, before: Array, cosines: Array, slots: list[int], new: int, options: Any) -> float:
    """The less-forget constraint and the margin ranking, sample by sample; two old and two new classes."""
    forget = np.mean([1 - a @ b for a, b in zip(unit(now), unit(before))])
    ranking = []
    for row, slot in zip(cosines[new:], slots[new:]):
        hardest = sorted(row[2:4], reverse=True)[: options.ranked_classes]
        ranking.append(sum(max(0.0, options.ranking_margin - row[slot] + each) for each in hardest))
    return options.less_forget * math.sqrt(2 / 2) * float(forget) + float(np.mean(ranking))


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("head", ["cosine", "simplex"])
def test_lucir_adds_a_less_forget_constraint_and_a_margin_ranking(head: str, rank: int) -> None:
    method, images, slots, new = in_second_task("lucir", head, less_forget=3.0, ranking_margin=0.6, ranked_classes=rank)
    made: Any = method.learner.head
    with torch.no_grad():
        now, before = (each.embed(images).numpy() for each in (method.learner, method.before))
        directions = unit(made.rows.weight.numpy() if head == "cosine" else made.directions(torch.arange(6)).numpy())
        cosines = unit(now) @ directions.T
        z = float(made.scale) * cosines if head == "cosine" else now @ directions.T
    seen = [0, 1, 2, 3] if head == "cosine" else list(range(6))
    expected = cross_entropy(z, seen, slots) + lucir_by_hand(now, before, cosines, slots.tolist(), new, method.options)
    if head == "cosine":  # with a head without length, moving the weights turns f only through the backbone
        assert np.allclose(now, before)
    else:
        assert not np.allclose(unit(now), unit(before))
    assert float(method.loss(images, slots).detach()) == pytest.approx(expected)


def test_lucir_s_constraint_grows_with_the_share_of_old_classes() -> None:
    """The third task has four old classes and two new ones: lambda = lambda_base sqrt(4 / 2)."""
    method, *_ = in_second_task("lucir", "simplex", less_forget=3.0)
    method.end_task(make_task(1, slots=(2, 3)))
    method.begin_task(task := make_task(2, slots=(4, 5)))
    moved(method.learner, 0.5)
    method.recalled = None
    images, slots = task.train.batch(torch.arange(8))
    with torch.no_grad():
        now, before = (unit(each.embed(images).numpy()) for each in (method.learner, method.before))
    plain = float(method.learner.loss(images, slots).detach())
    expected = plain + 3.0 * math.sqrt(2) * np.mean([1 - a @ b for a, b in zip(now, before)])
    assert float(method.loss(images, slots).detach()) == pytest.approx(expected)


def test_il2m_rectifies_old_scores_where_a_new_class_wins() -> None:
    method, images, _, _ = in_second_task("il2m")
    learner, tasks = method.learner, (make_task(0), make_task(1, slots=(2, 3)))
    p_first: list[float] = []
    original = make_learner(Flat(), "expanding", torch.float64)  # as it was at the end of the first task
    x, y = tasks[0].train.batch(torch.arange(24))
    scores = soft(logits(original, x)[:, :2], 1.0)
    p_first = [float(np.mean(scores[(y == k).numpy(), k])) for k in (0, 1)]
    then = float(np.mean(scores.max(1)))
    method.end_task(tasks[1])
    x, y = tasks[1].train.batch(torch.arange(24))
    now = float(np.mean(soft(logits(learner, x)[:, :4], 1.0).max(1)))
    held, held_slots = method.memory.images[:12], method.memory.slots[:12]
    p_now = [float(np.mean(soft(logits(learner, held[held_slots == k])[:, :4], 1.0)[:, k])) for k in (0, 1)]
    expected, plain = [], []
    for row in soft(logits(learner, images)[:, :4], 1.0):
        plain.append(int(row.argmax()))
        if row.argmax() >= 2:
            row = np.array([row[k] * p_first[k] / p_now[k] * now / then for k in (0, 1)] + [row[2], row[3]])
        expected.append(int(row.argmax()))
    factors = [p_first[k] / p_now[k] * now / then for k in (0, 1)]
    assert method.factors().tolist() == pytest.approx([*factors, 1.0, 1.0])
    assert method.predict(learner.embed_frozen(images)).tolist() == expected != plain


def test_il2m_keeps_the_statistics_of_a_class_from_the_task_that_brought_it() -> None:
    method, *_ = in_second_task("il2m")
    first = method.first.clone()
    with torch.no_grad():
        method.learner.head.rows.weight.mul_(0.5)  # the model that the second task ends with has other scores
    method.end_task(make_task(1, slots=(2, 3)))
    second = method.first[2:].clone()
    method.begin_task(make_task(2, slots=(4, 5)))
    with torch.no_grad():
        method.learner.head.rows.weight.mul_(3.0)
    method.end_task(make_task(2, slots=(4, 5)))
    assert method.first[:4].tolist() == [*first.tolist(), *second.tolist()]
    assert len(method.first) == len(method.confidence) == 6
    assert not torch.allclose(method.now[2:4], second)  # what those classes score now


def test_il2m_leaves_a_sample_alone_whose_best_class_is_old() -> None:
    method, *_ = in_second_task("il2m")
    method.end_task(make_task(1, slots=(2, 3)))
    method.first = torch.tensor([1e-9, 1.0, 1.0, 1.0])  # class 0 would lose every comparison
    rows = method.learner.head.rows
    with torch.no_grad():
        rows.weight.zero_()
        rows.bias.copy_(torch.tensor([3.0, 0.0, 1.0, 2.0, 0.0, 0.0]))
    assert method.predict(torch.zeros(1, 9, dtype=torch.float64)).tolist() == [0]


def test_wa_distils_by_the_share_of_old_classes_and_aligns_the_new_rows() -> None:
    method, images, slots, _ = in_second_task("wa", temperature=3.0)
    now, before = logits(method.learner, images), logits(method.before, images)
    wanted, given = soft(before[:, :2], 3.0), soft(now[:, :2], 3.0)
    held = -np.mean([sum(w * math.log(g) for w, g in zip(*pair)) for pair in zip(wanted, given)])
    expected = 0.5 * cross_entropy(now, [0, 1, 2, 3], slots) + 0.5 * held
    assert float(method.loss(images, slots).detach()) == pytest.approx(expected)
    rows: Any = method.learner.head.rows
    with torch.no_grad():
        rows.weight[2:4] *= 3.0  # as training on many new samples does
    old = rows.weight.detach().numpy().copy()
    method.end_task(make_task(1, slots=(2, 3)))
    aligned = rows.weight.detach().numpy()
    lengths = np.linalg.norm(old, axis=1)
    assert np.allclose(aligned[2:4], old[2:4] * (lengths[0] + lengths[1]) / (lengths[2] + lengths[3]))
    assert np.array_equal(np.delete(aligned, [2, 3], 0), np.delete(old, [2, 3], 0))


def test_wa_weighs_the_distillation_with_the_number_of_old_classes() -> None:
    method, *_ = in_second_task("wa")
    method.end_task(make_task(1, slots=(2, 3)))
    method.begin_task(task := make_task(2, slots=(4, 5)))
    moved(method.learner, 0.5)
    method.recalled = None
    images, slots = task.train.batch(torch.arange(8))
    now, before = logits(method.learner, images), logits(method.before, images)
    wanted, given = soft(before[:, :4], 2.0), soft(now[:, :4], 2.0)
    held = -float(np.mean((wanted * np.log(given)).sum(1)))
    expected = cross_entropy(now, [0, 1, 2, 3, 4, 5], slots) / 3 + held * 2 / 3  # four of six classes are old
    assert float(method.loss(images, slots).detach()) == pytest.approx(expected)


# The streaming methods: their scores up to a number that all classes share.


def streamed(name: str, head: str, **options: Any) -> tuple[Any, Array, Array, torch.Tensor, Array]:
    """A method after two tasks; the features and slots it has seen, six test images and their logits."""
    learner = make_learner(Flat(), head, torch.float64)
    method: Any = make_method(name, learner, batch=10, **options)
    seen, labels = [], []
    for task in (make_task(0), make_task(1, count=30, slots=(2, 3))):
        method.begin_task(task)
        for part in torch.arange(len(task.train)).split(10):
            method.observe(*task.train.batch(part))
        method.observe(*task.train.batch(torch.arange(10)))  # of a second epoch: each sample counts once
        method.end_task(task)
        images, slots = task.train.batch(torch.arange(len(task.train)))
        seen.append(features(images))
        labels.append(slots.numpy())
    tests, _ = make_task(7).train.batch(torch.arange(6))
    learner.eval()
    with torch.no_grad():
        found = learner.logits(tests).numpy()
    return method, np.concatenate(seen), np.concatenate(labels), tests, found


def centred(scores: Array) -> Array:
    return scores - scores.mean(1, keepdims=True)


@pytest.mark.parametrize("head", ["expanding", "preallocated", "simplex"])
def test_ncm_scores_by_the_distance_to_the_class_means(head: str) -> None:
    _, x, y, tests, found = streamed("ncm", head)
    means = [x[y == k].mean(0) for k in range(4)]
    distances = np.array([[((f - mean) ** 2).sum() for mean in means] for f in features(tests)])
    assert np.allclose(centred(found), centred(-distances / 2) * scale(head))


@pytest.mark.parametrize("head", ["expanding", "preallocated", "simplex"])
def test_slda_scores_by_the_shrunk_mahalanobis_distance(head: str) -> None:
    _, x, y, tests, found = streamed("slda", head, epsilon=0.05)
    means = np.array([x[y == k].mean(0) for k in range(4)])
    covariance = sum(np.outer(f - means[k], f - means[k]) for f, k in zip(x, y)) / len(x)
    precision = np.linalg.inv(0.95 * covariance + 0.05 * np.eye(9))
    distances = np.array([[(f - mean) @ precision @ (f - mean) for mean in means] for f in features(tests)])
    assert np.allclose(centred(found), centred(-distances / 2) * scale(head))


def scale(head: str, slots: int = 6) -> float:
    """With o at the vertices of a simplex of K slots, the logits are o up to a shift and K / (K - 1)."""
    return slots / (slots - 1) if head == "simplex" else 1.0


@pytest.mark.parametrize("head", ["expanding", "simplex", "orthoplex"])
def test_ranpac_is_ridge_regression_on_random_features(head: str) -> None:
    method, x, y, tests, found = streamed("ranpac", head, projections=20, ridge=0.7)
    p = method.expansion.matrix.double().numpy()
    h, t = np.maximum(x @ p, 0), np.maximum(features(tests) @ p, 0)
    weights = np.linalg.inv(h.T @ h + 0.7 * np.eye(20)) @ h.T @ np.eye(4)[y]
    outputs = t @ weights  # (tests, 4)
    if head != "expanding":
        vertices = method.learner.head.directions(torch.arange(6)).double().numpy()
        outputs = outputs @ vertices[:4] @ vertices[:4].T
    assert np.allclose(found, outputs, atol=1e-5)


def test_ranpac_uses_the_penalty_that_cross_validation_chooses() -> None:
    method, x, y, tests, found = streamed("ranpac", "expanding", projections=40)
    p = method.expansion.matrix.double().numpy()
    h, t = np.maximum(x @ p, 0), np.maximum(features(tests) @ p, 0)
    ridge = choose_penalty(method.sums, 40).penalty
    outputs = t @ np.linalg.inv(h.T @ h + ridge * np.eye(40)) @ h.T @ np.eye(4)[y]
    assert np.allclose(found, outputs, rtol=1e-3, atol=1e-9) and np.abs(outputs).max() > 1e-6


# What all of them share.


def test_what_a_method_predicts_is_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_tiny_trainer(method="finetune", epochs=1)
    monkeypatch.setattr(trainer.method, "predict", lambda embedded: torch.zeros(len(embedded), dtype=torch.long))
    trainer.run()
    assert trainer.at.accuracies == [[50.0], [50.0, 0.0], [50.0, 0.0, 0.0]]  # slot 0 is half of the first task


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("finetune", 0),
        ("lwf", 0),  # the teacher is gone when the task is
        ("replay", 12 * 64),  # 12 images of 8x8 bytes
        ("er-ace", 12 * 64 + 3 * 8),  # and where the reservoir stands
        ("der", 12 * 64 + 12 * 10 * 4 + 3 * 8),  # ten float32 logits per sample
        ("icarl", 12 * 64 + 6 * 500 * 4 + 6 * 8),  # a mean of 500 features per class, and its slot
        ("ncm", 6 * 500 * 8 + 2 * 6 * 8 + 2 * 8),
    ],
)
def test_a_method_says_how_many_bytes_it_keeps(name: str, kept: int) -> None:
    trainer = make_tiny_trainer(method=name, head="expanding", epochs=1)
    trainer.run()
    assert trainer.method.kept_bytes() == kept


def test_a_reservoir_refuses_another_policy() -> None:
    with pytest.raises(BadConfig, match="policy is 'task'; choose one of reservoir"):
        make_tiny_config(method="der", policy="task")


def test_der_refuses_more_slots_than_have_logits() -> None:
    with pytest.raises(BadConfig, match=r"der stores the logits of all .* slots.*er-ace"):
        make_tiny_config(method="der", head="cube", slots=2**40)


def test_every_method_is_in_the_comparison_with_the_simplex() -> None:
    compared = [method for family in rivals.FAMILIES.values() for method in family]
    assert sorted(compared) == sorted(METHODS) and all(rivals.heads_of(method)[0] == "simplex" for method in compared)


def test_icarl_without_a_memory_answers_with_the_head() -> None:
    trainer = make_tiny_trainer(make_tiny_stream(), method="icarl", memory=0, epochs=1)
    trainer.run()
    assert trainer.method.means is None and len(trainer.at.accuracies) == 3  # type: ignore[attr-defined]
