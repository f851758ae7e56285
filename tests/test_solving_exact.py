"""The solver's answers depend on the data, not on its order, its portions or its history."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from holdfast.solving import Solver, SolverOptions

CLOSE = dict(rtol=1e-9, atol=1e-9)


def problem(seed: int, n: int = 60, d: int = 6, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    slots = np.r_[np.arange(classes), np.arange(classes), rng.integers(0, classes, n - 2 * classes)]
    features = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 2.0 * rng.normal(size=(classes, d))[slots] + 3.0
    return features, slots * 7  # slots need not be consecutive


def expand(x: np.ndarray, solver: Solver) -> np.ndarray:
    from holdfast.solving.random_features import projection

    p = projection(x.shape[1], solver.map.width, solver.options.seed).numpy()
    return np.concatenate([x, np.maximum(x @ p, 0)], 1)


def dense_gaussian(x: np.ndarray, y: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    """Solve the discriminant from the samples, without sums."""
    classes, n = np.unique(y), len(x)
    means = np.stack([x[y == c].mean(0) for c in classes])
    residual = x - means[np.searchsorted(classes, y)]
    weights = np.linalg.solve((residual.T @ residual + penalty * np.eye(x.shape[1])) / n, means.T).T
    return weights, -0.5 * (weights * means).sum(1) - np.log(len(classes))


def dense_ridge(x: np.ndarray, targets: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    """Solve ridge regression with an intercept that is not penalised, as one augmented least-squares problem."""
    n, d = x.shape
    design = np.block([[x, np.ones((n, 1))], [np.sqrt(penalty) * np.eye(d), np.zeros((d, 1))]])
    solved = np.linalg.lstsq(design, np.r_[targets, np.zeros((d, targets.shape[1]))], rcond=None)[0]
    return solved[:-1].T, solved[-1]


def shifted(scores: torch.Tensor) -> torch.Tensor:
    """Remove the part of the scores that all classes share."""
    return scores - scores.mean(1, keepdim=True)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    width=st.sampled_from([0, 5]),
    rule=st.sampled_from(["gaussian", "ridge"]),
    data=st.data(),
)
def test_any_partition_and_permutation_gives_the_weights_of_an_independent_solution(seed, width, rule, data):
    x, y = problem(seed)
    order = np.random.default_rng(data.draw(st.integers(0, 10**6))).permutation(len(x))
    cuts = sorted(data.draw(st.lists(st.integers(1, len(x) - 1), max_size=8)))
    solver = Solver(SolverOptions(width=width, rule=rule))
    for part in np.split(order, cuts):
        solver.learn(x[part], y[part])
    features = expand(x, solver) if width else x
    penalty = solver.choice.penalty
    assert penalty == Solver(SolverOptions(width=width)).learn(x, y).choice.penalty
    if rule == "ridge":
        weights, intercepts = dense_ridge(features, (y[:, None] == np.unique(y)).astype(float), penalty)
    else:
        weights, intercepts = dense_gaussian(features, y, penalty)
    found = solver.coefficients()[0].numpy()
    if rule == "gaussian":  # a vector that all classes share changes no answer
        found, weights = found - found.mean(0), weights - weights.mean(0)
    np.testing.assert_allclose(found, weights, rtol=1e-9, atol=1e-9 * np.abs(weights).max())
    expected = torch.as_tensor(features @ weights.T + intercepts)
    if rule == "ridge":
        torch.testing.assert_close(solver.scores(x), expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), rule=st.sampled_from(["gaussian", "ridge"]), size=st.integers(1, 3))
def test_small_batches_with_questions_in_between_end_at_the_same_weights(seed, rule, size):
    x, y = problem(seed, n=80, d=12)
    options = SolverOptions(width=0, rule=rule, penalty=0.5)
    solver = Solver(options).learn(x[:60], y[:60])
    for start in range(60, 80, size):
        solver.scores(x[:1])
        solver.learn(x[start : start + size], y[start : start + size])
    joint = Solver(options).learn(x, y)
    torch.testing.assert_close(shifted(solver.scores(x)), shifted(joint.scores(x)), rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(solver.settle().coefficients(), joint.coefficients(), **CLOSE)


def test_a_small_batch_updates_the_inverse_and_a_new_class_joins_it():
    x, y = problem(3, n=200, d=40)
    solver = Solver(SolverOptions(width=0, penalty=0.5)).learn(x, y)
    solver.scores(x[:1])
    solution = solver._solution
    solver.learn(x[:5] + 4.0, np.full(5, 1_000_000))
    assert solver._solution is solution and solution.inverse is not None
    joint = Solver(SolverOptions(width=0, penalty=0.5)).learn(np.r_[x, x[:5] + 4.0], np.r_[y, np.full(5, 1_000_000)])
    torch.testing.assert_close(shifted(solver.scores(x)), shifted(joint.scores(x)), rtol=1e-9, atol=1e-8)
    assert solver.slots.tolist() == [0, 7, 14, 21, 1_000_000]


@pytest.mark.parametrize("keep_scatter", [False, True])
def test_two_solvers_taught_apart_merge_into_the_joint_one(keep_scatter):
    x, y = problem(1, n=300)
    options = SolverOptions(width=8, keep_scatter=keep_scatter, held=50)
    left, right = Solver(options).learn(x[:90], y[:90]), Solver(options).learn(x[90:], y[90:])
    joint = Solver(options).learn(x, y)
    merged = Solver(options).merge(left).merge(right)
    torch.testing.assert_close(merged.coefficients(), joint.coefficients(), **CLOSE)
    torch.testing.assert_close(merged.held.features, joint.held.features)
    assert merged.calibration().temperature == pytest.approx(joint.calibration().temperature, rel=1e-6)


@pytest.mark.parametrize("by", ["scatter", "samples"])
def test_a_forgotten_class_equals_one_never_seen(by):
    x, y = problem(2, n=100)
    solver = Solver(SolverOptions(width=8, keep_scatter=by == "scatter")).learn(x, y)
    solver.scores(x[:1])
    assert solver.forget(14, x[y == 14] if by == "samples" else None)
    never = Solver(solver.options).learn(x[y != 14], y[y != 14])
    torch.testing.assert_close(solver.coefficients(), never.coefficients(), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(solver.novelty(x), never.novelty(x), rtol=1e-8, atol=1e-8)
    assert solver.residue == []


def test_a_class_forgotten_without_its_scatter_leaves_the_answers_and_is_listed():
    x, y = problem(2, n=100)
    solver = Solver(SolverOptions(width=0)).learn(x, y)
    assert not solver.forget(14)
    assert solver.residue == [14] and solver.slots.tolist() == [0, 7, 21]
    assert solver.scores(x).shape == (100, 3) and 14 not in solver.held.slots


@pytest.mark.parametrize("single", [False, True])
def test_a_state_survives_safetensors_and_json(single):
    x, y = problem(5, n=120)
    solver = Solver(SolverOptions(width=8, keep_scatter=True)).learn(x, y)
    tensors, plain = solver.state(single=single)
    again = Solver.from_state(load(save(tensors)), json.loads(json.dumps(plain)))
    tolerance = dict(rtol=1e-3, atol=1e-2) if single else dict(rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(again.scores(x), solver.scores(x), **tolerance)
    torch.testing.assert_close(again.probabilities(x), solver.probabilities(x), **tolerance)
    again.learn(x[:10], y[:10])
    assert again.sums.n == 130


def test_second_moments_with_the_bias_column_come_back_from_the_sums():
    x, y = problem(6)
    with_bias = np.c_[x, np.ones(len(x))]
    moments = Solver(SolverOptions(width=0)).learn(x, y).sums.moments()
    np.testing.assert_allclose(moments.numpy(), with_bias.T @ with_bias, rtol=1e-12)


def test_subtracting_some_samples_equals_not_adding_them():
    x, y = problem(7, n=90)
    sums = Solver(SolverOptions(width=0, keep_scatter=True)).learn(x, y).sums
    sums.subtract(torch.as_tensor(x[60:]), torch.as_tensor(y[60:]))
    fewer = Solver(SolverOptions(width=0)).learn(x[:60], y[:60]).sums
    torch.testing.assert_close(sums.moments(), fewer.moments(), rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(sums.within, sum(sums.scatter.values()), rtol=1e-9, atol=1e-8)
