"""The map of the classes: a fixed linear projection of the model's own space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi", reason="no fastapi: pip install 'holdfast[serve]'")

from holdfast.estimator import IncrementalClassifier
from holdfast.heads.polytopes import POLYTOPES, Simplex
from holdfast.serving.atlas import Atlas, centred_targets, plane, targets
from holdfast.serving.state import Served


def vectors(names: str, count: int = 20, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    draw, labels = np.random.RandomState(seed), [name for name in names for _ in range(count)]
    centres = 2 * np.eye(8)[["abcdefgh".index(name) for name in labels]]
    return (centres + 0.1 * draw.normal(size=centres.shape)).astype(np.float32), labels


@pytest.mark.parametrize("slots", [2, 3, 10, 200])
def test_the_projection_of_a_simplex_sends_every_vertex_to_its_place(slots: int) -> None:
    dense = Simplex(slots).vertices(dtype=torch.float64).numpy()  # (slots, dim)
    wanted = targets(slots) - targets(slots).mean(0)
    np.testing.assert_allclose(dense @ plane(Simplex(slots)), wanted, atol=1e-12)
    np.testing.assert_allclose(np.linalg.lstsq(dense, wanted, rcond=None)[0], plane(Simplex(slots)), atol=1e-9)


@pytest.mark.parametrize("slots", [20, 1000])
def test_places_are_apart_and_near_the_unit_circle(slots: int) -> None:
    spots = centred_targets(slots)[:20]
    apart = np.linalg.norm(spots[:, None] - spots[None], axis=2) + 9 * np.eye(20)
    assert apart.min() > 0.1 and np.allclose(np.linalg.norm(spots, axis=1), 1, atol=0.1)


@pytest.mark.parametrize("head", ["simplex", "orthoplex", "cube", "polygon"])
def test_a_trained_model_puts_samples_at_their_embeddings(head: str) -> None:
    slots = 10
    clf = IncrementalClassifier(head=head, slots=slots, method="replay", epochs=3, device="cpu")
    x, y = vectors("abc")
    served = Served(1, clf.partial_fit(x, y))
    dense = POLYTOPES[head](slots).vertices(dtype=torch.float64).numpy()
    known = served.atlas.places(list(range(slots)))
    linear = np.linalg.lstsq(dense, known, rcond=None)[0]  # any linear map that sends the vertices to their places
    np.testing.assert_allclose(dense @ linear, known, atol=1e-9)
    found = [answer.place for answer in served.answer(list(x[::10]))]
    np.testing.assert_allclose(found, clf.embed(x[::10], unit=True) @ linear, atol=1e-5)


def test_a_solved_model_puts_samples_between_the_vertices_by_their_probabilities() -> None:
    clf = IncrementalClassifier(slots=30, device="cpu")
    x, y = vectors("abc")
    served = Served(1, clf.partial_fit(x, y))
    between = (x[0] + x[20]) / 2  # of a and b
    answer = served.answer([x[0], between])
    dense = Simplex(30).vertices(dtype=torch.float64).numpy()[:3]  # a, b and c came in this order
    expected = clf.predict_proba(np.stack([x[0], between])) @ dense @ plane(Simplex(30))
    np.testing.assert_allclose([each.place for each in answer], expected, atol=1e-6)


def test_a_trainable_head_is_shown_to_move() -> None:
    """Its directions are learned, so a map that held still would be a lie."""
    clf = IncrementalClassifier(head="expanding", slots=10, method="replay", epochs=5, device="cpu")
    clf.partial_fit(*vectors("ab"))
    before = Served(1, clf).atlas.places([0, 1])
    clf.partial_fit(*vectors("cd"))
    assert np.abs(Served(2, clf).atlas.places([0, 1]) - before).max() > 1e-3


@pytest.mark.parametrize("method", ["solved", "replay"])
def test_classes_and_samples_hold_still_when_a_class_is_added(method: str) -> None:
    more: dict[str, Any] = {} if method == "solved" else {"epochs": 30, "memory": 500}
    clf = IncrementalClassifier(slots=50, method=method, device="cpu", **more)
    x, y = vectors("ab")
    first = Served(1, clf.partial_fit(x, y))
    directions, places = first.atlas.places([0, 1]), np.array([a.place for a in first.answer(list(x[::5]))])
    second = Served(2, clf.partial_fit(*vectors("c", seed=1)))
    np.testing.assert_array_equal(second.atlas.places([0, 1]), directions)
    moved = np.linalg.norm(np.array([a.place for a in second.answer(list(x[::5]))]) - places, axis=1)
    own = np.linalg.norm(places - directions.repeat(len(places) // 2, 0), axis=1)
    assert moved.max() < 0.5 and own.max() < 0.7  # on a map of radius one


def test_a_million_slots_cost_no_dense_matrix(tmp_path: Path) -> None:
    atlas = Atlas(None, 1_000_000)
    assert atlas.plane.shape == (999_999, 2)
    np.testing.assert_allclose(atlas.places([0, 999_999]), centred_targets(1_000_000)[[0, -1]])
