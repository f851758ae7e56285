"""A model folder keeps its last few versions; one rename changes which is in use; a gate can refuse a new one."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.errors import BadConfig, BadFile, BadInput
from holdfast.estimator import IncrementalClassifier, gate, versions
from holdfast.estimator.gate import Gate
from holdfast.estimator.model_files import NAME

DIM = 6


def samples(names: str, count: int = 12, seed: int = 0, noise: float = 0.1) -> tuple[np.ndarray, list[str]]:
    """Vectors around one axis per letter: a is axis 0, b axis 1, ..."""
    draw = np.random.RandomState(seed)
    labels = [name for name in names for _ in range(count)]
    centres = np.eye(DIM)[["abcdef".index(name) for name in labels]]
    return (centres + noise * draw.normal(size=centres.shape)).astype(np.float32), labels


def taught(names: str, **parameters: object) -> IncrementalClassifier:
    return IncrementalClassifier(slots=20, device="cpu", **parameters).partial_fit(*samples(names))


def test_an_old_folder_gets_a_number_when_a_new_version_is_kept(tmp_path: Path) -> None:
    clf = taught("ab")
    clf.save(tmp_path)  # as every folder before versions
    assert [(v.number, v.current, v.classes) for v in versions.history(tmp_path)] == [(1, True, 2)]
    assert not (tmp_path / versions.FOLDER).exists()  # reading changes nothing
    versions.keep(clf.partial_fit(*samples("c")), tmp_path)
    assert [(v.number, v.current, v.classes) for v in versions.history(tmp_path)] == [(1, False, 2), (2, True, 3)]


def test_rollback_serves_the_bits_of_the_older_version_and_forward_again(tmp_path: Path) -> None:
    clf = taught("ab")
    versions.keep(clf, tmp_path)
    first = (tmp_path / NAME).read_bytes()
    versions.keep(clf.partial_fit(*samples("c")), tmp_path)
    second = (tmp_path / NAME).read_bytes()
    assert versions.rollback(tmp_path).number == 1
    assert (tmp_path / NAME).read_bytes() == first != second
    assert IncrementalClassifier.load(tmp_path).classes_.tolist() == ["a", "b"]
    assert versions.rollback(tmp_path, 2).number == 2
    assert (tmp_path / NAME).read_bytes() == second
    versions.rollback(tmp_path, 1)
    assert versions.keep(clf, tmp_path).number == 3  # a number is never used twice
    with pytest.raises(BadInput, match="no version 77 to go back to; 3 is in use"):
        versions.rollback(tmp_path, 77)


def test_rollback_returns_to_the_version_that_the_current_one_was_learned_from(tmp_path: Path) -> None:
    clf = taught("ab")
    for name in "cde":
        versions.keep(clf, tmp_path)
        clf.partial_fit(*samples(name))
    versions.rollback(tmp_path, 1)  # 2 and 3 are abandoned
    versions.keep(IncrementalClassifier.load(tmp_path).partial_fit(*samples("f")), tmp_path)
    assert versions.rollback(tmp_path).number == 1
    versions.rollback(tmp_path, 3)
    assert versions.rollback(tmp_path).number == 2
    (tmp_path / versions.FOLDER / "000001.safetensors").unlink()
    versions.rollback(tmp_path, 4)
    assert versions.rollback(tmp_path).number == 3  # 1 is gone: the newest of those before


def test_only_the_last_few_stay_and_the_one_in_use_always_does(tmp_path: Path) -> None:
    clf = taught("ab")
    versions.keep(clf, tmp_path)
    for seed in range(8):
        clf.partial_fit(*samples("a", count=2, seed=seed))
        versions.keep(clf, tmp_path)
    numbers = [v.number for v in versions.history(tmp_path)]
    assert numbers == list(range(9 - versions.KEPT, 10))
    versions.rollback(tmp_path, numbers[0])
    for seed in range(versions.KEPT_REJECTED + 2):
        versions.keep(clf.partial_fit(*samples("a", count=2, seed=seed)), tmp_path, rejected=True)
    known = versions.history(tmp_path)
    assert next(v for v in known if v.current).number == numbers[0]
    assert sum(v.rejected for v in known) == versions.KEPT_REJECTED


def test_a_damaged_old_version_stops_nothing(tmp_path: Path) -> None:
    clf = taught("ab")
    versions.keep(clf, tmp_path)
    versions.keep(clf.partial_fit(*samples("c")), tmp_path)
    first = versions.history(tmp_path)[0].path
    first.unlink()
    first.write_bytes(b"\xff" * 100)
    assert [v.number for v in versions.history(tmp_path)] == [2]
    assert versions.keep(clf.partial_fit(*samples("d")), tmp_path).number == 3


def test_history_of_nothing_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"model\.safetensors"):
        versions.history(tmp_path)


def keep_and_die(clf: IncrementalClassifier, folder: Path, steps: int) -> bool:
    """Keep a version in a child process that is killed at its step-th change of the disk; return True if it ended."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    done = 0
    for name in ("replace", "link", "unlink", "fsync"):

        def killed(*words: object, whole: object = getattr(os, name), **more: object) -> object:
            nonlocal done
            done += 1
            if done > steps:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(*words, **more)  # type: ignore[operator]

        setattr(os, name, killed)
    versions.keep(clf, folder)
    os._exit(0)


@pytest.mark.slow
def test_a_kill_before_any_step_of_keeping_leaves_the_old_or_the_new_model(tmp_path: Path) -> None:
    """Every call that changes the disk is a place to be killed; each is tried."""
    old, new, seen = taught("ab"), taught("abc"), set()
    for steps in range(40):
        m = tmp_path / str(steps)
        versions.keep(old, m)
        ended = keep_and_die(new, m, steps)
        classes = IncrementalClassifier.load(m, device="cpu").classes_.tolist()
        assert classes in (["a", "b"], ["a", "b", "c"])
        assert sum(v.current for v in versions.history(m)) == 1
        seen.add((ended, len(classes)))
        if ended:
            break
    assert seen == {(False, 2), (False, 3), (True, 3)} and steps > 5


# The gate.


def test_the_left_out_accuracy_is_that_of_models_that_never_saw_the_sample() -> None:
    """Independent derivation: refit without each held sample, with the same width, and count."""
    x, y = samples("abc", count=8, noise=0.6, seed=3)
    clf = IncrementalClassifier(slots=20, width=0, device="cpu").partial_fit(x, y)
    found, count = gate.held_accuracy(clf.model_)
    penalty = clf.model_.solver.choice.penalty
    right = []
    for row in range(len(x)):
        keep = np.arange(len(x)) != row
        one = IncrementalClassifier(slots=20, width=0, device="cpu")
        one.partial_fit(x[keep], [y[i] for i in np.flatnonzero(keep)])
        solver = one.model_.solver
        solver.options = replace(solver.options, penalty=penalty)
        solver._clear()
        right.append(one.predict(x[row : row + 1])[0] == y[row])
    assert count == len(x) and found == pytest.approx(np.mean(right))


@pytest.mark.parametrize("method", ["solved", "replay"])
def test_a_worse_model_is_kept_aside_and_says_so(tmp_path: Path, method: str) -> None:
    more = {} if method == "solved" else {"epochs": 8, "memory": 400, "held_back": 0.4}
    clf = IncrementalClassifier(slots=20, method=method, device="cpu", **more)
    clf.partial_fit(*samples("ab", count=60))
    versions.keep(clf, tmp_path)
    before, (x, y) = clf.model_, samples("ab", count=240, seed=2)
    clf.partial_fit(x, [{"a": "b", "b": "a"}[each] for each in y])  # wrong labels
    version, verdict = gate.admit(Gate(no_worse_by=0.02), before, clf, tmp_path)
    assert not verdict.passed and version.rejected and verdict.after < verdict.before
    assert next(v for v in versions.history(tmp_path) if v.current).number == 1
    assert versions.rollback(tmp_path, version.number).number == version.number  # used anyway, as asked


def test_too_few_samples_do_not_pass_a_gate_and_wrong_shares_are_refused(tmp_path: Path) -> None:
    clf = taught("ab", memory=4)
    verdict = gate.judge(Gate(better_than=0.1), None, clf.model_)
    assert not verdict.passed and "cannot be judged: there are 4 held-back samples, and 20 are needed" in verdict.reason
    assert gate.judge(Gate(no_worse_by=0.1), None, clf.model_).passed, "nothing was known before"
    with pytest.raises(BadConfig, match="keep-if-better-than is 90"):
        Gate(better_than=90)


def holdfast(*words: object) -> object:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_learn_keeps_versions_and_the_gate_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    for name, (x, y) in {"good": samples("ab", 30), "noise": samples("cd", 30, noise=3.0)}.items():
        np.savez(tmp_path / f"{name}.npz", vectors=x, labels=np.array(y))
    m = tmp_path / "m"
    assert holdfast("learn", tmp_path / "good.npz", "--model", m, "--keep-if-better-than", "0.9").exit_code == 0
    refused = holdfast("learn", tmp_path / "noise.npz", "--model", m, "--keep-if-better-than", "0.9")
    assert refused.exit_code == 3 and "Not kept" in refused.output and "version 2" in refused.output
    assert IncrementalClassifier.load(m).classes_.tolist() == ["a", "b"]
    assert holdfast("learn", tmp_path / "noise.npz", "--model", m).exit_code == 0
    assert all(version.accuracy is not None for version in versions.history(m))  # with a gate or without
    listed = holdfast("history", m)
    assert listed.exit_code == 0 and "in use" in listed.output and "rejected" in listed.output
    assert holdfast("rollback", m).exit_code == 0
    assert IncrementalClassifier.load(m).classes_.tolist() == ["a", "b"]
    missing = holdfast("rollback", tmp_path / "nowhere")
    assert missing.exit_code == 1 and not (tmp_path / "nowhere").exists()
