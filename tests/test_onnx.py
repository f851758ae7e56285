"""A model exported to ONNX says what PyTorch says."""

import json

import numpy as np
import pytest

from holdfast import IncrementalClassifier
from holdfast.errors import BadConfig

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="the extra onnx is not installed")


@pytest.mark.parametrize("kind, backbone", [("images", "lenet"), ("images", "auto"), ("vectors", "auto")])
def test_onnxruntime_agrees(kind, backbone, tmp_path):
    import onnxruntime

    draw = np.random.RandomState(0)
    X = draw.randint(0, 255, (12, 3, 8, 8)).astype(np.uint8) if kind == "images" else draw.normal(size=(12, 6))
    clf = IncrementalClassifier(backbone, slots=6, memory=20, epochs=2)
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


def test_an_image_model_on_patch_features_is_exported_with_and_without_random_ones(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images * 15.9).astype(np.uint8)
    for width in (0, 64):
        clf = IncrementalClassifier(width=width).fit(images[:400], digits.target[:400])
        path = tmp_path / f"{width}.onnx"
        clf.export(path)
        session = onnxruntime.InferenceSession(str(path))
        batch = np.repeat(images[400:430, None], session.get_inputs()[0].shape[1] or 1, axis=1)
        outputs = {out.name: value for out, value in zip(session.get_outputs(),
                                                        session.run(None, {session.get_inputs()[0].name: batch}))}
        wanted = clf.predict_proba(images[400:430])
        assert any(value.shape == wanted.shape and (value.argmax(1) == wanted.argmax(1)).all()
                   for value in outputs.values()), {name: value.shape for name, value in outputs.items()}
