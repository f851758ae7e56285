"""GEM's projection is the quadratic programme's solution; its gradients are the memory's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast import heads
from holdfast.errors import BadConfig
from holdfast.learning.learner import Learner
from holdfast.learning.memory import MemoryOptions
from holdfast.learning.streams import Samples, Stream, Task
from holdfast.learning.training import Trainer
from holdfast.methods import METHODS, agem, gem
from holdfast.methods.gradients import GradientRows
from holdfast.runs.build import make_trainer
from holdfast.runs.config import Config

torch.set_num_threads(1)
CPU = torch.device("cpu")


def small_stream(tasks: int = 3, each: int = 24, side: int = 8) -> Stream:
    """Two classes a task, each a random picture under noise."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 200, (2 * tasks, 1, side, side), generator=generator)
    slots = torch.arange(2 * tasks).repeat_interleave(each)
    noise = torch.randint(0, 56, (len(slots), 1, side, side), generator=generator)
    images = (pictures[slots] + noise).to(torch.uint8)
    made = []
    for index in range(tasks):
        rows = ((slots // 2) == index).nonzero().squeeze(1)
        samples = Samples(images, rows, slots[rows])
        made.append(Task(index, (2 * index, 2 * index + 1), samples, samples))
    return Stream("small", tuple(made), tuple(map(str, range(2 * tasks))), (0.45,), (0.25,))


def small_trainer(method: str = "gem", **changes: object) -> Trainer:
    """A run of the small stream with a small LeNet."""
    config = Config("split-digits", method=method, memory=18, batch=8, epochs=1, **changes).resolved()
    return make_trainer(config, small_stream(), CPU)


def plain_method(learner: Learner, memory: int, **options: object) -> gem.GEM:
    """GEM around any learner, without a run."""
    optimizer = torch.optim.SGD(learner.parameters(), lr=options.pop("lr", 0.01))  # type: ignore[arg-type]
    declared = gem.GEMOptions(memory=memory, **options)
    return gem.GEM(learner, optimizer, declared, torch.Generator().manual_seed(0), batch=8)


def through_two_tasks(method: gem.GEM, stream: Stream) -> None:
    """The first two tasks learned in batches of eight, and the third begun."""
    for task in stream.tasks[:2]:
        method.begin_task(task)
        for rows in torch.arange(len(task.train)).split(8):
            method.observe(*task.train.batch(rows))
        method.end_task(task)
    method.begin_task(stream.tasks[2])


def linear_learner(stream: Stream) -> Learner:
    """No batch norm: the gradient of a whole is the mean of its parts'."""
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh())
    return Learner(backbone, heads.build("expanding", 16, len(stream.labels)), stream.shape, stream.mean, stream.std)


def flat_gradient(learner: Learner, images: Tensor, slots: Tensor) -> Tensor:
    loss = learner.loss(images, slots)
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(learner.parameters()))])


def weights(learner: Learner) -> Tensor:
    return torch.cat([p.detach().flatten() for p in learner.parameters()])


def problem(seed: int, tasks: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """A gradient and old ones, some nearly parallel, of very different lengths."""
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(tasks, 12, generator=generator, dtype=torch.float64)
    old = old + 2 * torch.randn(12, generator=generator, dtype=torch.float64)
    old = old * torch.rand(tasks, 1, generator=generator, dtype=torch.float64).add(0.05)
    return scale * torch.randn(12, generator=generator, dtype=torch.float64), scale * old


def projected(g: Tensor, old: Tensor, margin: float = 0.0) -> Tensor:
    turned = g.clone()
    gem.project(turned, old, margin)
    return turned


# The projection.


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.sampled_from([1e-6, 1.0, 1e4]))
def test_the_projection_meets_the_optimality_conditions(seed: int, tasks: int, scale: float) -> None:
    g, old = problem(seed, tasks, scale)
    turned = projected(g, old)
    lengths = old.norm(dim=1) * g.norm()
    slack = (old @ turned) / lengths
    assert (slack > -1e-3).all()  # feasible: no constraint is violated
    # Stationary: the change is a combination of the old gradients, by multipliers that are not negative
    v = torch.linalg.lstsq(old.T, (turned - g).unsqueeze(1)).solution.squeeze(1)
    assert torch.allclose(old.T @ v, turned - g, atol=1e-6 * float(g.norm()))
    if tasks <= 6:  # with more the combination is not unique enough to read off the multipliers
        assert (v * old.norm(dim=1) / g.norm() > -1e-3).all()
        assert (v * old.norm(dim=1) / g.norm() * slack).abs().max() < 1e-3  # complementary: only where it is tight


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_no_feasible_direction_is_nearer(seed: int, tasks: int) -> None:
    g, old = problem(seed, tasks)
    found = projected(g, old)
    nearest = _by_dykstra(g, old)
    assert (found - g).norm() <= (nearest - g).norm() + 1e-3 * g.norm()
    assert torch.allclose(found, nearest, atol=2e-3 * float(g.norm()))


def _by_dykstra(g: Tensor, old: Tensor, rounds: int = 3000) -> Tensor:
    """The nearest point of an intersection of half-spaces by alternating projections: no programme, no dual."""
    x, steps = g.clone(), torch.zeros_like(old)
    units = old / old.norm(dim=1, keepdim=True)
    for _ in range(rounds):
        start = x.clone()
        for k, unit in enumerate(units):
            y = x + steps[k]
            x = y - unit * (unit @ y).clamp(max=0)
            steps[k] = y - x
        if (x - start).norm() < 1e-12:
            break
    return x


def test_one_constraint_has_the_answer_of_geometry() -> None:
    g, old = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([[-2.0, 0.0, 0.0]])
    assert torch.allclose(projected(g, old), torch.tensor([0.0, 1.0, 0.0]), atol=1e-5)


@pytest.mark.parametrize("margin", [0.1, 0.5, 3.0])
def test_the_margin_is_the_least_step_along_an_old_gradient(margin: float) -> None:
    """One constraint: v minimises v^2 <k, k> / 2 + v <k, g> over v >= margin, so v = max(margin, -<k, g>/<k, k>)."""
    g, k = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([-2.0, 0.0, 0.5])
    expected = g + max(margin, 2 / 4.25) * k
    assert torch.allclose(projected(g, k[None], margin), expected, atol=1e-5)


def test_the_margin_counts_for_every_task_once_one_is_violated() -> None:
    g, old = torch.tensor([1.0, 1.0]), torch.tensor([[-1.0, 0.0], [0.0, 1.0]])
    assert torch.allclose(projected(g, old, 0.5), torch.tensor([0.0, 1.5]), atol=1e-5)  # v = (1, 0.5)


def test_an_unviolated_gradient_is_left_alone_to_the_bit() -> None:
    g, old = torch.randn(50), torch.randn(3, 50)
    old *= (old @ g).sign()[:, None]
    assert torch.equal(projected(g, old, 0.5), g)
    assert torch.equal(projected(g, old[:0], 0.5), g)  # the first task has no constraint at all


def test_parallel_opposed_and_empty_old_gradients_are_solved() -> None:
    k = torch.tensor([1.0, 0.0])
    assert projected(torch.tensor([-1.0, 1.0]), torch.stack([k, k, k])) == pytest.approx([0, 1], abs=1e-4)
    assert projected(torch.tensor([-1.0, 1.0]), torch.stack([k, -k])) == pytest.approx([0, 1], abs=1e-4)
    assert projected(torch.tensor([-1.0, 1.0]), torch.stack([k, 0 * k])) == pytest.approx([0, 1], abs=1e-4)


def test_a_loss_that_is_not_finite_reaches_the_loop_rather_than_the_solver() -> None:
    g = torch.tensor([float("-inf"), 1.0])
    assert torch.equal(projected(g, torch.tensor([[1.0, 0.0]])), g)


# The gradients.


def test_rows_hold_the_gradient_in_any_layout() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    net = net.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    rows = GradientRows(list(net.parameters()), 2)
    for row in (0, 1):
        rows.enter(row)
        net(x).square().sum().mul(row + 1).backward()
    expected = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    for parameter, first, second, right in zip(net.parameters(), *rows.views, expected):
        assert parameter.grad is second and first.stride() == parameter.stride()
        assert torch.allclose(first, right, rtol=1e-5, atol=1e-5)
        assert torch.allclose(second, 2 * right, rtol=1e-5, atol=1e-5)
    assert torch.allclose(rows.matrix[1] @ rows.matrix[0], 2 * sum(g.square().sum() for g in expected), rtol=1e-4)


@pytest.mark.parametrize("chunk", [1, 5, 256])
def test_a_memory_in_chunks_has_the_gradient_of_the_whole(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gem, "CHUNK", chunk)
    stream = small_stream()
    learner = linear_learner(stream)
    method = plain_method(learner, memory=36)
    for task in stream.tasks[:2]:
        method.begin_task(task)
        method.end_task(task)
    method.prepare()
    assert method.chunks is not None and all(len(rows) <= chunk for part in method.chunks for rows in part)
    method.look_back()
    for k in range(2):
        rows = method.memory.of_task(k)
        right = flat_gradient(learner, method.memory.images[rows], method.memory.slots[rows])
        assert len(rows) == 18 and torch.allclose(method.gradients.matrix[k], right, atol=1e-6)


def test_a_step_goes_along_the_projected_gradient() -> None:
    """The whole update against its parts, computed apart: loss, memory losses, dual, SGD."""
    stream = small_stream()
    learner = linear_learner(stream)
    method = plain_method(learner, memory=12, lr=0.1, margin=0.5)
    through_two_tasks(method, stream)
    images, slots = stream.tasks[2].train.batch(torch.arange(8))
    g = flat_gradient(learner, images, slots)
    memory = method.memory
    old = torch.stack([flat_gradient(learner, memory.images[r], memory.slots[r]) for r in map(memory.of_task, (0, 1))])
    assert (old @ g < 0).any()
    before = weights(learner)
    method.observe(images, slots)
    after = weights(learner)
    assert torch.allclose(before - after, 0.1 * projected(g, old, 0.5), atol=1e-6)


def test_a_small_step_raises_no_old_loss_and_a_plain_one_does() -> None:
    gem_rise, plain_rise = _rise_of_old_losses(projecting=True), _rise_of_old_losses(projecting=False)
    assert plain_rise > 1e-3
    assert gem_rise < 0.05 * plain_rise  # what is left is of second order in the step


def _rise_of_old_losses(projecting: bool) -> float:
    """The worst rise of an old task's memory loss in ten small steps on a third task."""
    stream = small_stream()
    learner = linear_learner(stream)
    method = plain_method(learner, memory=36, margin=0.0, lr=0.05)
    through_two_tasks(method, stream)
    method.optimizer.param_groups[0]["lr"] = 1e-3
    if not projecting:
        method.turn = lambda g, old: None  # type: ignore[method-assign]
    memory = method.memory

    @torch.no_grad()
    def losses() -> Tensor:
        return torch.stack([learner.loss(memory.images[r], memory.slots[r]) for r in map(memory.of_task, (0, 1))])

    before = losses()
    for _ in range(10):
        method.observe(*stream.tasks[2].train.batch(torch.arange(16)))
    return float((losses() - before).max())


# A-GEM.


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_agem_takes_out_what_points_against_the_reference(seed: int) -> None:
    g, old = problem(seed, 1)
    turned = g.clone()
    agem.AGEM.turn(None, turned, old)  # type: ignore[arg-type]
    if old[0] @ g >= 0:
        assert torch.equal(turned, g)
    else:
        unit = (old[0] / old[0].norm()).numpy()
        projector = np.eye(len(unit)) - np.outer(unit, unit)
        assert np.allclose(turned.numpy(), projector @ g.numpy(), atol=1e-12)


def test_agem_survives_a_reference_of_zero() -> None:
    g = torch.ones(3)
    agem.AGEM.turn(None, g, torch.zeros(1, 3))  # type: ignore[arg-type]
    assert torch.equal(g, torch.ones(3))


def test_agem_and_gem_agree_on_one_old_task_without_margin() -> None:
    """With the memory no larger than a batch, both see the same one gradient."""
    ends = []
    for name in ("gem", "agem"):
        stream = small_stream(tasks=2)
        learner = linear_learner(stream)
        reference = plain_method(learner, memory=8, margin=0.0, lr=0.1)
        method = reference
        if name == "agem":
            method = agem.AGEM(learner, reference.optimizer, MemoryOptions(memory=8), reference.generator, batch=8)
        for task in stream.tasks:
            method.begin_task(task)
            for rows in torch.arange(len(task.train)).split(8):
                method.observe(*task.train.batch(rows))
            if task.index == 0:
                method.end_task(task)
        ends.append(weights(learner))
    assert torch.allclose(*ends, atol=1e-4)


# In a run.


def test_the_defaults_are_the_reference_ones() -> None:
    for name in ("gem", "agem"):
        full = Config("split-mnist", method=name).resolved()
        assert (full.optimizer, full.lr, full.head, full.get("memory")) == ("sgd", 0.01, "expanding", 1100)
    assert Config("split-mnist", method="gem").resolved().get("margin") == 0.5
    assert Config("split-mnist", method="gem", optimizer="adam").resolved().optimizer == "adam"


def test_options_of_gem_are_refused_elsewhere_and_bad_ones_named() -> None:
    with pytest.raises(BadConfig, match="margin"):
        Config("split-mnist", method="replay", margin=0.1).resolved()
    with pytest.raises(BadConfig, match="margin is -1"):
        Config("split-mnist", method="gem", margin=-1.0).resolved()


def test_pure_gem_trains_on_new_samples_and_the_variant_on_both() -> None:
    seen: dict[bool, list[int]] = {}
    ends = {}
    for replays in (False, True):
        trainer = small_trainer(gem_replay=replays)
        sizes: list[int] = []
        plain = trainer.method.loss

        def counted(images: Tensor, slots: Tensor, sizes: list[int] = sizes, plain: Callable = plain) -> Tensor:
            sizes.append(len(slots))
            return plain(images, slots)

        trainer.method.loss = counted  # type: ignore[method-assign]
        trainer.run()
        seen[replays], ends[replays] = sizes, trainer.learner.state_dict()["backbone.linear.weight"]
    assert seen[False] == [8] * 18  # 48 samples a task, 8 a step
    assert seen[True] == [8] * 6 + [8] * 24  # from the second task on 4 are new and 4 remembered
    assert not torch.equal(ends[False], ends[True])


@pytest.mark.parametrize("head", list(heads.HEADS))
@pytest.mark.parametrize("method", ["gem", "agem"])
def test_every_head_works(method: str, head: str) -> None:
    trainer = small_trainer(method, head=head)
    trainer.run()
    assert len(trainer.at.accuracies[-1]) == 3
    assert all(p.isfinite().all() for p in trainer.learner.parameters())


def test_without_memory_gem_is_plain_training() -> None:
    ends = []
    for method in ("gem", "finetune"):
        stream = small_stream()
        options = {"memory": 0} if method == "gem" else {}
        config = Config("split-digits", method=method, batch=8, epochs=1, optimizer="sgd", lr=0.01, **options)
        trainer = make_trainer(config.resolved(), stream, CPU)
        trainer.run()
        ends.append(weights(trainer.learner))
    assert torch.equal(*ends)


def test_a_task_the_memory_no_longer_holds_is_no_constraint() -> None:
    """A reservoir may lose a task altogether."""
    stream = small_stream()
    method = plain_method(linear_learner(stream), memory=2, policy="reservoir")
    for task in stream.tasks:
        method.begin_task(task)
        method.observe(*task.train.batch(torch.arange(8)))
        method.end_task(task)
        method.prepare()
        assert len(method.gradients.matrix) == 1 + len(method.memory.tasks[: len(method.memory)].unique())


def test_methods_are_registered_with_a_line_each() -> None:
    lines = METHODS.describe()
    assert "project" in lines["gem"] and "batch" in lines["agem"]
    assert METHODS["gem"] is gem.GEM and METHODS["agem"] is agem.AGEM
    plain = Config("split-mnist", method="gem")
    assert replace(plain, gem_replay=True).hash != plain.hash
