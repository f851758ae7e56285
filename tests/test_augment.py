"""Augmentation: batched code against the usual per-image code, its randomness, and the bytes it must not touch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from holdfast.errors import UnknownName
from holdfast.learning.augment import AUGMENTATIONS


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(count: int, channels: int = 3, height: int = 12, width: int = 10) -> Tensor:
    return torch.randint(1, 256, (count, channels, height, width), dtype=torch.uint8, generator=seeded(1))


def crop_one(image: np.ndarray, padding: int, top: int, left: int, mirrored: bool) -> np.ndarray:
    """As everyone writes it for one image: pad, cut, mirror."""
    _, height, width = image.shape
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    cut = padded[:, top : top + height, left : left + width]
    return cut[:, :, ::-1] if mirrored else cut


@pytest.mark.parametrize(("name", "padding", "flip"), [("crop-flip", 4, True), ("shift", 2, False)])
def test_a_batch_is_cropped_as_each_image_would_be(name: str, padding: int, flip: bool) -> None:
    images, generator = random_images(50), seeded(7)
    top = torch.randint(2 * padding + 1, (50, 1), generator=generator)
    left = torch.randint(2 * padding + 1, (50, 1), generator=generator)
    mirrored = torch.rand(50, 1, generator=generator) < 0.5 if flip else torch.zeros(50, 1, dtype=torch.bool)
    expected = [
        crop_one(image, padding, y, x, m)
        for image, y, x, m in zip(images.numpy(), top.flatten(), left.flatten(), mirrored.flatten())
    ]
    assert np.array_equal(AUGMENTATIONS[name](images, seeded(7)).numpy(), np.stack(expected))


@pytest.mark.parametrize(("name", "padding", "mirrors"), [("crop-flip", 4, 2), ("shift", 2, 1)])
def test_every_place_and_mirror_is_as_likely_as_any_other(name: str, padding: int, mirrors: int) -> None:
    """Where two distinct marked pixels end up tells the offset and the mirroring of each image."""
    image = torch.zeros(1, 1, 32, 32, dtype=torch.uint8)
    image[..., 16, 15], image[..., 16, 16] = 100, 200
    count = 40 * mirrors * (2 * padding + 1) ** 2
    found = AUGMENTATIONS[name](image.expand(count, 1, 32, 32), seeded(3)).flatten(1)
    places = Counter(zip((found == 100).int().argmax(1).tolist(), (found == 200).int().argmax(1).tolist()))
    assert len(places) == mirrors * (2 * padding + 1) ** 2
    assert stats.chisquare(list(places.values())).pvalue > 0.001


@pytest.mark.parametrize("name", list(AUGMENTATIONS))
def test_the_images_given_are_left_untouched_and_the_seed_decides(name: str) -> None:
    images = random_images(20, 1, 16, 16)
    before = images.clone()
    first, again, other = (AUGMENTATIONS[name](images, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(images, before)
    assert torch.equal(first, again)
    assert first.dtype == torch.uint8 and first.shape == images.shape
    assert torch.equal(first, other) == (name == "none")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnknownName, match="shift"):
        AUGMENTATIONS["shfit"]
