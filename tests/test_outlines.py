"""The embedder `outlines`: gradients and colours of images, without a network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.embedders import open_embedder
from holdfast.embedders.outlines import BINS, CELL, colours, gradients
from holdfast.errors import BadConfig
from holdfast.estimator import IncrementalClassifier

SIZE = 32


@pytest.mark.parametrize(("turned", "wanted"), [(False, 0), (True, BINS // 2)])
def test_an_edge_counts_in_the_bin_of_its_gradient(turned: bool, wanted: int) -> None:
    """A vertical edge has a horizontal gradient: direction 0. A horizontal edge has a quarter turn: the middle bin."""
    image = torch.zeros(1, 1, SIZE, SIZE)
    image[..., SIZE // 2 :] = 1.0
    found = gradients(image.mT if turned else image).view(BINS, SIZE // CELL, SIZE // CELL)
    assert found[wanted].sum() > 0 and float(found.sum() - found[wanted].sum()) == pytest.approx(0, abs=1e-6)


def test_the_direction_does_not_depend_on_which_side_is_bright() -> None:
    image = torch.rand(2, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(gradients(image), gradients(1 - image), atol=1e-5, rtol=0)


def test_colours_are_means_of_a_grid() -> None:
    image = torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    assert float(colours(image)[0, 5]) == pytest.approx(float(image[0, 0, 8:16, 8:16].mean()), abs=1e-6)


def test_it_is_an_embedder_that_models_learn_by() -> None:
    draw = np.random.RandomState(0)
    images = [draw.randint(0, 80, (20, 30, 3), dtype=np.uint8) + np.uint8(100 * (i % 2)) for i in range(20)]
    clf = IncrementalClassifier(embedder="outlines:32", device="cpu", cache=False)
    clf.partial_fit(images[:16], [i % 2 for i in range(16)])
    assert clf.method_ == "solved" and clf.predict(images[16:]).tolist() == [0, 1, 0, 1]
    assert open_embedder("outlines:32").fingerprint != open_embedder("outlines:16").fingerprint


@pytest.mark.parametrize("size", ["0", "33", "9999", "x"])
def test_a_wrong_size_is_refused(size: str) -> None:
    with pytest.raises(BadConfig, match="16 to 128 pixels"):
        open_embedder(f"outlines:{size}")
