"""One's own folders as data sets, whose images stay on disk: found, checked, and known again.

An address, `arrays:FOLDER` or `images:FOLDER`, names such a data set wherever a data set or a benchmark is named.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .data import Dataset
from .errors import BadData, BadInput
from .stored import Mapped, Pictures, Stored, open_npy

MEASURED = 1000  # images that mean and deviation are taken from, and the fingerprint of more than WHOLE
WHOLE = 2**28  # bytes of images that a fingerprint is taken of as a whole
KINDS = ("arrays", "images")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
Parts = tuple[tuple[Stored, Stored], list[Tensor], tuple[str, ...]]  # (train, test) images, labels; class names


def address(text: str) -> tuple[str, Path] | None:
    """What `arrays:FOLDER` or `images:FOLDER` names, None if it is neither; the folder absolute, so that a run that
    is named by it is of one folder, from wherever it is started."""
    kind, colon, folder = text.partition(":")
    if not colon or kind not in KINDS:
        return None
    if not folder:
        raise BadData(f"{text!r} names no folder; write it like {kind}:/data/birds.")
    return kind, Path(os.path.abspath(os.path.expanduser(folder)))


def class_names(kind: str, folder: Path) -> tuple[str, ...]:
    """The classes of such a data set, without reading an image."""
    return _array_parts(folder)[2] if kind == "arrays" else _picture_classes(folder)


def fingerprint(kind: str, folder: Path) -> str:
    """Of such a data set as it is now."""
    return _fingerprint(*(_array_parts(folder) if kind == "arrays" else _picture_parts(folder)))


def check_same(
    path: Path, before: str | None, now: Callable[[], str | None], anew: str = "start anew with --fresh"
) -> None:
    """What lies at `path` is of the data it was made from. What says nothing of them is from before it was asked, or of
    a data set that is known by its digests; then `now` is not asked either."""
    if before is not None and before != (found := now()):
        raise BadData(
            f"{path} was made from other data than are there now (fingerprint {str(before)[:12]} then, "
            f"{str(found)[:12]} now): put those back, choose another --out, or {anew}."
        )


def open_arrays(folder: Path | str) -> Dataset:
    """A data set of train_images.npy, train_labels.npy, test_images.npy, test_labels.npy and, maybe, classes.txt."""
    return _dataset(Path(folder), _array_parts(Path(folder)))


def _dataset(folder: Path, parts: Parts) -> Dataset:
    (train, test), labels, classes = parts
    mean, std = _statistics(train)
    return Dataset(folder.name, train, labels[0], test, labels[1], classes, mean, std, _fingerprint(*parts))  # type: ignore[arg-type]


def _array_parts(folder: Path) -> Parts:
    _must_be(folder, "train_images.npy, train_labels.npy, test_images.npy and test_labels.npy")
    train, test = Mapped(folder / "train_images.npy"), Mapped(folder / "test_images.npy")
    labels = [_labels(folder / "train_labels.npy", len(train)), _labels(folder / "test_labels.npy", len(test))]
    count, samples = int(max(part.max() for part in labels)) + 1, len(train) + len(test)
    if (names := folder / "classes.txt").exists():
        try:
            classes = tuple(names.read_text(encoding="utf-8").removesuffix("\n").split("\n")[:count])
        except (OSError, ValueError) as error:
            raise BadData(f"{names} cannot be read as one name a line: {error}") from error
    elif count > samples:
        raise BadData(
            f"There is a label {count - 1} in {folder}, and only {samples} samples: number the classes from 0 on "
            f"without gaps, or name each in a classes.txt."
        )
    else:
        classes = tuple(map(str, range(count)))
    if len(classes) < count or train.shape[1:] != test.shape[1:]:
        seen = f"labels up to {count - 1}, {len(classes)} names, images of {train.shape[1:]} and {test.shape[1:]}"
        raise BadData(f"The files in {folder} do not fit together: {seen}.")
    return (train, test), labels, classes


def open_pictures(folder: Path | str, size: int = 64, workers: int | None = None) -> Dataset:
    """A data set of files train/CLASS/... and test/CLASS/..., read in colour and scaled to `size` a side."""
    return _dataset(Path(folder), _picture_parts(Path(folder), size, workers))


def _picture_parts(folder: Path, size: int = 64, workers: int | None = None) -> Parts:
    classes = _picture_classes(folder)
    (train, train_labels), (test, test_labels) = (_files(folder / part, classes) for part in ("train", "test"))
    images = Pictures(train, (3, size, size), workers), Pictures(test, (3, size, size), workers)
    return images, [torch.tensor(train_labels), torch.tensor(test_labels)], classes


def _picture_classes(folder: Path) -> tuple[str, ...]:
    _must_be(folder, "images in train/CLASS and test/CLASS")
    classes = tuple(sorted(path.name for path in (folder / "train").glob("*/") if path.is_dir()))
    if not classes:
        raise BadData(f"{folder / 'train'} has no folders; put each class's images into train/CLASS and test/CLASS.")
    return classes


def _must_be(folder: Path, holding: str) -> None:
    if not folder.is_dir():
        raise BadData(f"There is no folder {folder} here; name one that holds {holding}.")


def _files(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    found = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES and path.is_file()
    ]
    if not found:
        raise BadData(f"{folder} has no images of the classes {', '.join(classes[:5])}.")
    return [path for path, _ in found], [label for _, label in found]


def _labels(path: Path, count: int) -> Tensor:
    labels = open_npy(path)
    if labels.dtype.kind not in "iu" or labels.shape != (count,) or not 0 <= labels.min() <= labels.max() < 2**63:
        raise BadData(f"{path} holds {labels.dtype} of shape {labels.shape}; labels are {count} whole numbers from 0.")
    return torch.from_numpy(labels.astype(np.int64))


def _statistics(images: Stored) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation a channel, of some images evenly over all of them."""
    some = _evenly(images)
    sums = torch.zeros(2, images.shape[1], dtype=torch.float64)
    parts: Iterable[Tensor] = some.split(50)
    for part in parts:
        try:
            pixels = images[part].double() / 255
        except BadInput as error:
            raise BadData(str(error)) from error
        sums += torch.stack([pixels.mean((2, 3)).sum(0), pixels.square().mean((2, 3)).sum(0)])
    mean, square = sums / len(some)
    return tuple(mean.tolist()), tuple((square - mean.square()).clamp(min=0.0025).sqrt().tolist())


def _fingerprint(images: tuple[Stored, Stored], labels: list[Tensor], classes: tuple[str, ...]) -> str:
    """By which a run knows its data again: class names, labels, sizes, and the images' bytes.

    Of more than WHOLE bytes only MEASURED images evenly over all of them, so that it is soon done for data of any size.
    What files are called does not count, but for their order."""
    seen = hashlib.sha256(json.dumps(classes).encode())
    for part, of in zip(images, labels):
        sizes = part.sizes()
        seen.update(json.dumps([part.shape, sizes]).encode() + of.numpy().astype("<i8").tobytes())
        for content in part.contents(np.arange(len(part)) if sum(sizes) <= WHOLE else _evenly(part).numpy()):
            seen.update(content)
    return seen.hexdigest()


def _evenly(images: Stored) -> Tensor:
    """MEASURED rows evenly over all of them, or all."""
    return torch.linspace(0, len(images) - 1, min(MEASURED, len(images))).long()
