"""scikit-learn's handwritten digits: 1,797 images. They come with scikit-learn, so a demo needs no network."""

from __future__ import annotations

from pathlib import Path

from .dataset import Dataset

CLASSES = tuple("0123456789")


def digits(folder: Path | None = None) -> Dataset:
    """Read the digits; every fifth image of each class is a test image.

    Values of 0..16 are scaled to 0..255, and 8x8 pixels are enlarged to 32x32, the input size of the backbones.
    """
    import numpy as np
    import torch
    from sklearn.datasets import load_digits

    data = load_digits()
    labels = data.target.astype(np.int64)
    pixels = np.rint(data.images * (255 / 16)).astype(np.uint8)  # (n, 8, 8)
    images = pixels.repeat(4, axis=1).repeat(4, axis=2)[:, None]  # (n, 1, 32, 32)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(len(CLASSES)):
        test[np.flatnonzero(labels == label)[4::5]] = True
    train = torch.from_numpy(images[~test])
    unit = train.double() / 255
    mean, std = float(unit.mean()), float(unit.std(correction=0))
    return Dataset(
        "digits", train, torch.from_numpy(labels[~test]), torch.from_numpy(images[test]),
        torch.from_numpy(labels[test]), CLASSES, (mean,), (std,),
    )
