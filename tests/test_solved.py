"""Learning in closed form on frozen features: as a method of a run, and behind the estimator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from conftest import assert_same_bits, bits, make_tiny_stream, make_tiny_trainer
from holdfast import IncrementalClassifier
from holdfast.errors import BadConfig, BadInput, Stopped
from holdfast.heads.fixed import FixedHead
from holdfast.learning.training import Watcher

X, Y = load_digits(return_X_y=True)
X = X.astype(np.float32)
TEST = np.arange(len(Y)) % 5 == 0


def taught(*batches: tuple[int, ...], **parameters: object) -> IncrementalClassifier:
    model = IncrementalClassifier(slots=20, **parameters)  # type: ignore[arg-type]
    for classes in batches:
        rows = ~TEST & np.isin(Y, classes)
        model.partial_fit(X[rows], Y[rows])
    return model


# The estimator.


def test_vectors_are_solved_for_and_images_and_tuned_training_are_not() -> None:
    assert taught((0, 1)).method_ == "solved"
    assert taught((0, 1), epochs=1).method_ == "replay"
    images = (X[Y < 2][:20].reshape(-1, 8, 8) * 15).astype(np.uint8)
    by_image = IncrementalClassifier(slots=20, backbone="mlp", epochs=1).partial_fit(images, Y[Y < 2][:20])
    assert by_image.method_ == "replay"


def test_digits_one_class_at_a_time_are_as_good_as_all_at_once_to_the_last_digit() -> None:
    apart = taught(*((digit,) for digit in range(10)))
    once = taught(tuple(range(10)))
    assert apart.score(X[TEST], Y[TEST]) > 0.97
    np.testing.assert_allclose(apart.predict_proba(X[TEST]), once.predict_proba(X[TEST]), atol=1e-6)


def test_a_single_class_is_always_the_answer() -> None:
    model = taught((3,))
    assert set(model.predict(X[TEST])) == {3} and (model.predict_proba(X[TEST]) == 1).all()


def test_an_index_of_frozen_features_never_needs_a_rebuild() -> None:
    model = taught((0, 1, 2))
    before = model.embed(X[TEST])
    rows = ~TEST & (Y > 5)
    model.partial_fit(X[rows], Y[rows])
    assert np.array_equal(model.embed(X[TEST]), before)
    assert model.stability_.action == "keep" and "never move" in model.stability_.answer


def test_a_forgotten_class_equals_one_never_seen_if_its_scatter_is_kept() -> None:
    model = taught((0, 1, 2, 3), keep_scatter=True, memory=0).forget(3)
    never = taught((0, 1, 2), keep_scatter=True, memory=0)
    assert 3 not in model.predict(X[TEST])
    np.testing.assert_allclose(model.predict_proba(X[TEST]), never.predict_proba(X[TEST]), atol=1e-6)


def test_strangers_are_refused_at_the_promised_cost_in_known_samples() -> None:
    model = taught((0, 1, 2, 3, 4))
    known, strange = TEST & (Y < 5), TEST & (Y >= 5)
    refused = [answer is None for answer in model.predict(X[known], reject=0.05)]
    caught = [answer is None for answer in model.predict(X[strange], reject=0.05)]
    assert np.mean(refused) < 0.15 and np.mean(caught) > 0.7


def test_a_model_is_saved_and_goes_on_learning_to_the_same_answers(tmp_path: Path) -> None:
    model = taught((0, 1, 2, 3))
    model.save(tmp_path)
    again = IncrementalClassifier.load(tmp_path)
    for each in (model, again):
        rows = ~TEST & (Y >= 4)
        each.partial_fit(X[rows], Y[rows])
    assert again.method_ == "solved"
    np.testing.assert_allclose(again.predict_proba(X[TEST]), model.predict_proba(X[TEST]), atol=1e-9)


def test_a_model_of_memory_0_keeps_no_sample(tmp_path: Path) -> None:
    model = taught((0, 1), memory=0)
    assert len(model.model_.solver.held.slots) == 0
    with pytest.raises(BadInput, match="too few samples to calibrate"):
        model.predict(X[:5], reject=0.05)


def test_a_pretrained_module_is_frozen_and_solved_behind() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 100), nn.ReLU())
    model = taught((0, 1, 2), (3, 4), backbone=network, method="solved")
    known = TEST & (Y < 5)
    assert model.score(X[known], Y[known]) > 0.95
    assert model.embed(X[:3]).shape == (3, 100)


def test_an_untrained_network_is_refused_as_frozen_features() -> None:
    with pytest.raises(BadConfig, match=r"'solved'.*untrained network"):
        taught((0, 1), method="solved", backbone="mlp")
    with pytest.raises(BadConfig, match=r"method is 'guessed'; choose one of auto, solved, replay"):
        taught((0, 1), method="guessed")


def test_a_solved_model_is_exported_to_onnx(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = taught((0, 1, 2), (3, 4))
    session = onnxruntime.InferenceSession(str(model.export(tmp_path / "model.onnx")))
    _, probabilities = session.run(None, {"inputs": X[TEST]})
    np.testing.assert_allclose(probabilities, model.predict_proba(X[TEST]), atol=2e-3)


# Models that are added up.


def test_models_taught_apart_add_up_to_the_joint_one_whatever_their_slots() -> None:
    joint = taught(tuple(range(10)))
    left, right = taught((7, 8, 9), (0, 1, 2)), taught((3, 4, 5, 6), (0, 9))
    extra = np.isin(Y, (0, 9)) & ~TEST  # which the right one has learned as well: teach the joint one twice, too
    joint.partial_fit(X[extra], Y[extra])
    left.merge(right)
    assert left.classes_.tolist() == list(range(10))
    for each in (joint, left):
        each.model_.solver.settle()
    np.testing.assert_allclose(left.predict_proba(X[TEST]), joint.predict_proba(X[TEST]), atol=1e-6)


def test_only_solved_models_of_equal_parameters_are_merged() -> None:
    with pytest.raises(BadConfig, match="Only models of the method 'solved'"):
        taught((0, 1), method="solved").merge(taught((2, 3), epochs=1))
    with pytest.raises(BadConfig, match="differ in priors"):
        taught((0, 1)).merge(taught((2, 3), priors="empirical"))


@pytest.mark.slow
def test_shards_on_a_ray_cluster_add_up_to_one_process(tmp_path: Path) -> None:
    """Each task maps its shard of a memory-mapped file to a model's file; the models are added up here."""
    ray = pytest.importorskip("ray")
    np.save(tmp_path / "x.npy", X[~TEST])
    np.save(tmp_path / "y.npy", Y[~TEST])
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    try:

        @ray.remote
        def shard(start: int) -> str:
            rows = slice(start, None, 3)
            features = np.load(tmp_path / "x.npy", mmap_mode="r")[rows]
            model = IncrementalClassifier(slots=20).partial_fit(features, np.load(tmp_path / "y.npy")[rows])
            return str(model.save(tmp_path / f"shard-{start}"))

        parts = [IncrementalClassifier.load(path) for path in ray.get([shard.remote(start) for start in range(3)])]
    finally:
        ray.shutdown()
    merged = parts[0].merge(parts[1]).merge(parts[2])
    merged.model_.solver.settle()
    alone = taught(tuple(range(10)))
    np.testing.assert_allclose(merged.predict_proba(X[TEST]), alone.predict_proba(X[TEST]), atol=1e-6)


# The method of a run.


@pytest.mark.parametrize("head", ["simplex", "orthoplex", "cube", "polygon"])
def test_a_run_is_solved_with_every_fixed_head_and_forgets_nothing_by_order(head: str) -> None:
    trainer = make_tiny_trainer(make_tiny_stream(classes=6, per_class=30), method="solved", head=head, epochs=1)
    trainer.run()
    assert isinstance(trainer.learner.head, FixedHead)
    assert trainer.at.accuracies[-1][0] > 50  # three tasks of two classes: chance is 17


def test_a_trainable_head_is_refused() -> None:
    with pytest.raises(BadConfig, match="solved needs a fixed head"):
        make_tiny_trainer(method="solved", head="expanding")


@pytest.mark.parametrize("stop", [1, 3, 6])
def test_a_solved_run_resumes_to_the_same_bits(stop: int) -> None:
    whole = make_tiny_trainer(method="solved", epochs=2)
    whole.run()
    count = iter(range(stop, -1, -1))
    cut = make_tiny_trainer(method="solved", epochs=2, watcher=Watcher(stop=lambda: next(count) == 0))
    with pytest.raises(Stopped):
        cut.run()
    resumed = make_tiny_trainer(method="solved", epochs=2)
    resumed.load(*cut.state())
    resumed.run()
    assert_same_bits(bits(whole), bits(resumed))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_models_with_kept_scatters_merge_whatever_order_their_classes_came_in(order: tuple[int, ...]) -> None:
    X, y = load_digits(return_X_y=True)
    options = {"slots": 20, "keep_scatter": True, "width": 0, "memory": 0}
    one, other = IncrementalClassifier(**options), IncrementalClassifier(**options)
    for label in (0, 1, 2):
        one.partial_fit(X[:900][y[:900] == label], y[:900][y[:900] == label])
    for label in order:
        other.partial_fit(X[900:][y[900:] == label], y[900:][y[900:] == label])
    other.partial_fit(X[y == 5], y[y == 5])  # a class that only one of them knows
    merged = one.merge(other).forget(0)
    kept = np.isin(y, [1, 2, 5])
    never = IncrementalClassifier(**options).partial_fit(X[kept], y[kept])
    assert np.allclose(merged.predict_proba(X), never.predict_proba(X), atol=1e-8)


def test_a_class_is_forgotten_exactly_when_its_samples_are_given_again() -> None:
    X, y = load_digits(return_X_y=True)
    options = {"slots": 20, "width": 0, "memory": 0}
    clf = IncrementalClassifier(**options).partial_fit(X, y).forget(3, X[y == 3])
    never = IncrementalClassifier(**options).partial_fit(X[y != 3], y[y != 3])
    assert np.allclose(clf.predict_proba(X), never.predict_proba(X), atol=1e-8)
    with pytest.raises(BadInput, match="give all of them"):
        clf.forget(4, X[y == 4][:5])
    assert 4 in clf.classes_


@pytest.mark.parametrize("settings", [{"width": 0}, {"epochs": 1}])
def test_a_saved_model_does_not_name_a_forgotten_class(settings: dict[str, int], tmp_path: Path) -> None:
    X, y = load_digits(return_X_y=True)
    names = np.array([f"secret-{label}" for label in y])
    clf = IncrementalClassifier(slots=20, **settings).partial_fit(X[y < 3], names[y < 3]).forget("secret-1")
    clf.save(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    assert b"secret-1" not in content and b"secret-2" in content
