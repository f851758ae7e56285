"""The stability report: drift in degrees, recall in an old index, and a plain answer."""

import importlib
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from holdfast.estimator.labels import Labels
from holdfast.estimator.stability import ClassStability, Stability, measure, nearest_is_right, standard_error
from holdfast.learning.memory import Memory


class Still:
    """A model of two classes whose vectors are given, in place of one that computes them from images."""

    shape = (1, 1, 2)

    def __init__(self, vectors, stored, slots, tasks, taught=2):
        self.vectors, self.taught = torch.tensor(vectors), taught
        self.labels = Labels(4, {"a": 0, "b": 1}, used=2)
        self.held = Memory(len(slots), (2,), "class")
        self.held.add(torch.arange(len(slots)).float()[:, None].repeat(1, 2), torch.tensor(slots), 0)
        self.held.tasks[:] = torch.tensor(tasks)
        self.held.note("stored", torch.arange(len(slots)), torch.tensor(stored))

        self.memory = Memory(0, (2,), "class")

    def embed(self, images):
        return self.vectors[images[:, 0].long()]


def around(degrees, spread=1.0):
    """Two vectors a little to each side of a direction in the plane, not of length one."""
    angles = (math.radians(degrees - spread), math.radians(degrees + spread))
    return [[3 * math.cos(angle), 3 * math.sin(angle)] for angle in angles]


def test_drift_is_the_angle_between_mean_directions():
    stored = around(0.0) + around(90.0)
    before = Still(around(5.0) + around(90.0), stored, [0, 0, 1, 1], [0, 0, 1, 1])
    after = Still(around(25.0) + around(90.0), stored, [0, 0, 1, 1], [0, 0, 1, 1])
    found = measure(before, after)
    a, b = found.classes
    assert a.moved == pytest.approx(20, abs=0.01) and a.moved_since_learned == pytest.approx(25, abs=0.01)
    assert b.moved is None, "it was learned just now"
    assert b.moved_since_learned == pytest.approx(0, abs=0.01)
    assert found.action == "keep" and found.recall == found.recall_refreshed == 1


def test_recall_falls_when_a_class_moves_onto_another_and_its_refresh_is_advised():
    stored = around(0.0) + around(90.0)
    after = Still(around(80.0) + around(170.0), stored, [0, 0, 1, 1], [0, 0, 0, 0])
    found = measure(after, after)
    assert [c.recall for c in found.classes] == [0.0, 1.0] and found.recall == 0.5
    assert found.recall_refreshed == 1 and found.action == "refresh" and found.refresh == ("a",)
    assert "Refresh these classes: a" in found.answer and "100.0 %" in str(found)


def test_when_most_classes_are_stale_the_answer_is_to_rebuild():
    stored = around(0.0) + around(90.0)
    after = Still(around(90.0) + around(0.0), stored, [0, 0, 1, 1], [0, 0, 0, 0])
    assert measure(after, after).action == "rebuild"


def classes_at(degrees, slots, **others):
    """Still, with one class for each direction: two held-back samples each, stored at one and now at the other."""
    stored, now = [v for at, _ in degrees for v in around(at)], [v for _, at in degrees for v in around(at)]
    model = Still(now, stored, [s for s in slots for _ in range(2)], others.pop("tasks"), **others)
    model.labels = Labels(8, {"abcdefgh"[s]: s for s in slots}, used=len(slots))
    return model


def test_the_fewest_classes_whose_refresh_helps_are_named():
    """b has moved near to where a was stored, and a to where nothing was; c and d have moved, to no harm."""
    moves = [(0.0, -40.0), (120.0, 20.0), (180.0, 190.0), (250.0, 240.0)]
    after = classes_at(moves, range(4), tasks=[0] * 8)
    found = measure(after, after)
    assert found.recall == 0.75 and found.recall_refreshed == 1
    assert found.action == "refresh" and found.refresh == ("b",), "fresh, its own are nearer than the stale ones of a"


def test_a_class_of_the_last_batch_is_never_named():
    """d, just learned, lies where a and b were stored: it is their vectors that are stale, not d's."""
    moves = [(0.0, 90.0), (2.0, 140.0), (180.0, 180.0), (1.0, 1.0)]
    after = classes_at(moves, range(4), tasks=[0] * 6 + [1] * 2)
    found = measure(after, after)
    lost = {c.label for c in found.classes if c.recall < c.recall_refreshed}
    assert "d" in lost and found.action == "rebuild" and "stored before this batch" in found.answer
    assert found.refresh == (), "two of three old classes are more than half"


def test_an_unmoved_first_batch_is_kept_exactly_however_near_the_classes_are():
    from holdfast import IncrementalClassifier

    draw = np.random.RandomState(0)
    X, y = draw.normal(size=(600, 4)), draw.randint(0, 3, 600)  # nothing to tell them apart by: all is near ties
    report = IncrementalClassifier(slots=6, memory=500, epochs=2, held_back=0.3).fit(X, y).stability_
    assert report.recall == report.recall_refreshed < 0.9
    assert all(c.recall == c.recall_refreshed for c in report.classes)


def test_the_answer_says_how_thin_it_is():
    rows = (ClassStability("a", 3, None, 1.5, 1.0, 1.0), ClassStability("b", 0, None, None, None, None))
    answer = Stability(rows, None, 1.0, 1.0).answer
    assert "uncertain: it rests on 3 held-back samples" in answer and "no held-back samples: b." in answer
    enough = (ClassStability("a", 50, None, 1.5, 1.0, 1.0),)
    assert Stability(enough, None, 1.0, 1.0).answer.endswith("in a rebuilt index 100.0 %.")


def test_where_the_samples_cannot_tell_the_answer_is_a_fresh_index():
    """On CLINC150 300 samples said 1.7 points; the real index had lost 3.6."""
    rows = (ClassStability("a", 300, 1.0, 1.0, 0.94, 0.957),)
    sure, unsure = (Stability(rows, None, 0.94, 0.957, error=error) for error in (0.002, 0.01))
    assert sure.action == "keep" and "cannot tell" not in sure.answer
    assert unsure.action == "rebuild" and "lost up to 2.7 %" in unsure.answer and "cannot tell" in unsure.answer
    assert Stability.from_json(json.loads(json.dumps(unsure.to_json()))) == unsure


@pytest.mark.parametrize(("loss", "action"), [(0.02, "keep"), (0.0201, "rebuild")])
@pytest.mark.parametrize("fresh", [0.96, 0.98, 1.0])
def test_a_loss_of_exactly_two_points_keeps_the_index(fresh, loss, action):
    rows = (ClassStability("a", 100, 1.0, 1.0, fresh - loss, fresh),)
    assert Stability(rows, None, fresh - loss, fresh).action == action


def test_the_error_is_that_of_a_paired_difference():
    a, b = torch.tensor([True, True, False, True, True]), torch.tensor([True, False, True, True, False])
    difference = np.array([0, 1, -1, 0, 1])
    assert standard_error(a, b) == pytest.approx(difference.std(ddof=1) / np.sqrt(5))
    assert standard_error(a, a) == 0 == standard_error(a[:1], b[:1])


def test_forgetting_takes_a_class_out_of_the_report():
    from holdfast import IncrementalClassifier

    draw = np.random.RandomState(0)
    y = np.repeat([0, 1, 2], 40)
    X = draw.normal(scale=5, size=(3, 4))[y] + draw.normal(size=(120, 4))
    clf = IncrementalClassifier(slots=6, memory=100, epochs=5).partial_fit(X[y < 2], y[y < 2])
    clf.partial_fit(X[y == 2], y[y == 2])
    before = {c.label: c for c in clf.stability_.classes}
    clf.forget(1)
    after = {c.label: c for c in clf.stability_.classes}
    assert after.keys() == {0, 2} and after[0].moved == before[0].moved is not None
    assert after[0].samples == before[0].samples
    assert "Nothing is left" in clf.forget(0).forget(2).stability_.answer


def test_iris_class_by_class_is_advised_as_it_is():
    """Taught one class and then two, only the first can be stale."""
    from sklearn.datasets import load_iris

    from holdfast import IncrementalClassifier

    X, y = load_iris(return_X_y=True)
    clf = IncrementalClassifier(slots=8, memory=100, epochs=10, held_back=0.3, random_state=1)
    clf.partial_fit(X[y == 0], y[y == 0]).partial_fit(X[y > 0], y[y > 0])
    assert set(clf.stability_.refresh) <= {0}
    assert "uncertain: it rests on 30 held-back samples" in clf.stability_.answer


def test_without_held_back_samples_nothing_is_claimed():
    empty = SimpleNamespace(held=Memory(0, (2,), "class"), labels=Labels(4, {"a": 0}, used=1), taught=1)
    found = measure(None, empty)
    assert found.action == "unknown" and "Not measured" in found.answer and found.recall is None
    assert found.classes[0].samples == 0


def test_a_sample_never_finds_itself():
    vectors = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [0.99, 0.1], [0.0, 1.0]]), dim=1)
    slots = torch.tensor([0, 0, 1])
    assert nearest_is_right(vectors, vectors, slots, slots).tolist() == [True, True, False]


def test_remembered_samples_are_in_the_index_with_their_stored_vectors():
    model = Still(around(0.0) + around(90.0), around(0.0) + around(90.0), [0, 0, 1, 1], [0, 0, 0, 0])
    model.memory = Memory(1, (2,), "class")
    model.memory.add(torch.full((1, 2), 4.0), torch.tensor([1]), 0)
    model.memory.note("stored", torch.tensor([0]), torch.tensor([[1.0, 0.0]]))  # of b, stored where a is now
    model.vectors = torch.tensor([*around(0.0), *around(90.0), [0.0, 1.0]])
    found = measure(model, model)
    assert found.classes[0].recall == 0 and found.classes[0].recall_refreshed == 1


def test_a_report_goes_through_json():
    rows = (ClassStability("a", 3, None, 1.5, 0.5, 1.0), ClassStability("b", 1, 2.0, 2.0, None, None))
    report = Stability(rows, None, 0.5, 1.0)
    assert Stability.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_every_partial_fit_reports():
    from holdfast import IncrementalClassifier

    draw = np.random.RandomState(0)
    centres = draw.normal(scale=5, size=(3, 4))
    clf = IncrementalClassifier(slots=6, memory=100, epochs=5)
    for label in range(3):
        clf.partial_fit(centres[label] + draw.normal(size=(40, 4)), [label] * 40)
        report = clf.stability_
        assert [c.label for c in report.classes] == list(range(label + 1))
        assert all(c.samples == 4 or c.samples == 3 for c in report.classes)
        assert report.classes[label].moved_since_learned == pytest.approx(0, abs=0.01)
        assert (report.recall_before is None) == (label == 0)


def test_classes_to_refresh_are_judged_on_other_samples_than_they_were_chosen_on():
    """b must be refreshed. d too, which only c's second sample notices: it is nearer to where d was stored."""
    stored = around(0.0) + around(120.0) + around(180.0) + around(196.0)
    now = around(-40.0) + around(20.0) + [around(186.0, 0.0)[0], around(191.0, 0.0)[0]] + around(240.0)
    after = Still(now, stored, [0, 0, 1, 1, 2, 2, 3, 3], [0] * 8)
    after.labels = Labels(8, {"abcd"[s]: s for s in range(4)}, used=4)
    found = measure(after, after)
    assert found.recall_refreshed == 1 and [c.recall for c in found.classes] == [1.0, 0.0, 0.5, 1.0]
    assert found.refresh == () and found.action == "rebuild", "the first samples suggest b alone"


def test_one_sample_per_class_is_too_few_to_name_classes_to_refresh():
    stored, now = ([around(at)[0] for at in angles] for angles in ((0.0, 120.0, 180.0), (-40.0, 2.0, 180.0)))
    after = Still(now, stored, [0, 1, 2], [0, 0, 0])
    after.labels = Labels(8, {"abc"[s]: s for s in range(3)}, used=3)
    assert measure(after, after).refresh == ()


def test_where_the_input_vectors_are_the_better_index_the_advice_is_to_index_them():
    report = Stability((ClassStability("a", 60, 10.0, 10.0, 0.7, 0.9),), 0.9, 0.7, 0.9, recall_inputs=0.88)
    assert report.action == "inputs"
    assert report.answer.startswith("Index the input vectors instead: a search among them finds 88.0 %")
    assert Stability.from_json(report.to_json()) == report
    assert Stability(report.classes, 0.9, 0.7, 0.9, recall_inputs=0.72).action == "rebuild", "two points do not matter"


def test_inputs_that_are_worse_than_a_rebuilt_index_are_mentioned_only():
    report = Stability((ClassStability("a", 60, 10.0, 10.0, 0.75, 0.94),), 0.9, 0.75, 0.94, recall_inputs=0.88)
    assert report.action == "rebuild"
    assert "A search among the input vectors, which never move, finds 88.0 %." in report.answer


def test_a_class_of_one_held_back_sample_is_named():
    rows = (ClassStability("a", 1, None, 1.5, 1.0, 1.0), ClassStability("b", 60, None, 1.5, 1.0, 1.0))
    assert Stability(rows, None, 1.0, 1.0).answer.endswith("these cannot be judged by themselves: a.")


def test_the_recall_among_inputs_is_that_of_a_search_in_numpy():
    from holdfast import IncrementalClassifier

    draw = np.random.RandomState(0)
    X, y = draw.normal(size=(300, 4)).astype(np.float32), draw.randint(0, 3, 300)
    clf = IncrementalClassifier(slots=6, memory=200, epochs=1, held_back=0.3).fit(X, y)
    held, memory = clf.model_.held, clf.model_.memory
    gallery = np.concatenate([held.images[: len(held)].numpy(), memory.images[: len(memory)].numpy()])
    slots = np.concatenate([held.slots[: len(held)].numpy(), memory.slots[: len(memory)].numpy()])
    unit = gallery / np.linalg.norm(gallery, axis=1, keepdims=True)
    right = [
        slots[max((j for j in range(len(unit)) if j != i), key=lambda j: unit[i] @ unit[j])] == slots[i]
        for i in range(len(held))
    ]
    assert clf.stability_.recall_inputs == pytest.approx(np.mean(right))


def test_the_memory_of_replay_grows_with_the_classes_unless_it_is_given():
    from holdfast import IncrementalClassifier

    draw = np.random.RandomState(0)
    X, y = draw.normal(size=(600, 4)).astype(np.float32), np.arange(600) % 150
    many = IncrementalClassifier(epochs=1, batch=600).fit(X, y)
    assert many.model_.memory.capacity + many.model_.held.capacity == 20 * 150
    few = IncrementalClassifier(epochs=1, batch=600).fit(X, y % 3)
    assert few.model_.memory.capacity + few.model_.held.capacity == 2000
    given = IncrementalClassifier(epochs=1, batch=600, memory=500).fit(X, y)
    assert given.model_.memory.capacity + given.model_.held.capacity == 500


def test_a_grown_memory_is_the_same_after_saving(tmp_path):
    from holdfast import IncrementalClassifier

    draw = np.random.RandomState(0)
    X, y = draw.normal(size=(600, 4)).astype(np.float32), np.arange(600) % 150
    clf = IncrementalClassifier(epochs=1, batch=600).fit(X, y).forget(7)
    clf.save(tmp_path)
    again = IncrementalClassifier.load(tmp_path)
    assert (again.model_.memory.capacity, again.model_.held.capacity) == (
        clf.model_.memory.capacity, clf.model_.held.capacity
    )
    assert np.array_equal(again.predict_proba(X), clf.predict_proba(X))


@pytest.mark.parametrize("words, told", [(["--help"], "Fashion-MNIST"), (["one.npz"], "give the texts too")])
def test_the_benchmark_of_the_advice_explains_its_arguments(words, told, monkeypatch, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    monkeypatch.setattr("sys.argv", ["advice.py", *words])
    with pytest.raises(SystemExit):
        importlib.import_module("advice").main()
    assert told in "".join(capsys.readouterr())
