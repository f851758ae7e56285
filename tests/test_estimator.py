"""IncrementalClassifier: classes as they come, on people's own data."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import holdfast
from holdfast import IncrementalClassifier
from holdfast.errors import BadConfig, BadInput, LossNotFinite
from holdfast.estimator.model import Model
from holdfast.learning.training import Watcher

torch.set_num_threads(1)


def small(**changes):
    """Quick to train, with everything in it."""
    return IncrementalClassifier(**{"slots": 12, "memory": 200, "epochs": 15, **changes})


def blobs(classes, per_class=40, seed=0):
    centres = np.random.RandomState(7).normal(scale=6, size=(12, 5))[list(classes)]
    X, y = make_blobs(per_class * len(centres), centers=centres, random_state=seed)
    return X, np.array(list(classes))[y]


def fingerprint(clf):
    """Everything that must not change when something is refused."""
    model = clf.model_
    tensors, plain = model.trainer().state()
    parts = [tensors[name].numpy().tobytes() for name in sorted(tensors)]
    held = [t.numpy().tobytes() for _, t in sorted(model.held.state().items())]
    return parts, held, plain, copy.deepcopy(model.labels), model.taught, clf.classes_.tolist()


@pytest.fixture(scope="module")
def three():
    """A model of three classes of vectors, with string labels."""
    X, y = blobs([0, 1, 2])
    return small().fit(X, np.array(["ant", "bee", "cat"])[y])


# scikit-learn's contract.

EXPECTED_FAILURES: dict[str, str] = {}


@parametrize_with_checks(
    [IncrementalClassifier(slots=8, memory=60, epochs=15, lr=0.01), IncrementalClassifier(slots=8)],  # replay, solved
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_it_keeps_scikit_learns_contract(estimator, check):
    check(estimator)


def test_it_clones_and_works_in_a_pipeline():
    X, y = blobs([0, 1, 2])
    pipeline = make_pipeline(StandardScaler(), small())
    assert clone(pipeline).fit(X, y).score(X, y) > 0.95


def test_a_network_of_ones_own_is_a_parameter_that_clones():
    network = torch.nn.Sequential(torch.nn.Linear(5, 32), torch.nn.ReLU())
    before = copy.deepcopy(network.state_dict())
    X, y = blobs([0, 1])
    clf = clone(small(backbone=network, epochs=30, lr=0.01)).fit(X, y)
    small(backbone=network).fit(X, y)
    assert clf.score(X, y) > 0.9
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items()), "the user's network is not touched"


def test_importing_the_package_imports_no_torch():
    import subprocess
    import sys

    code = "import sys, holdfast; assert 'torch' not in sys.modules and 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not hasattr(holdfast, "NoSuchThing")


def test_distillation_is_the_recipes_unless_said_otherwise():
    X, y = blobs([0, 1])
    wanted = [("strong", None, "features"), ("strong", "none", "none"), ("paper", None, "none")]
    for recipe, distill, expected in wanted:
        clf = small(recipe=recipe, distill=distill, epochs=1).fit(X, y)
        assert clf.model_.settings.replay.distill == expected


def test_vectors_lie_on_the_sphere_that_was_asked_for_also_after_loading(tmp_path):
    X, y = blobs([0, 1, 2])
    clf = small(vertex_probability=0.9, epochs=2).fit(X, y)
    radius = 11 / 12 * math.log(11 * 0.9 / 0.1)
    assert clf.slots == 12 and np.linalg.norm(clf.embed(X), axis=1) == pytest.approx(radius)
    loaded = IncrementalClassifier.load(clf.save(tmp_path))
    assert loaded.vertex_probability == 0.9 and np.array_equal(loaded.embed(X), clf.embed(X))
    with pytest.raises(BadConfig, match="vertex_probability"):
        small(vertex_probability=0.9, head="expanding").fit(X, y)
    with pytest.raises(BadConfig, match="whose vectors are frozen features"):
        IncrementalClassifier(slots=6, method="solved", vertex_probability=0.9).fit(X, y)
    with pytest.raises(BadConfig, match="vertex_probability"):
        small(vertex_probability=1.5).fit(X, y)


def test_balance_and_augment_memory_are_the_recipes_unless_said_otherwise():
    X, y = np.random.RandomState(0).randint(0, 256, (20, 8, 8), dtype=np.uint8), np.arange(20) % 2

    def options(**changes):
        settings = small(backbone="lenet", epochs=1, **changes).fit(X, y).model_.settings
        return settings.replay.balance, settings.replay.augment_memory, settings.augment

    assert options() == (True, "none", "shift")
    assert options(recipe="paper") == (False, "none", "shift")
    assert options(balance=False, augment_memory="crop-flip", augment="none") == (False, "crop-flip", "none")


# Classes as they come.


def test_classes_come_one_by_one_without_being_announced():
    X, y = load_digits(return_X_y=True)
    train, test, train_y, test_y = train_test_split(X, y, random_state=0)
    clf = IncrementalClassifier(slots=10, memory=400, epochs=15)
    for label in range(4):  # the first batch has one class
        clf.partial_fit(train[train_y == label], train_y[train_y == label])
        assert clf.classes_.tolist() == list(range(label + 1))
    seen = test_y < 4
    assert clf.score(test[seen], test_y[seen]) > 0.9
    assert np.bincount(clf.predict(test[seen]), minlength=4).min() > 20, "no class is forgotten"


def test_more_samples_of_old_classes_can_come_later(three):
    clf = copy.deepcopy(three)
    X, y = blobs([0, 1, 2, 3], per_class=30, seed=5)
    names = np.array(["ant", "bee", "cat", "dog"])[y]
    clf.partial_fit(X, names)
    assert clf.score(X, names) > 0.95
    memory = clf.model_.memory
    counts = torch.bincount(memory.slots[: len(memory)], minlength=4)
    assert len(memory) <= memory.capacity and counts.min() >= 20, "the old and the new share the memory"


def test_labels_come_back_as_they_were_given():
    X, y = blobs([0, 1])
    for given in (y * 1000 - 5, np.array(["b", "a"])[y], np.array(["b", "a"], dtype=object)[y], y.astype(bool)):
        found = small(epochs=2).fit(X, given).predict(X)
        assert set(np.unique(found)) <= set(np.unique(given))
        assert found.dtype.kind == np.array(sorted(set(given))).dtype.kind
    assert small(epochs=1).fit(X, torch.tensor(y)).classes_.tolist() == [0, 1]


def test_a_rate_epochs_and_a_batch_that_are_set_later_are_used(three):
    clf = copy.deepcopy(three)
    steps = []
    clf.set_params(lr=0.01, epochs=2, batch=10)
    clf.partial_fit(blobs([3])[0], ["dog"] * 40, watcher=Watcher(step=steps.append))
    assert steps == 2 * [5, 5, 5, 5, 5, 5, 5, 1], "two passes over 36 samples, half a batch of 10 at a time"
    assert clf.model_.history[-1]["epochs"] == 2
    assert clf.model_.method.optimizer.param_groups[0]["lr"] == 0.01 and clf.model_.settings.batch == 10
    assert three.model_.method.optimizer.param_groups[0]["lr"] == 0.001


@pytest.mark.parametrize(
    "changes",
    [{"slots": 20}, {"head": "expanding"}, {"backbone": "lenet"}, {"memory": 300}, {"policy": "herding"},
     {"recipe": "paper"}, {"held_back": 0.3}, {"normalise": (0.0, 1.0)}, {"random_state": 5}, {"image_size": 9}],
    ids=str,
)
def test_a_parameter_that_cannot_change_any_more_is_refused_and_fit_starts_anew_with_it(three, changes):
    clf, before = copy.deepcopy(three), fingerprint(three)
    clf.set_params(**changes)
    with pytest.raises(BadConfig, match=f"{next(iter(changes))} cannot change: the model was started with"):
        clf.partial_fit(blobs([3])[0], ["dog"] * 40)
    assert fingerprint(clf) == before
    if changes != {"backbone": "lenet"}:  # which is for images
        X, y = blobs([0, 1, 2])
        clf.set_params(epochs=1).fit(X, y).partial_fit(X, y)


def test_another_network_cannot_be_put_in_place_of_the_first():
    X, y = blobs([0, 1])
    clf = small(backbone=torch.nn.Sequential(torch.nn.Linear(5, 16)), epochs=1).fit(X, y)
    clf.set_params(backbone=torch.nn.Sequential(torch.nn.Linear(5, 32)))
    with pytest.raises(BadConfig, match="backbone cannot change"):
        clf.partial_fit(X, y)


def test_probabilities_are_in_the_order_of_the_classes(three):
    X, _ = blobs([0, 1, 2], seed=3)
    found = three.predict_proba(X)
    assert found.shape == (len(X), 3) and np.allclose(found.sum(1), 1)
    assert (three.classes_[found.argmax(1)] == three.predict(X)).all()


def test_the_same_seed_gives_the_same_model_and_copies_go_on_alike():
    X, y = blobs([0, 1])
    a, b = small(epochs=3).partial_fit(X, y), small(epochs=3).partial_fit(X, y)
    c = pickle.loads(pickle.dumps(a))
    more, more_y = blobs([2], seed=1)
    found = [m.partial_fit(more, more_y).predict_proba(X) for m in (a, b, c)]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


# Images.


def pictures(count=12, size=16, seed=0, channels=3):
    """Two classes that differ in where they are bright."""
    draw = np.random.RandomState(seed)
    y = np.arange(count) % 2
    X = draw.randint(0, 80, (count, size, size, channels)).astype(np.uint8)
    X[y == 1, : size // 2] += 150
    X[y == 0, size // 2 :] += 150
    return X, np.array(["low", "high"])[y]


@pytest.fixture(scope="module")
def seer():
    return small(backbone="lenet", epochs=4, batch=16).fit(*pictures(60))


def test_an_image_is_the_same_however_it_is_given(seer, tmp_path):
    X, _ = pictures(4, seed=9)
    files = [tmp_path / f"{i}.png" for i in range(4)]
    for file, pixels in zip(files, X):
        Image.fromarray(pixels).save(file)
    expected = seer.embed(X)
    given = {
        "floats": X / 255,
        "channels first": torch.tensor(X).permute(0, 3, 1, 2),
        "a list of arrays": list(X),
        "PIL": [Image.fromarray(x) for x in X],
        "paths": files,
        "strings": [str(f) for f in files],
        "an array of strings": np.array([str(f) for f in files]),
    }
    for name, same in given.items():
        assert np.array_equal(seer.embed(same), expected), name


class Column:
    """As much of a pandas Series as matters."""

    ndim = 1

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=object)


def test_a_column_of_paths_is_a_list_of_them(seer, tmp_path):
    X, y = pictures(4, seed=9)
    files = [str(tmp_path / f"{i}.png") for i in range(4)]
    for file, pixels in zip(files, X):
        Image.fromarray(pixels).save(file)
    assert np.array_equal(seer.embed(Column(files)), seer.embed(X))
    assert small(backbone="lenet", epochs=1).fit(Column(files), Column(y)).classes_.tolist() == ["high", "low"]


def test_pictures_of_32_bits_are_scaled_or_refused_never_cut_off(seer):
    grey = pictures(1, seed=3)[0][0, :, :, 0]
    expected = seer.embed([Image.fromarray(grey)])
    assert np.array_equal(seer.embed([Image.fromarray(grey.astype(np.int32))]), expected)
    assert np.array_equal(seer.embed([Image.fromarray(grey.astype(np.float32) / 255)]), expected)
    for wrong in (grey.astype(np.int32) * 100, grey.astype(np.float32)):
        with pytest.raises(BadInput, match=r"a picture of mode [IF] are"):
            seer.embed([Image.fromarray(wrong)])


def test_sizes_may_mix_in_a_list_and_grey_among_colour_is_taken_as_grey_colour(seer):
    X, _ = pictures(2, seed=3)
    tall = Image.fromarray(X[0]).resize((32, 48))
    grey = Image.fromarray(X[1][..., 0])
    assert seer.embed([tall, grey, X[0], X[1][..., 0]]).shape == (4, 11)
    assert np.array_equal(seer.embed([grey]), seer.embed(X[1:, :, :, :1]))
    clf = small(backbone="lenet", epochs=1, image_size=8).fit([tall, grey], ["a", "b"])
    assert clf.model_.learner.shape == (3, 8, 8)
    mixed = small(backbone="lenet", epochs=1).fit([tall, grey], ["a", "b"])
    assert mixed.model_.learner.shape == (3, 64, 64)


@pytest.mark.parametrize("given", [8, np.int64(8), (8, 10), [8, 10]], ids=str)
def test_whole_arrays_are_resized_wherever_a_size_was_asked_for(given):
    X, y = pictures(12)
    clf = small(backbone="lenet", epochs=1, image_size=given).fit(X, y)
    assert clf.model_.learner.shape[1] == 8
    assert np.array_equal(clf.predict(X), clf.predict(list(X)))
    assert np.array_equal(clf.partial_fit(X, y).embed(X), clf.embed(list(X)))


@pytest.mark.parametrize("wrong", [0, 8.5, "big", (8,), (8, "b")], ids=str)
def test_an_image_size_that_cannot_be_is_refused(wrong):
    with pytest.raises(BadConfig, match="image_size is"):
        small(backbone="lenet", image_size=wrong).fit(*pictures(4))


def test_a_whole_array_is_taken_as_it_is_however_large():
    X, y = pictures(4, size=100)
    assert small(backbone="lenet", epochs=1).fit(X, y).model_.learner.shape == (3, 100, 100)
    assert small(backbone="lenet", epochs=1).fit(list(X), y).model_.learner.shape == (3, 64, 64)


def test_a_grey_model_refuses_colour_but_takes_grey_files():
    X, y = pictures(8, channels=1)
    clf = small(backbone="lenet", epochs=1).fit(X[..., 0], y)
    assert clf.model_.learner.shape == (1, 16, 16)
    assert len(clf.predict([Image.fromarray(X[0, ..., 0])])) == 1
    with pytest.raises(BadInput, match="colour image"):
        clf.predict(pictures(2)[0])


# What is refused, and that nothing changes then.

NAN = np.full((3, 16, 16, 3), np.nan)
BAD_BATCHES = {
    "NaN pixels": (NAN, ["low"] * 3, "NaN"),
    "pixels out of range": (np.full((2, 16, 16, 3), 2.0), ["low"] * 2, "between 0 and 1"),
    "another size": (np.zeros((2, 9, 9, 3), np.uint8), ["low"] * 2, "9 x 9"),
    "vectors": (np.zeros((2, 5)), ["low"] * 2, "learned from images"),
    "no images": (np.zeros((0, 16, 16, 3), np.uint8), [], "empty"),
    "an empty list": ([], [], "."),
    "five channels": (np.zeros((2, 16, 16, 5), np.uint8), ["low"] * 2, "c is 1 or 3"),
    "an absent file": (["no/such/file.png"], ["low"], "cannot be read"),
    "a single image": ("photo.png", ["low"], "give a list"),
    "a list of who knows what": ([Image.new("RGB", (16, 16)), 3.5], ["low"] * 2, "Item 1"),
    "too few labels": (np.zeros((3, 16, 16, 3), np.uint8), ["low"], "3 samples, but 1 labels"),
    "mixed labels": (np.zeros((2, 16, 16, 3), np.uint8), ["low", 3], "mixed types"),
    "labels of another kind": (np.zeros((2, 16, 16, 3), np.uint8), [1, 2], "the model's are strings"),
    "no label": (np.zeros((2, 16, 16, 3), np.uint8), [None, None], "Unknown label type"),
    "no labels": (np.zeros((2, 16, 16, 3), np.uint8), None, "requires y"),
    "more labels than slots": (np.zeros((12, 16, 16, 3), np.uint8), [f"new {i}" for i in range(12)], "12 new labels"),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_is_refused_and_changes_nothing(seer, name):
    X, y, message = BAD_BATCHES[name]
    before = fingerprint(seer)
    with pytest.raises(ValueError, match=message):
        seer.partial_fit(X, y)
    assert fingerprint(seer) == before


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_first_batch_leaves_it_unfitted(name):
    X, y, _ = BAD_BATCHES[name]
    if name in ("another size", "vectors", "labels of another kind", "more labels than slots"):
        pytest.skip("nothing wrong with it as a first batch")
    clf = small(slots=8)
    attributes = dict(vars(clf))
    with pytest.raises(ValueError):
        clf.partial_fit(X, y)
    assert vars(clf) == attributes
    with pytest.raises(NotFittedError):
        clf.predict(np.zeros((1, 16, 16, 3), np.uint8))


def test_an_error_in_the_middle_of_training_changes_nothing(three, monkeypatch):
    from holdfast.methods.replay import Replay

    before, steps, real = fingerprint(three), iter(range(100)), Replay.observe

    def breaks(self, images, slots):
        if next(steps) == 5:
            raise KeyboardInterrupt
        return real(self, images, slots)

    monkeypatch.setattr(Replay, "observe", breaks)
    with pytest.raises(KeyboardInterrupt):
        three.partial_fit(blobs([3])[0], ["dog"] * 40)
    assert fingerprint(three) == before


def test_a_loss_that_explodes_is_an_error_that_names_the_rate(three):
    clf = copy.deepcopy(three)
    clf.model_.method.optimizer.param_groups[0]["lr"] = 1e30
    before = fingerprint(clf)
    with pytest.raises(LossNotFinite, match="as it was before"):
        clf.partial_fit(blobs([3])[0], ["dog"] * 40)
    assert fingerprint(clf) == before


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"head": "simplx"}, "Did you mean 'simplex'"),
        ({"backbone": "lenett"}, "Did you mean"),
        ({"recipe": "weak"}, "recipe"),
        ({"policy": "none"}, "policy"),
        ({"epochs": "many"}, "auto"),
        ({"epochs": 0}, "epochs"),
        ({"slots": 0}, "slots"),
        ({"lr": -1}, "lr"),
        ({"held_back": 1.5}, "held_back"),
        ({"held_back": "some"}, "held_back"),
        ({"slots": 5.5}, "slots is 5.5"),
        ({"epochs": 2.5}, "epochs is 2.5"),
        ({"memory": "200"}, "memory is '200'"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"augment": "shift"}, "for images"),
        ({"augment_memory": "shift"}, "augment_memory is 'shift', which is for images"),
        ({"balance": "yes"}, "balance is 'yes'"),
        ({"head": "cube", "slots": 2**40}, "turn balance off .balance=False"),
        ({"backbone": "lenet"}, "mlp"),
        ({"memory": 2, "held_back": 0}, "memory of 2"),
        ({"device": "gpu9"}, "device"),
    ],
)
def test_wrong_parameters_are_named(changes, message):
    with pytest.raises((BadConfig, BadInput, KeyError), match=message):
        small(**changes).fit(*blobs([0, 1, 2]))


# Forgetting, on purpose.


def test_forgetting_a_label_frees_its_slot_and_its_memory(three):
    clf = copy.deepcopy(three)
    slot = clf.model_.labels.slots["bee"]
    clf.forget("bee")
    assert clf.classes_.tolist() == ["ant", "cat"]
    for memory in (clf.model_.memory, clf.model_.held):
        assert slot not in memory.slots[: len(memory)].tolist() and len(memory) > 0
    X, _ = blobs([0, 1, 2], seed=2)
    assert "bee" not in clf.predict(X)
    with pytest.raises(BadInput, match="no label 'bee'"):
        clf.forget("bee")
    with pytest.raises(BadInput, match="one label at a time"):
        clf.forget(["ant"])
    clf.partial_fit(blobs([4])[0], ["eel"] * 40)
    assert clf.model_.labels.slots["eel"] == 3, "a slot that was never used comes first"
    assert three.classes_.tolist() == ["ant", "bee", "cat"], "the copy was forgotten from, not the original"


def test_a_forgotten_class_is_in_no_remembered_logits_and_the_model_is_saved_so(tmp_path):
    clf = small(distill="logits", epochs=1).fit(*blobs([0, 1, 2])).forget(1)
    memory = clf.model_.memory
    logits = memory.notes["logits"][: len(memory)]
    assert logits.isnan().sum(0).tolist() == [0, len(memory)] + [0] * 10
    clf.save(tmp_path)
    again = IncrementalClassifier.load(tmp_path)
    assert torch.equal(again.model_.memory.notes["logits"].isnan(), logits.isnan())
    assert IncrementalClassifier.load(small(distill="logits", head="expanding").fit(*blobs([0])).save(tmp_path))
    clf.partial_fit(*blobs([3]))
    assert all(value.isfinite().all() for value in clf.model_.learner.parameters())


def test_a_full_model_takes_a_forgotten_slot_again():
    X, y = blobs([0, 1])
    clf = small(slots=2, epochs=3).fit(X, y)
    with pytest.raises(BadInput, match="0 free slots of 2"):
        clf.partial_fit(blobs([2])[0], [2] * 40)
    clf.forget(0).partial_fit(blobs([2])[0], [2] * 40)
    assert clf.model_.labels.slots == {1: 1, 2: 0}
    with pytest.raises(BadInput, match="no label True"):
        clf.forget(True)  # which Python takes for 1
    clf.forget(1).forget(2)
    with pytest.raises(BadConfig, match="forgotten"):
        clf.predict(X)


# None of these.


def test_samples_of_no_class_are_more_novel_and_can_be_rejected():
    X, y = blobs(range(4), per_class=100)
    clf = small(epochs=20, memory=400).fit(X, y)
    known, _ = blobs(range(4), seed=8)
    strange, _ = blobs([7, 8], seed=8)
    assert np.median(clf.novelty(strange)) > np.median(clf.novelty(known))
    found = clf.predict(known, reject=0.1)
    refused = np.mean([label is None for label in found])
    assert refused < 0.25 and found.dtype == object
    assert np.mean([label is None for label in clf.predict(strange, reject=0.1)]) > refused


def test_rejecting_needs_something_to_calibrate_on(three):
    with pytest.raises(BadConfig, match="reject is 2"):
        three.predict(blobs([0])[0], reject=2)
    bare = small(held_back=0, epochs=1).fit(*blobs([0, 1]))
    with pytest.raises(BadInput, match="too few"):
        bare.predict(blobs([0])[0], reject=0.05)


# Held-back samples.


def test_held_back_samples_are_never_trained_on(monkeypatch):
    from holdfast.learning.method import Method

    seen, real = [], Method.observe
    monkeypatch.setattr(Method, "observe", lambda self, x, s: (seen.append(x.clone()), real(self, x, s))[1])
    clf = small(epochs=2)
    for label in (0, 1):
        clf.partial_fit(*blobs([label], seed=label))
    held = clf.model_.held
    trained = {row.tobytes() for batch in seen for row in batch.numpy()}
    assert len(held) == 8
    assert not trained & {row.tobytes() for row in held.images[: len(held)].numpy()}
    assert len(trained) == 72


def test_the_model_is_the_copy_it_was_trained_as(three):
    assert isinstance(three.model_, Model) and three.model_.history[-1]["classes"] == ["ant", "bee", "cat"]


# The same learning as a run's.


def test_taught_the_same_it_learns_what_a_run_learns_to_the_last_bit(tiny_stream):
    """Given the run's normalisation, and with nothing held back."""
    from holdfast.runs.build import make_trainer
    from holdfast.runs.config import Config

    stream = tiny_stream()
    settings = {"backbone": "lenet", "slots": 10, "memory": 12, "policy": "class", "epochs": 2, "batch": 8}
    config = Config("split-digits", balance=True, distill="features", augment="shift", **settings).resolved()
    trainer = make_trainer(config, stream, torch.device("cpu"))
    trainer.run()
    clf = IncrementalClassifier(**settings, normalise=(stream.mean, stream.std), held_back=0, device="cpu")
    for task in stream.tasks:
        images, slots = task.train.batch(torch.arange(len(task.train)))
        clf.partial_fit(images, slots)
    learned = clf.model_.learner.state_dict()
    for name, value in trainer.learner.state_dict().items():
        assert torch.equal(learned[name], value), name


def test_a_normalisation_that_is_given_is_used_and_saved(tmp_path):
    X, y = blobs([0, 1])
    clf = small(normalise=(0.5, [0.25] * X.shape[1]), epochs=1).fit(X, y)
    assert clf.model_.learner.shift.flatten().tolist() == [0.5] * X.shape[1]
    assert clf.model_.learner.scale.flatten().tolist() == [4.0] * X.shape[1]
    clf.save(tmp_path)
    again = IncrementalClassifier.load(tmp_path)
    assert again.normalise == (0.5, [0.25] * X.shape[1])
    np.testing.assert_array_equal(again.embed(X), clf.embed(X))


@pytest.mark.parametrize("wrong", ["imagenet", 0.5, (0.5, 0.0), (0.5, [0.1, 0.2, 0.3]), (float("nan"), 1.0), None])
def test_a_normalisation_that_cannot_be_is_refused(wrong):
    with pytest.raises(BadConfig, match="normalise is"):
        small(normalise=wrong).fit(*blobs([0, 1]))
