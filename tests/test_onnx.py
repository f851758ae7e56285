"""A model exported to ONNX says what PyTorch says."""

import json

import numpy as np
import pytest

from holdfast import IncrementalClassifier
from holdfast.errors import BadConfig

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="the extra onnx is not installed")


@pytest.mark.parametrize(
    "kind, backbone, sphere", [("images", "lenet", None), ("images", "auto", None), ("vectors", "auto", 0.9)]
)
def test_onnxruntime_agrees(kind, backbone, sphere, tmp_path):
    import onnxruntime

    draw = np.random.RandomState(0)
    X = draw.randint(0, 255, (12, 3, 8, 8)).astype(np.uint8) if kind == "images" else draw.normal(size=(12, 6))
    clf = IncrementalClassifier(backbone, slots=6, memory=20, epochs=2, vertex_probability=sphere)
    clf.fit(X, ["b", "a", "c"] * 4).forget("a")
    session = onnxruntime.InferenceSession(str(clf.export(tmp_path / "m.onnx")))
    given = X[:5] if kind == "images" else X[:5].astype(np.float32)
    embedding, probabilities = session.run(None, {"inputs": given})
    assert np.allclose(embedding, clf.embed(X[:5]), atol=1e-4)
    assert np.allclose(probabilities, clf.predict_proba(X[:5]), atol=1e-4)
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == ["b", "c"]
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_a_model_without_classes_is_not_exported(tmp_path):
    clf = IncrementalClassifier(slots=4, memory=20, epochs=1).fit(np.eye(4), ["a"] * 4)
    with pytest.raises(BadConfig, match="nothing to export"):
        clf.forget("a").export(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("width", [0, 64])
def test_a_model_on_patch_features_is_exported_with_and_without_random_ones(width, tmp_path):
    import onnxruntime

    images = np.random.RandomState(0).randint(0, 255, (40, 3, 8, 8)).astype(np.uint8)
    clf = IncrementalClassifier(width=width).fit(images, ["a", "b"] * 20)
    session = onnxruntime.InferenceSession(str(clf.export(tmp_path / "m.onnx")))
    embedding, probabilities = session.run(None, {"inputs": images[:5]})
    assert np.allclose(embedding, clf.embed(images[:5]), atol=1e-4)
    assert np.allclose(probabilities, clf.predict_proba(images[:5]), atol=1e-4)
