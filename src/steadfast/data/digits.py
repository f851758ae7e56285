"""scikit-learn's handwritten digits: 1,797 images that come with the package, so a demo needs no network."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

CLASSES = tuple("0123456789")


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Train images and labels, test images and labels; every fifth image of a class is a test image.

    8x8 values of 0..16 become 0..255, and each pixel a square of 4x4, so that the 32x32 backbones fit.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    labels = data.target.astype(np.int64)
    pixels = np.rint(data.images * (255 / 16)).astype(np.uint8)  # (n, 8, 8)
    images = pixels.repeat(4, axis=1).repeat(4, axis=2)[:, None]  # (n, 1, 32, 32)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(len(CLASSES)):
        test[np.flatnonzero(labels == label)[4::5]] = True
    return (
        torch.from_numpy(images[~test]),
        torch.from_numpy(labels[~test]),
        torch.from_numpy(images[test]),
        torch.from_numpy(labels[test]),
    )
