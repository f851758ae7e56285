"""`check_dataset`: a data set keeps the promises that benchmarks rely on."""

from __future__ import annotations

from pathlib import Path

import torch

from .. import data
from ..data import DATASETS
from .failing import check_entry, require


def check_dataset(name: str, root: str | Path | None = None) -> None:
    """Raise CheckFailed unless the registered data set `name`, read from `root`, keeps its promises.

    uint8 images of one shape; int64 labels of 0 to classes-1; every class in both parts; normalisation per channel; the
    same content and the same fingerprint at every read.
    """
    check_entry(DATASETS, name)
    one, again = data.load(name, root), data.load(name, root)
    classes = len(one.classes)
    for part in ("train", "test"):
        images, labels = getattr(one, f"{part}_images"), getattr(one, f"{part}_labels")
        where = f"{name}, {part}"
        require(images.dtype == torch.uint8 and images.dim() == 4,
                f"{where}: images are {images.dtype} of shape {tuple(images.shape)}; wanted: uint8 (n, c, h, w).")
        require(labels.dtype == torch.long and labels.shape == images.shape[:1],
                f"{where}: labels are {labels.dtype} of shape {tuple(labels.shape)}; wanted: int64, one per image.")
        seen = {*labels.unique().tolist()}
        require(seen == {*range(classes)},
                f"{where}: its labels are {sorted(seen)[:5]}...; every one of 0 to {classes - 1} must occur.")
        require(torch.equal(images, getattr(again, f"{part}_images"))
                and torch.equal(labels, getattr(again, f"{part}_labels")), f"{where}: two reads differ.")
    channels = one.train_images.shape[1]
    require(one.test_images.shape[1:] == one.train_images.shape[1:], f"{name}: the two parts differ in shape.")
    require(len(one.mean) == len(one.std) == channels and min(one.std) > 0,
            f"{name}: mean {one.mean} and deviation {one.std} must have one value per channel, deviations above 0.")
    require(one.fingerprint == again.fingerprint, f"{name}: its fingerprint changes from read to read.")
