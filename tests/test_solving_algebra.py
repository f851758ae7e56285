"""Each closed form against an independent computation from the samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from holdfast.solving import Solver, SolverOptions
from holdfast.solving import ridge as ridge_module
from holdfast.solving.random_features import candidate_widths, projection, widest_in_budget
from holdfast.solving.ridge import centred_targets, choose_penalty, gcv_by_factor, gcv_by_spectrum, grid
from test_solving_exact import dense_ridge, problem, shifted


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), unused=st.integers(0, 5))
def test_regression_onto_simplex_vertices_chooses_the_class_of_one_hot_regression(seed, unused):
    x, y = problem(seed)
    k = 4 + unused  # pre-allocated slots
    basis = np.linalg.qr(np.c_[np.ones(k), np.eye(k)[:, 1:]])[0][:, 1:]  # (k, k - 1), orthogonal to the ones
    vertices = np.sqrt(k / (k - 1)) * basis  # rows: unit vectors with equal angles
    np.testing.assert_allclose(vertices @ vertices.T, (k * np.eye(k) - 1) / (k - 1), atol=1e-12)
    weights, intercepts = dense_ridge(x, vertices[y // 7], 0.7)
    logits = (x @ weights.T + intercepts) @ vertices[:4].T
    solver = Solver(SolverOptions(width=0, rule="ridge", penalty=0.7)).learn(x, y)
    np.testing.assert_array_equal(solver.predict(x).numpy() // 7, logits.argmax(1))
    scores = solver.scores(x).numpy()
    np.testing.assert_allclose(logits, k / (k - 1) * (scores - scores.sum(1, keepdims=True) / k), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_gcv_equals_the_hat_matrix(seed):
    x, y = problem(seed, n=40)
    sums = Solver(SolverOptions(width=0)).learn(x, y).sums
    penalties = [1e-3, 0.1, 1.0, 30.0]
    targets = (y[:, None] == np.unique(y)).astype(float)
    centred, n = x - x.mean(0), len(x)
    for penalty, value in zip(penalties, gcv_by_spectrum(sums, 6, penalties)):
        hat = centred @ np.linalg.solve(centred.T @ centred + penalty * np.eye(6), centred.T) + 1.0 / n
        rss = ((targets - hat @ targets) ** 2).sum()
        assert value == pytest.approx(rss / n / (1 - np.trace(hat) / n) ** 2, rel=1e-9)


def test_gcv_of_repeated_samples_is_that_of_the_samples():
    """Every sample twice doubles T and S, so twice the penalty gives the same weights, residuals and trace."""
    x, y = problem(3, n=40)
    once, twice = (Solver(SolverOptions(width=0)).learn(a, b).sums for a, b in ((x, y), (np.r_[x, x], np.r_[y, y])))
    for penalty in (0.1, 3.0):
        (wanted,), (found,) = gcv_by_spectrum(once, 6, [penalty]), gcv_by_spectrum(twice, 6, [2 * penalty], 0.5)
        assert found == pytest.approx(wanted)
        found = gcv_by_factor(twice, twice.total(), centred_targets(twice, 6), 2 * penalty, 0.5)
        assert found == pytest.approx(wanted, rel=1e-2)


def test_learning_some_samples_again_does_not_spoil_the_answers():
    """With about as many samples as features, copies hide overfitting from GCV, and its penalty would be tiny."""
    draws = np.random.default_rng(0)
    centres = draws.normal(size=(8, 100))
    y, test = np.repeat(range(8), 12), np.repeat(range(8), 50)
    x, x_test = (centres[rows] + 2 * draws.normal(size=(len(rows), 100)) for rows in (y, test))
    solver = Solver(SolverOptions(width=0)).learn(x, y)
    once = float(np.mean(solver.predict(x_test).numpy() == test))
    solver.learn(x[y < 4], y[y < 4])
    assert solver.held.distinct() == pytest.approx(96 / 144)
    assert float(np.mean(solver.settle().predict(x_test).numpy() == test)) > once - 0.05


def test_gcv_from_a_factor_agrees_with_the_spectrum():
    x, y = problem(9, n=2000, d=200, classes=10)
    sums = Solver(SolverOptions(width=0)).learn(x, y).sums
    for penalty, exact in zip(grid(sums, 200), gcv_by_spectrum(sums, 200, grid(sums, 200))):
        found = gcv_by_factor(sums, sums.total(), centred_targets(sums, 200), penalty)
        assert found == pytest.approx(exact, rel=1e-2)


def test_the_search_for_large_sizes_finds_the_penalty_of_the_spectrum(monkeypatch):
    x, y = problem(10, n=900, d=60, classes=10)
    sums = Solver(SolverOptions(width=0)).learn(x, y).sums
    exact = choose_penalty(sums, 60)
    assert ridge_module.search_penalty(sums, 60)[0] == pytest.approx(exact.penalty)
    monkeypatch.setattr(ridge_module, "EXACT_SIZE", 50)
    assert choose_penalty(sums, 60, 50).compared == 50


@pytest.mark.parametrize("priors", ["uniform", "empirical"])
def test_the_gaussian_rule_equals_linear_discriminant_analysis(priors):
    x, y = problem(11, n=300)
    solver = Solver(SolverOptions(width=0, penalty=1e-9, priors=priors)).learn(x, y)
    lda = LinearDiscriminantAnalysis("lsqr", priors=None if priors == "empirical" else np.full(4, 0.25)).fit(x, y)
    if priors == "empirical":  # scikit-learn weighs the class covariances by the priors: W / n only with these
        expected = torch.as_tensor(lda.decision_function(x))
        torch.testing.assert_close(shifted(solver.scores(x)), shifted(expected), rtol=1e-6, atol=1e-6)
    assert (solver.predict(x).numpy() == lda.predict(x)).mean() > 0.98


def test_novelty_equals_its_definition():
    x, y = problem(12, n=200)
    new = np.random.default_rng(0).normal(size=(20, 6)) * 5
    means = np.stack([x[y == c].mean(0) for c in np.unique(y)])
    residual, centred = x - means[y // 7], x - x.mean(0)

    def inverse(covariance):
        return np.linalg.inv(0.4 * covariance + 0.6 * np.trace(covariance) / 6 * np.eye(6))

    within, total = inverse(residual.T @ residual / 200), inverse(centred.T @ centred / 200)
    near = np.min([np.einsum("nd,de,ne->n", new - m, within, new - m) for m in means], axis=0)
    far = np.einsum("nd,de,ne->n", new - x.mean(0), total, new - x.mean(0))
    solver = Solver(SolverOptions(width=0)).learn(x, y)
    np.testing.assert_allclose(solver.novelty(new).numpy(), near - far, rtol=1e-9)


@pytest.mark.parametrize("rule", ["gaussian", "ridge"])
def test_left_out_scores_equal_solving_without_the_sample(rule):
    from holdfast.solving.calibration import left_out_novelty, left_out_scores

    x, y = problem(13, n=50)
    options = SolverOptions(width=0, penalty=0.5, rule=rule)
    solver = Solver(options).learn(x, y)
    rows = solver.sums.rows(y.tolist())
    features = torch.as_tensor(x)
    scores = left_out_scores(solver._solved(), solver.sums, "uniform", features, rows)
    novelty = left_out_novelty(solver._strangeness(), solver.sums, features, rows)
    for index in range(0, 50, 7):
        rest = np.arange(50) != index
        without = Solver(options).learn(x[rest], y[rest])
        expected = without.scores(x[index : index + 1])
        columns = solver.sums.rows(without.slots.tolist())
        torch.testing.assert_close(shifted(scores[index : index + 1, columns]), shifted(expected), rtol=1e-7, atol=1e-7)
        # the shrinkage level and 1/n move slightly with one sample less, which the closed form neglects
        assert float(novelty[index]) == pytest.approx(float(without.novelty(x[index : index + 1])), rel=0.15, abs=0.5)


def test_reject_refuses_the_share_asked_for_and_probabilities_are_calibrated():
    rng = np.random.default_rng(0)
    means = 2.2 * rng.normal(size=(12, 10))
    y, z = rng.integers(0, 12, 4000), rng.integers(0, 12, 4000)
    x, new = means[y] + rng.standard_t(5, size=(4000, 10)), means[z] + rng.standard_t(5, size=(4000, 10))
    solver = Solver(SolverOptions(width=0)).learn(x, y)
    assert float(solver.rejects(new, 0.05).double().mean()) == pytest.approx(0.05, abs=0.03)
    best, guess = solver.probabilities(new).max(1)
    assert float(best.mean()) == pytest.approx(float((guess.numpy() == z).mean()), abs=0.02)


def test_a_narrow_map_is_the_beginning_of_a_wide_one():
    assert torch.equal(projection(5, 700, 3)[:, :300], projection(5, 300, 3))
    assert not torch.equal(projection(5, 300, 3), projection(5, 300, 4))
    assert not torch.equal(projection(5, 512, 0)[:, :256], projection(5, 512, 0)[:, 256:])


def test_the_width_stays_within_the_budget_and_below_the_number_of_samples():
    assert widest_in_budget(384, 512, 1.5) == 2560
    assert widest_in_budget(384, 20, 1.5) == 512
    assert widest_in_budget(4096, 512, 1.5) == 0
    assert candidate_widths(600) == [256, 512, 600]
    x, y = problem(14, n=400, d=6)
    solver = Solver().learn(x, y)
    assert solver.choice.size in (6, 262)


def test_random_features_are_chosen_only_where_they_help():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 8))
    ring = Solver().learn(x, (np.linalg.norm(x, axis=1) > 2.7).astype(int))
    assert ring.choice.size > 8
    assert Solver().learn(x, (x[:, 0] > 0.1).astype(int)).choice.gcv <= ring.choice.gcv
