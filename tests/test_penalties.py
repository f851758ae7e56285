"""EWC, Online EWC, SI, MAS: SI's path by hand, their penalty by autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.errors import BadConfig
from holdfast.runs.config import Config
from penalties_factory import (
    HEADS,
    PENALTIES,
    Flat,
    Small,
    make_learner,
    make_method,
    make_task,
    make_trainer,
    moved,
    weights,
)


def test_sis_path_integral_is_the_sum_of_gradient_times_step_by_hand() -> None:
    learner, task = make_learner(Flat(), "preallocated", dtype=torch.float64), make_task()
    method = make_method("si", learner, sgd=True, lr=0.1, strength=2.0)
    method.begin_task(task)
    method.consolidate([torch.rand_like(p) for p in method.parameters])  # so that there is a penalty to leave out
    anchor, importance = [a.clone() for a in method.anchors], method.importances
    moved(learner)
    at, paths = weights(learner), [0.0, 0.0]
    for rows in torch.arange(24).split(8):
        x, y = (task.train.images[rows].double().flatten(1) / 255 - 0.5) / 0.25, task.train.slots[rows]
        p = (x @ at[0].T + at[1]).softmax(1)
        residual = (p - torch.eye(6, dtype=p.dtype)[y]) / len(x)  # d loss / d logits
        gradients = [residual.T @ x, residual.sum(0)]
        steps = [-0.1 * (g + 2 * 2.0 * i * (w - a)) for g, i, w, a in zip(gradients, importance, at, anchor)]
        paths = [path - g * s for path, g, s in zip(paths, gradients, steps)]
        at = [w + s for w, s in zip(at, steps)]
        method.observe(*task.train.batch(rows))
    for found, wanted in zip(weights(learner), at):
        torch.testing.assert_close(found, wanted)
    for found, wanted in zip(method.paths, paths):
        torch.testing.assert_close(found, wanted)
    for found, path, w, a in zip(method.measure(task), paths, at, anchor):
        torch.testing.assert_close(found, path / ((w - a) ** 2 + 0.1))


def test_each_task_of_si_has_a_path_of_its_own_and_their_importances_add_up() -> None:
    learner = make_learner(Flat(), "preallocated", dtype=torch.float64)
    method = make_method("si", learner, sgd=True, lr=0.1, strength=0.0)
    total = [torch.zeros_like(p) for p in method.parameters]
    for task in (make_task(0), make_task(1, slots=(2, 3))):
        start, paths = weights(learner), [torch.zeros_like(p) for p in method.parameters]
        method.begin_task(task)
        for rows in torch.arange(24).split(8):
            before = weights(learner)
            gradients = torch.autograd.grad(method.loss(*task.train.batch(rows)), method.parameters)
            method.observe(*task.train.batch(rows))
            for path, g, p, b in zip(paths, gradients, weights(learner), before):
                path -= g * (p - b)
        method.end_task(task)
        for sum_, path, p, a in zip(total, paths, weights(learner), start):
            sum_ += path / ((p - a) ** 2 + 0.1)
    for found, wanted in zip(method.importances, total):
        torch.testing.assert_close(found, wanted)
    assert all(map(torch.equal, method.anchors, weights(learner)))


def test_sis_path_integrals_add_up_to_what_the_loss_lost() -> None:
    # In the limit of small steps the sum over parameters is the decrease of the loss; at 1e-3 nearly so.
    learner, task = make_learner(Flat(), "preallocated", dtype=torch.float64), make_task()
    method = make_method("si", learner, sgd=True, lr=1e-3)
    method.begin_task(task)
    everything = task.train.batch(torch.arange(24))
    before = method.loss(*everything).item()
    for _ in range(200):
        method.observe(*everything)
    lost = before - method.loss(*everything).item()
    assert lost > 0.05
    assert sum(path.sum().item() for path in method.paths) == pytest.approx(lost, rel=5e-3)


@pytest.mark.parametrize("name", PENALTIES)
def test_the_penaltys_gradient_is_autograds(name: str) -> None:
    learner = make_learner(Small(), dtype=torch.float64)
    method = make_method(name, learner, strength=3.0)
    method.consolidate([torch.rand_like(p) for p in method.parameters])
    moved(learner)
    task = make_task()
    method.begin_task(task)
    images, slots = task.train.batch(torch.arange(8))
    wanted = torch.autograd.grad(method.loss(images, slots) + method.penalty(), method.parameters)
    method.observe(images, slots)
    for p, g in zip(method.parameters, wanted):
        torch.testing.assert_close(p.grad, g)


def test_ewcs_one_pair_is_the_sum_over_its_tasks() -> None:
    learner = make_learner(Small(), dtype=torch.float64)
    method = make_method("ewc", learner, strength=0.7)
    pairs, g = [], torch.Generator().manual_seed(0)
    for _ in range(4):
        # a third of the importances are zero, some of them in every task
        new = [torch.rand(p.shape, generator=g, dtype=p.dtype).sub_(0.33).clamp_min_(0) for p in method.parameters]
        new[0].view(-1)[:5] = 0
        pairs.append((new, weights(learner)))
        method.consolidate([f.clone() for f in new])
        moved(learner, 0.3)

    def explicit() -> Tensor:
        terms = [
            (f * (p - a).square()).sum() for fs, anchors in pairs for f, p, a in zip(fs, method.parameters, anchors)
        ]
        return 0.7 * sum(terms, torch.zeros(()))

    wanted = torch.autograd.grad(explicit(), method.parameters)
    gradients = [torch.zeros_like(p) for p in method.parameters]
    method.pull(gradients)
    for found, gradient in zip(gradients, wanted):
        torch.testing.assert_close(found, gradient)
    here = explicit() - method.penalty()  # the values differ by a constant
    moved(learner)
    torch.testing.assert_close(explicit() - method.penalty(), here)


@pytest.mark.parametrize("name", ["online-ewc", "si", "mas"])
def test_the_others_sum_importances_and_keep_the_latest_anchor(name: str) -> None:
    learner = make_learner(Flat())
    method = make_method(name, learner)
    for _ in range(2):
        moved(learner)
        method.consolidate([torch.ones_like(p) for p in method.parameters])
    assert all((i == 2).all() for i in method.importances)
    assert all(map(torch.equal, method.anchors, weights(learner)))


@pytest.mark.parametrize("name", PENALTIES)
def test_without_strength_it_is_finetuning_to_the_bit(name: str) -> None:
    plain, held = make_trainer("finetune"), make_trainer(name, strength=0.0)
    plain.run()
    held.run()
    assert held.method.importances and all(map(torch.equal, weights(plain.learner), weights(held.learner)))


@pytest.mark.parametrize("name", PENALTIES)
def test_a_huge_strength_freezes_what_matters_and_nothing_else(name: str) -> None:
    learner = make_learner(Flat(), "preallocated")
    method = make_method(name, learner, strength=1e3, sgd=True, lr=4e-4)
    method.consolidate([torch.ones_like(p) for p in method.parameters])
    method.importances[0][:, 4:] = 0
    anchors, task = weights(learner), make_task()
    method.begin_task(task)
    for _ in range(300):
        method.observe(*task.train.batch(torch.arange(24)))
    step = (weights(learner)[0] - anchors[0]).abs()
    assert step[:, :4].max() < 0.1 * step[:, 4:].max()
    assert step[:, :4].max() < 1e-3 < step[:, 4:].max()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", PENALTIES)
def test_any_head_goes_with_any_method(name: str, head: str) -> None:
    trainer = make_trainer(name, head)
    trainer.run()
    method = trainer.method
    assert all(i.isfinite().all() for i in method.importances)
    assert any((i != 0).any() for i in method.importances)
    assert len(trainer.at.accuracies) == 3


def test_the_checkpoint_does_not_grow_with_the_tasks() -> None:
    sizes = []
    trainer = make_trainer("ewc")
    trainer.save = lambda t: sizes.append(sum(v.numel() for v in t.method.state().values()))
    trainer.run()
    assert sizes[-1] == sizes[2] == 2 * sum(p.numel() for p in trainer.learner.parameters())


@pytest.mark.parametrize(
    "wrong", [{"importance": "lable"}, {"importance_samples": 0}, {"strength": -1.0}, {"strength": float("nan")}]
)
def test_wrong_options_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(BadConfig, match=next(iter(wrong))):
        Config("split-mnist", method="ewc", **wrong).resolved()


def test_options_belong_to_the_methods_that_listen() -> None:
    full = Config("split-mnist", method="ewc", importance="label", importance_samples=100).resolved()
    assert full.get("strength") == 600 and full.options_of("method").importance == "label"
    with pytest.raises(BadConfig, match="importance"):
        Config("split-mnist", method="si", importance="label").resolved()
    with pytest.raises(BadConfig, match="importance_samples"):
        Config("split-mnist", method="replay", importance_samples=5).resolved()
