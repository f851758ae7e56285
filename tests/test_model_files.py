"""Saving and loading a model: whole or not at all, and nothing that a file says is believed."""

import copy
import json

import numpy as np
import pytest
import torch

from steadfast import IncrementalClassifier, files
from steadfast.errors import BadConfig, BadFile, NewerFile
from steadfast.estimator.model_files import NAME


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
    with pytest.raises(BadConfig, match="slots cannot change: the model has begun with slots=8"):
        clf.save(tmp_path)
    clf.set_params(slots=8, lr=0.005).save(tmp_path)
    loaded = IncrementalClassifier.load(tmp_path)
    assert loaded.lr == loaded.model_.config.lr == 0.005


def test_a_network_of_ones_own_is_asked_for(tmp_path):
    def network():
        return torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU())

    X, y = vectors([0, 1])
    clf = IncrementalClassifier(backbone=network(), slots=4, memory=20, epochs=2).fit(X, y)
    clf.save(tmp_path)
    with pytest.raises(BadConfig, match="network of its own"):
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
    with pytest.raises(BadFile, match="holds no model"):
        IncrementalClassifier.load(tmp_path)


def claim(path, **changes):
    """Rewrite the file as someone hostile would: any claim, with a digest that fits it."""
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
        {"model_format": 2},
        {"config__slots": 10**15},
        {"config__slots": 9},
        {"config__memory": 10**12},
        {"config__memory": 10},
        {"config__backbone": "timm:hf-hub:someone/something"},
        {"config__backbone": "resnet110"},
        {"config__head": "os.system"},
        {"config__tomorrow": 1},
        {"config__method": "gem"},
        {"shape": [10**9]},
        {"shape": [3, 10**6, 10**6]},
        {"shape": []},
        {"shape": "abc"},
        {"share": 5},
        {"parameters__tomorrow": 1},
        {"parameters__slots": 5},
        {"parameters__memory": 61},
        {"parameters__batch": 10**6},
        {"parameters__epochs": 1},
        {"parameters__lr": 1.0},
        {"parameters__held_back": 0.5},
        {"parameters__head": "expanding"},
        {"parameters__recipe": "paper"},
        {"parameters__backbone": "resnet20"},
        {"parameters__normalise": [0.0, 1.0]},
        {"config__lr": 0.5},
        {"config__batch": 64},
        {"position__rates": [0.5]},
        {"own_backbone": ["a", "list"]},
        {"labels": {"slots": [[0, 0], [1, 0]], "used": 2, "freed": []}},
        {"labels": {"slots": [[0, 0], ["one", 1], [2, 2]], "used": 3, "freed": []}},
        {"labels": {"slots": [[[], 0]], "used": 1, "freed": []}},
        {"labels": {"slots": [[0, 0], [1, 1]], "used": 2, "freed": []}},
        {"labels": None},
        {"taught": "many"},
        {"history": 5},
        {"history": [{"accuracy": "high"}]},
        {"history": [{"stability": {"recall": [1, 2]}}]},
        {"stability": {}},
        {"stability__recall": "all"},
        {"stability__classes": [dict.fromkeys(["label", "samples", "moved_since_learned", "recall"], "a")]},
        {"position": {"task": 0, "evil": 1}},
        {"epochs": -3},
    ],
    ids=str,
)
def test_a_hostile_file_is_refused_before_anything_large_is_built(saved, changes):
    claim(saved, **changes)
    with pytest.raises(BadFile):
        IncrementalClassifier.load(saved)


def test_a_newer_format_is_told_from_a_damaged_file(saved):
    claim(saved, model_format=2)
    with pytest.raises(NewerFile, match="upgrade"):
        IncrementalClassifier.load(saved)
    claim(saved, model_format="one")
    with pytest.raises(BadFile, match="no steadfast has written"):
        IncrementalClassifier.load(saved)


@pytest.mark.parametrize("name", ["learner.backbone.linear1.weight", "method.memory.images", "held.notes.stored"])
def test_values_that_are_not_finite_are_refused(saved, name):
    tensors, state = files.read_tensors(saved / NAME)
    tensors[name].view(-1)[3] = float("nan")
    files.write_tensors(saved / NAME, tensors, state)
    with pytest.raises(BadFile, match=f"NaN or infinite values in {name}"):
        IncrementalClassifier.load(saved)


@pytest.mark.parametrize("name", ["learner.head.junction.weight", "method.memory.slots", "held.counts", "generator"])
def test_tensors_that_do_not_fit_are_refused(saved, name):
    tensors, state = files.read_tensors(saved / NAME)
    for value in (None, torch.full((3,), 99), torch.full_like(tensors[name], 127)[..., :-1].contiguous()):
        changed = {k: v for k, v in tensors.items() if k != name} | ({} if value is None else {name: value})
        files.write_tensors(saved / NAME, changed, state)
        with pytest.raises(BadFile):
            IncrementalClassifier.load(saved)
