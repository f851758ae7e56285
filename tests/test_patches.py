"""Patch features: the default for images without a pretrained network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from holdfast import IncrementalClassifier
from holdfast.backbones import patches
from holdfast.backbones.patches import PatchFeatures
from holdfast.errors import BadConfig


def fitted(shape: tuple[int, int, int] = (3, 11, 9), seed: int = 0) -> tuple[PatchFeatures, torch.Tensor]:
    images = torch.randn(40, *shape, generator=torch.Generator().manual_seed(seed))
    return PatchFeatures(shape).fit(images, torch.Generator().manual_seed(1)), images


def test_features_equal_the_formula_patch_by_patch_in_numpy() -> None:
    module, images = fitted()
    found = module(images[:2]).view(2, 2, patches.FILTERS, module.grid, module.grid)
    filters, offsets = module.filters.double().numpy(), module.offsets.double().numpy()
    side, (rows, columns) = module.side, (11 - module.side + 1, 9 - module.side + 1)
    for which in range(2):
        image = images[which].double().numpy()
        responses = np.zeros((2, patches.FILTERS, rows, columns))
        for r in range(rows):
            for c in range(columns):
                q = image[:, r : r + side, c : c + side]
                q = (q - q.mean()) / np.sqrt(q.var() + patches.CONTRAST)
                a = (filters * q).sum((1, 2, 3)) - offsets
                responses[0, :, r, c] = np.maximum(0, a - patches.THRESHOLD)
                responses[1, :, r, c] = np.maximum(0, -a - patches.THRESHOLD)
        for i in range(module.grid):  # the cells of adaptive pooling: floor(i n / g) to ceil((i + 1) n / g)
            for j in range(module.grid):
                top = slice(i * rows // 3, -(-(i + 1) * rows // 3))
                left = slice(j * columns // 3, -(-(j + 1) * columns // 3))
                cell = responses[:, :, top, left]
                assert found[which, :, :, i, j].double().numpy() == pytest.approx(cell.mean((2, 3)), abs=1e-4)


def test_the_filters_are_whitened_patches_of_length_one() -> None:
    """d has length one, and the filter is W d; so W^-1 of each filter has length one."""
    module, images = fitted()
    drawn = module._draw(images, torch.Generator().manual_seed(1)).double().numpy()
    q = drawn - drawn.mean(1, keepdims=True)
    q /= np.sqrt(q.var(1, keepdims=True) + patches.CONTRAST)
    covariance = np.cov(q.T, bias=True)
    values, vectors = np.linalg.eigh(covariance)
    unwhiten = vectors @ np.diag(np.sqrt(np.maximum(values, 0) + patches.RIDGE)) @ vectors.T
    d = module.filters.flatten(1).double().numpy() @ unwhiten
    assert np.linalg.norm(d, axis=1) == pytest.approx(np.ones(patches.FILTERS), abs=1e-4)
    assert np.cov((q @ np.linalg.inv(unwhiten)).T, bias=True).trace() == pytest.approx(
        (values / (values + patches.RIDGE)).sum(), rel=1e-6
    )


def test_brightness_hardly_matters_and_contrast_is_normalised() -> None:
    module, images = fitted()
    assert torch.allclose(module(images), module(images + 5), atol=2e-2)
    assert not torch.allclose(module(images), module(-images), atol=0.1)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 5), (3, 64, 48), (4, 8, 8)])
def test_any_size_and_number_of_channels_works(shape: tuple[int, int, int]) -> None:
    module, images = fitted(shape)
    assert module(images).shape == (40, module.out_features)
    assert module(torch.zeros(2, *shape)).isfinite().all()


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    data = load_digits()
    return (data.images * 15.9).astype(np.uint8), data.target


def test_the_estimator_learns_images_in_batches_without_training(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits
    clf = IncrementalClassifier()
    for batch in ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9)):
        new = np.isin(labels[:1200], batch)
        clf.partial_fit(images[:1200][new], labels[:1200][new])
    assert clf.method_ == "solved" and clf.stability_.action == "keep"
    assert clf.score(images[1200:], labels[1200:]) > 0.95  # 97 % when written; nearest pixels 95 %


def test_a_saved_model_answers_the_same(digits: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    images, labels = digits
    clf = IncrementalClassifier().fit(images[:300], labels[:300])
    clf.save(tmp_path)
    again = IncrementalClassifier.load(tmp_path)
    assert np.array_equal(clf.predict_proba(images[300:400]), again.predict_proba(images[300:400]))
    again.partial_fit(images[300:350], labels[300:350])
    clf.partial_fit(images[300:350], labels[300:350])
    assert np.array_equal(clf.embed(images[300:400]), again.embed(images[300:400]))


def test_models_with_different_first_batches_do_not_merge(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits
    one = IncrementalClassifier().fit(images[:300], labels[:300])
    other = IncrementalClassifier().fit(images[300:600], labels[300:600])
    with pytest.raises(BadConfig, match=r"different features.*first batch"):
        one.merge(other)
