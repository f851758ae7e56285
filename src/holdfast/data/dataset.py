"""A data set in memory: images as bytes, labels, and the mean and standard deviation of the pixels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import BadData

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """Training and test images of any size and number of channels, with labels 0 to classes-1.

    All images are resident in memory: a batch is one index operation, and no DataLoader is needed.
    """

    name: str
    train_images: Tensor  # (n, channels, height, width) uint8
    train_labels: Tensor  # (n,) int64, 0..classes-1
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of pixels scaled to 0..1
    std: tuple[float, ...]
    fingerprint: str | None = None  # of the content, for data sets without a SHA-256 in our table


def from_arrays(
    name: str, train_images: Any, train_labels: Any, test_images: Any, test_labels: Any,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Build a data set from arrays or tensors, and compute its normalisation and fingerprint.

    Images are uint8 of shape (n, channels, height, width); labels are integers from 0."""
    import torch

    images = [torch.as_tensor(part) for part in (train_images, test_images)]
    labels = [torch.as_tensor(part).long() for part in (train_labels, test_labels)]
    for part, of in zip(images, labels):
        if part.dtype != torch.uint8 or part.dim() != 4 or of.shape != part.shape[:1] or not part.numel():
            raise BadData(
                f"The data set {name!r} has images of {part.dtype} and shape {tuple(part.shape)}, labels of shape "
                f"{tuple(of.shape)}; images are uint8 (n, channels, height, width), with one label each."
            )
    if images[0].shape[1:] != images[1].shape[1:]:
        raise BadData(f"The training and test images of {name!r} differ in shape: give all of them one size.")
    count = int(max(int(of.max()) for of in labels)) + 1
    named = tuple(classes) if classes is not None else tuple(map(str, range(count)))
    if len(named) < count or min(int(of.min()) for of in labels) < 0:
        raise BadData(f"The data set {name!r} has labels outside 0 to {len(named) - 1}, the classes it names.")
    unit = images[0].double() / 255
    mean, std = unit.mean((0, 2, 3)), unit.std((0, 2, 3), correction=0).clamp(min=0.05)
    seen = hashlib.sha256(json.dumps(named).encode())
    for tensor in (*images, *labels):
        seen.update(json.dumps(list(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes())
    return Dataset(
        name, images[0], labels[0], images[1], labels[1], named, tuple(mean.tolist()), tuple(std.tolist()),
        seen.hexdigest(),
    )
