"""The estimator's embedder from outside: watched, shared and checked through public names only."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.errors import BadConfig
from holdfast.estimator import IncrementalClassifier

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"


def lengths(texts: list[str]) -> np.ndarray:
    return np.array([[len(text), text.count("a")] for text in texts], dtype=np.float32)


def taught() -> IncrementalClassifier:
    return IncrementalClassifier(slots=5, embedder=lengths, device="cpu").partial_fit(
        ["a", "aa", "aaa", "bbbb", "bbbbb", "bbbbbb"], ["a"] * 3 + ["b"] * 3)


def test_a_watcher_hears_of_every_embedded_sample_and_can_be_taken_away() -> None:
    clf, seen = taught(), []
    clf.watch = seen.append
    clf.predict(["aa", "bbbb", "bbb"])
    assert sum(seen) == 3
    clf.watch = None
    clf.predict(["aa"])
    assert sum(seen) == 3


def test_an_opened_embedder_is_shared_and_not_opened_again(tmp_path: Path) -> None:
    clf = taught()
    clf.save(tmp_path)
    other = IncrementalClassifier.load(tmp_path, device="cpu")
    other.share_embedder(clf)
    assert other.check_embedder() is clf.check_embedder()
    assert other.predict(["aa", "bbbbb"]).tolist() == ["a", "b"]


def test_another_embedder_is_refused() -> None:
    clf = taught()
    other = IncrementalClassifier(embedder=lambda texts: lengths(texts) * 2, device="cpu").partial_fit(["a"], ["a"])
    clf.share_embedder(other)
    with pytest.raises(BadConfig, match="vectors of another embedder"):
        clf.check_embedder()


def test_embed_tensor_gives_the_vectors_of_embed() -> None:
    clf = taught()
    np.testing.assert_array_equal(clf.embed_tensor(["aa", "b"]).cpu().numpy(), clf.embed(["aa", "b"]))


@pytest.mark.parametrize("package", ["cli", "serving"])
def test_no_private_member_of_an_estimator_is_used_outside(package: str) -> None:
    def private(node: Any) -> bool:
        named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute)
        owner = getattr(node.value, "id", getattr(node.value, "attr", "")) if named else ""
        return named and owner in ("clf", "estimator") and node.attr.startswith("_") and node.attr[:2] != "__"

    found = [f"{path.name}:{node.lineno} {node.attr}" for path in sorted((SOURCE / package).glob("*.py"))
             for node in ast.walk(ast.parse(path.read_text())) if private(node)]
    assert not found


def test_a_new_fit_takes_the_embedder_that_set_params_named() -> None:
    clf = taught()
    clf.set_params(embedder=lambda texts: lengths(texts) * 2)
    with pytest.raises(BadConfig, match="vectors of another embedder"):
        clf.predict(["aa"])
    with pytest.raises(BadConfig, match="vectors of another embedder"):
        clf.partial_fit(["cc"], ["c"])
    clf.fit(["a", "bb"], ["a", "b"])
    assert clf.embed(["aa"]).tolist() == [[4.0, 4.0]]


def test_models_of_different_embedders_are_not_merged() -> None:
    other = IncrementalClassifier(slots=5, embedder=lambda texts: lengths(texts) * 2, device="cpu")
    other.partial_fit(["c", "cc"], ["c", "c"])
    with pytest.raises(BadConfig, match=r"taught with the embedders own:lengths .* and own:test_models.* do not mix"):
        taught().merge(other)
