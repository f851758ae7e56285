"""Saving and loading a model: whole or not at all, and nothing in a file is imported, fetched or unpickled."""

import copy
import json

import numpy as np
import pytest
import torch

from holdfast import IncrementalClassifier, files
from holdfast.errors import BadConfig, BadFile, NewerFile
from holdfast.estimator.model_files import NAME


def vectors(classes, seed=0, per_class=25):
    draw = np.random.RandomState(seed)
    centres = np.random.RandomState(7).normal(scale=6, size=(8, 5))
    y = np.repeat(list(classes), per_class)
    return centres[y] + draw.normal(size=(len(y), 5)), y


@pytest.fixture(scope="module")
def taught():
    clf = IncrementalClassifier(slots=8, memory=60, epochs=4, image_size=None)
    for classes in ([0, 1], [2]):
        clf.partial_fit(*vectors(classes))
    return clf


@pytest.fixture
def saved(taught, tmp_path):
    taught.save(tmp_path / "m")
    return tmp_path / "m"


def test_a_loaded_model_is_the_same_and_learns_on_to_the_same_bits(taught, saved):
    loaded = IncrementalClassifier.load(saved)
    X, _ = vectors(range(3), seed=4)
    assert np.array_equal(loaded.predict_proba(X), taught.predict_proba(X))
    assert np.array_equal(loaded.embed(X), taught.embed(X))
    assert str(loaded.stability_) == str(taught.stability_) and loaded.get_params() == taught.get_params()
    more = vectors([3, 0], seed=5)
    again = IncrementalClassifier.load(saved).partial_fit(*more)
    once = loaded.partial_fit(*more)
    assert np.array_equal(again.predict_proba(X), once.predict_proba(X))
    original = IncrementalClassifier.load(saved)
    assert original.classes_.tolist() == [0, 1, 2]


@pytest.mark.parametrize("first, later", [("auto", 3), (2, "auto")], ids=["solved", "replay"])
def test_a_parameter_of_training_that_changes_later_does_not_change_the_method(first, later, tmp_path):
    """`method` is "auto" in the file, and the parameters of the last batch would choose another one."""
    clf = IncrementalClassifier(slots=8, memory=60, epochs=first).partial_fit(*vectors([0, 1]))
    method = clf.method_
    clf.set_params(epochs=later).partial_fit(*vectors([2])).save(tmp_path)
    loaded = IncrementalClassifier.load(tmp_path)
    X, _ = vectors(range(3), seed=4)
    assert loaded.method_ == method
    assert np.array_equal(loaded.predict_proba(X), clf.predict_proba(X))


@pytest.mark.parametrize("head", ["expanding", "preallocated", "orthoplex", "cube"])
def test_every_head_is_saved(head, tmp_path):
    X, y = vectors([0, 1])
    clf = IncrementalClassifier(head=head, slots=8, memory=40, epochs=2).fit(X, np.array(["a", "b"])[y])
    clf.save(tmp_path)
    assert np.array_equal(IncrementalClassifier.load(tmp_path).predict_proba(X), clf.predict_proba(X))


def test_images_a_forgotten_class_and_a_pair_of_sizes_survive(tmp_path):
    draw = np.random.RandomState(0)
    clf = IncrementalClassifier(backbone="lenet", slots=4, memory=20, epochs=1, image_size=(8, 12))
    clf.fit(list(draw.randint(0, 255, (12, 9, 9, 3)).astype(np.uint8)), ["a", "b", "c"] * 4).forget("b")
    clf.save(tmp_path)
    loaded = IncrementalClassifier.load(tmp_path)
    assert loaded.model_.labels == clf.model_.labels and loaded.image_size == (8, 12)
    X = draw.randint(0, 255, (3, 8, 12, 3)).astype(np.uint8)
    assert np.array_equal(loaded.embed(X), clf.embed(X))


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, lambda part: np.asarray(part, dtype=np.float32)])
def test_parameters_that_are_numpys_or_torchs_are_saved(kind, tmp_path):
    X, y = vectors([0, 1])
    clf = IncrementalClassifier(
        slots=np.int64(5), memory=np.int32(40), epochs=np.int64(2), batch=np.int16(16), lr=np.float32(0.001),
        held_back=np.float64(0.1), random_state=np.int64(3), normalise=(kind(X.mean(0)), kind(X.std(0))),
    ).fit(X, y)
    clf.save(tmp_path)
    loaded = IncrementalClassifier.load(tmp_path)
    assert np.array_equal(loaded.embed(X), clf.embed(X)) and loaded.slots == 5 and loaded.random_state == 3
    plain = IncrementalClassifier(
        slots=5, memory=40, epochs=2, batch=16, lr=float(np.float32(0.001)), random_state=3,
        normalise=tuple(kind(part).tolist() for part in (X.mean(0), X.std(0))),
    ).fit(X, y)
    assert np.array_equal(plain.embed(X), clf.embed(X)), "the same values make the same model"


def test_what_is_saved_is_what_the_model_is(taught, tmp_path):
    clf = copy.deepcopy(taught).set_params(slots=50)
    with pytest.raises(BadConfig, match="slots cannot change: the model was started with slots=8"):
        clf.save(tmp_path)
    clf.set_params(slots=8, lr=0.005).save(tmp_path)
    loaded = IncrementalClassifier.load(tmp_path)
    assert loaded.lr == loaded.model_.settings.lr == 0.005


def test_a_network_of_ones_own_is_asked_for(tmp_path):
    def network():
        return torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU())

    X, y = vectors([0, 1])
    clf = IncrementalClassifier(backbone=network(), slots=4, memory=20, epochs=2).fit(X, y)
    clf.save(tmp_path)
    with pytest.raises(BadConfig, match="trained with a network of yours"):
        IncrementalClassifier.load(tmp_path)
    assert np.array_equal(IncrementalClassifier.load(tmp_path, backbone=network()).embed(X), clf.embed(X))
    for wrong, message in ((torch.nn.Linear(5, 3), "backbone is a Linear"), (torch.nn.Linear(9, 3), "inputs of shape")):
        with pytest.raises(BadConfig, match=message):  # the caller's fault, not the file's
            IncrementalClassifier.load(tmp_path, backbone=wrong)


def test_a_network_for_a_model_that_has_one_by_name_is_refused(saved):
    with pytest.raises(BadConfig, match="leave it out"):
        IncrementalClassifier.load(saved, backbone=torch.nn.Linear(5, 16))


def test_a_save_cut_off_in_the_middle_leaves_the_old_model(taught, saved, monkeypatch):
    before = (saved / NAME).read_bytes()

    def cut_off(*names):
        raise OSError("the power went")

    monkeypatch.setattr(files.os, "replace", cut_off)
    with pytest.raises(OSError, match="power"):
        taught.save(saved)
    assert (saved / NAME).read_bytes() == before and [p.name for p in saved.iterdir()] == [NAME]


@pytest.mark.parametrize("share", [0, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(saved, share):
    content = (saved / NAME).read_bytes()
    (saved / NAME).write_bytes(content[: int(share * len(content))])
    with pytest.raises(BadFile):
        IncrementalClassifier.load(saved)


def test_flipped_bytes_are_refused(saved):
    content = bytearray((saved / NAME).read_bytes())
    for at in range(8, len(content), len(content) // 40):
        changed = bytearray(content)
        changed[at] ^= 0xFF
        (saved / NAME).write_bytes(bytes(changed))
        with pytest.raises(BadFile):
            IncrementalClassifier.load(saved)


def test_no_model_at_all_is_said_plainly(tmp_path):
    with pytest.raises(BadFile, match="no model in"):
        IncrementalClassifier.load(tmp_path / "nowhere")
    files.write_tensors(tmp_path / NAME, {"a": torch.zeros(1)}, {"what": "another thing"})
    with pytest.raises(BadFile, match="is not a model"):
        IncrementalClassifier.load(tmp_path)


def rewrite(path, **changes):
    """Write the file again with other values and a digest that fits them, as another version of holdfast might."""
    tensors, state = files.read_tensors(path / NAME)
    for name, value in changes.items():
        *parents, last = name.split("__")
        inner = state
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    files.write_tensors(path / NAME, tensors, json.loads(json.dumps(state)))


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters__backbone": "timm:hf-hub:someone/something"},
        {"parameters__backbone": "os.system"},
        {"parameters__head": "os.system"},
        {"parameters__policy": "os.system"},
        {"parameters__tomorrow": 1},
        {"parameters__slots": 9},
        {"parameters": None},
        {"shape": "abc"},
        {"labels": None},
        {"stability": {}},
        {"position": {"task": 0}},
    ],
    ids=str,
)
def test_names_in_a_file_are_looked_up_and_what_does_not_fit_is_refused(saved, changes):
    rewrite(saved, **changes)
    with pytest.raises(BadFile, match="is not a model that can be read"):
        IncrementalClassifier.load(saved)


def test_a_newer_format_is_told_from_a_damaged_file(saved):
    rewrite(saved, model_format=2)
    with pytest.raises(NewerFile, match="upgrade"):
        IncrementalClassifier.load(saved)
    rewrite(saved, model_format="one")
    with pytest.raises(BadFile, match="no holdfast has written"):
        IncrementalClassifier.load(saved)


@pytest.mark.parametrize("name", ["learner.head.junction.weight", "generator", "normalise.shift"])
def test_a_file_without_a_tensor_that_the_model_needs_is_refused(saved, name):
    tensors, state = files.read_tensors(saved / NAME)
    files.write_tensors(saved / NAME, {k: v for k, v in tensors.items() if k != name}, state)
    with pytest.raises(BadFile, match="is not a model that can be read"):
        IncrementalClassifier.load(saved)


def test_a_file_holds_the_parameters_once_and_the_model_follows_from_them(taught, saved):
    _, state = files.read_tensors(saved / NAME)
    assert "config" not in state and state["parameters"]["slots"] == 8
    loaded = IncrementalClassifier.load(saved)
    assert loaded.model_.settings == taught.model_.settings
