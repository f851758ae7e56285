"""Bad input gives a right answer or an error that names the value and the remedy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.errors import BadConfig, BadInput
from holdfast.solving import Solver, SolverOptions
from test_solving_exact import problem


def learned(**options) -> Solver:
    return Solver(SolverOptions(**{"width": 0, **options})).learn(*problem(0))


def test_a_row_with_nan_is_named_when_learning_and_when_scoring():
    x, y = problem(0)
    x[17, 2] = np.nan
    with pytest.raises(BadInput, match="row 17"):
        Solver().learn(x, y)
    with pytest.raises(BadInput, match="row 17"):
        learned().scores(x)


@pytest.mark.parametrize(
    ("features", "slots", "message"),
    [
        (np.zeros((2, 5)), [0, 1], "5 features, the solver learned 6"),
        (np.zeros(6), [0], "one row per sample"),
        (np.zeros((2, 6)), [0], "one slot per sample"),
        (np.zeros((2, 6)), [0.5, 1.0], "whole numbers"),
        (np.zeros((2, 6)), [-1, 1], "-1 is negative"),
        (np.full((2, 6), 1e200) * [[1], [-1]], [0, 99], "typical size"),
    ],
)
def test_wrong_arrays_are_refused_and_leave_the_solver_as_it_was(features, slots, message):
    solver = learned()
    before = solver.sums.moments()
    with pytest.raises(BadInput, match=message):
        solver.learn(features, np.asarray(slots))
    assert torch.equal(solver.sums.moments(), before)
    assert solver.slots.tolist() == [0, 7, 14, 21]


@pytest.mark.parametrize("factor", [1e30, 1e7, 1e-7, 1e-30])
def test_a_batch_of_another_scale_is_refused_and_changes_nothing(factor):
    solver = learned()
    before, (x, y) = solver.sums.moments(), problem(1)
    with pytest.raises(BadInput, match=r"typical size of .* those learned so far .* embedder"):
        solver.learn(x * factor, y)
    assert torch.equal(solver.sums.moments(), before)


@pytest.mark.parametrize("factor", [1e30, 1.0, 1e-30])
def test_features_of_any_one_scale_give_the_same_answers(factor):
    x, y = problem(0)
    assert torch.equal(learned().predict(x), Solver(SolverOptions(width=0)).learn(x * factor, y).predict(x * factor))


def test_zeros_may_follow_other_features():
    x, _ = problem(0)
    assert learned().learn(np.zeros((3, x.shape[1])), np.full(3, 7)).learned == len(x) + 3


def test_questions_before_two_classes_are_refused():
    with pytest.raises(BadInput, match="nothing was learned"):
        Solver().scores(np.zeros((1, 2)))
    with pytest.raises(BadInput, match="only 1 class"):
        Solver().learn(np.eye(3), np.zeros(3, int)).scores(np.eye(3))


def test_constant_features_give_equal_scores():
    solver = Solver().learn(np.ones((10, 4)), np.arange(10) % 2)
    scores = solver.scores(np.ones((1, 4)))
    assert float(scores[0, 0]) == pytest.approx(float(scores[0, 1]))
    assert bool(torch.isfinite(solver.novelty(np.ones((1, 4)))).all())


def test_more_features_than_samples_and_rank_deficiency_work():
    rng = np.random.default_rng(0)
    y = np.arange(20) % 4
    means = rng.normal(size=(4, 100))
    x = means[y] + 0.1 * rng.normal(size=(20, 100))
    for features in (x, np.c_[x, x], np.c_[x, np.zeros((20, 3))]):
        assert Solver().learn(features, y).predict(features).tolist() == y.tolist()


def test_one_sample_per_class_chooses_the_nearest():
    x = np.random.default_rng(0).normal(size=(30, 16))
    solver = Solver().learn(x, np.arange(30))
    assert solver.predict(x + 0.01).tolist() == list(range(30))
    assert bool(torch.isfinite(solver.probabilities(x)).all()) and bool(torch.isfinite(solver.novelty(x)).all())
    with pytest.raises(BadInput, match="held samples"):
        solver.rejects(x)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_huge_and_tiny_values_give_the_answers_of_ordinary_ones(scale):
    x, y = problem(4, n=200)
    assert torch.equal(Solver().learn(x * scale, y).predict(x * scale), Solver().learn(x, y).predict(x))


def test_one_huge_value_among_ordinary_ones_leaves_finite_answers():
    x, y = problem(4, n=200)
    x[3, 1] = 1e30
    assert bool(torch.isfinite(Solver().learn(x, y).scores(x)).all())


def test_a_large_offset_does_not_cost_digits():
    x, y = problem(8, n=300)
    far = Solver(SolverOptions(width=0)).learn(x + 1e6, y)
    near = Solver(SolverOptions(width=0)).learn(x, y)
    assert torch.equal(far.predict(x + 1e6), near.predict(x))
    torch.testing.assert_close(far.novelty(x + 1e6), near.novelty(x), rtol=1e-6, atol=1e-6)


def test_a_million_slots_cost_only_the_classes_seen():
    x, y = problem(0)
    solver = Solver(SolverOptions(width=0)).learn(x, y * 40_000)
    assert solver.sums._sums.shape[0] == 4 and solver.slots.tolist() == [0, 280_000, 560_000, 840_000]


def test_half_precision_numpy_and_torch_give_the_same_sums():
    x, y = problem(0)
    half = x.astype(np.float16)
    a, b = Solver().learn(half, y), Solver().learn(torch.as_tensor(half), torch.as_tensor(y))
    assert torch.equal(a.sums.within, b.sums.within)


def test_wrong_uses_are_refused_with_the_remedy():
    solver = learned()
    with pytest.raises(BadInput, match="never learned"):
        solver.forget(3)
    with pytest.raises(BadInput, match="give all of them"):
        solver.forget(7, np.zeros((1, 6)))
    count = int(solver.sums.counts[solver.sums.row_of[7]])
    with pytest.raises(BadInput, match="not the ones"):
        solver.forget(7, np.zeros((count, 6)))
    with pytest.raises(BadInput, match="options differ"):
        solver.merge(learned(seed=1))
    with pytest.raises(BadInput, match="same embedder"):
        solver.merge(Solver(solver.options).learn(np.eye(3), np.arange(3)))
    with pytest.raises(BadConfig, match="between 0 and 1"):
        solver.rejects(np.zeros((1, 6)), reject=2.0)
    tensors, plain = solver.state()
    with pytest.raises(BadInput, match="format"):
        Solver.from_state(tensors, {**plain, "format": 99})
    with pytest.raises(BadInput, match="damaged"):
        Solver.from_state({**tensors, "within": tensors["within"][:3]}, plain)


@pytest.mark.parametrize(
    "options",
    [{"rule": "svm"}, {"penalty": 0.0}, {"penalty": "big"}, {"width": -1}, {"width": 1.5}, {"shrinkage": 2.0}],
)
def test_options_out_of_range_are_named(options):
    with pytest.raises(BadConfig, match=next(iter(options))):
        SolverOptions(**options)
