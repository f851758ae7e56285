"""The user's own folders as data sets. The images stay on disk; a fingerprint detects changes.

An address, `arrays:FOLDER` or `images:FOLDER`, works wherever the name of a data set or benchmark does.
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

from ..errors import BadData, BadInput
from ..quantities import some
from .dataset import Dataset
from .stored import Mapped, Pictures, Stored, open_npy

MEASURED = 1000  # images sampled for mean and deviation, and for the fingerprint of more than WHOLE bytes
WHOLE = 2**28  # bytes of images up to which the fingerprint covers all of them
KINDS = ("arrays", "images")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
Parts = tuple[tuple[Stored, Stored], list[Tensor], tuple[str, ...]]  # (train, test) images, labels; class names


def address(text: str) -> tuple[str, Path] | None:
    """Split `arrays:FOLDER` or `images:FOLDER` into kind and absolute folder; return None for any other text.

    The folder is absolute, so that a run's name does not depend on the working directory."""
    kind, colon, folder = text.partition(":")
    if not colon or kind not in KINDS:
        return None
    if not folder:
        raise BadData(f"{text!r} names no folder; write it like {kind}:/data/birds.")
    return kind, Path(os.path.abspath(os.path.expanduser(folder)))


def class_names(kind: str, folder: Path) -> tuple[str, ...]:
    """Return the class names of the user's data set without reading an image."""
    return _array_parts(folder)[2] if kind == "arrays" else _picture_classes(folder)


def fingerprint(kind: str, folder: Path) -> str:
    """Return the current fingerprint of the user's data set."""
    return _fingerprint(*(_array_parts(folder) if kind == "arrays" else _picture_parts(folder)))


def check_same(
    path: Path, before: str | None, now: Callable[[], str | None], anew: str = "start anew with --fresh"
) -> None:
    """Raise BadData if the data changed since `path` was written.

    `before` is None in old files and for data sets with published checksums; then there is nothing to compare."""
    if before is not None and before != (found := now()):
        raise BadData(
            f"The data changed since {path} was written (fingerprint {str(before)[:12]} then, "
            f"{str(found)[:12]} now): restore the data, choose another --out, or {anew}."
        )


def open_arrays(folder: Path | str) -> Dataset:
    """Open train_images.npy, train_labels.npy, test_images.npy, test_labels.npy and, if present, classes.txt."""
    return _dataset(Path(folder), _array_parts(Path(folder)))


def _dataset(folder: Path, parts: Parts) -> Dataset:
    (train, test), labels, classes = parts
    mean, std = _statistics(train)
    return Dataset(folder.name, train, labels[0], test, labels[1], classes, mean, std, _fingerprint(*parts))  # type: ignore[arg-type]


def _array_parts(folder: Path) -> Parts:
    _require_folder(folder, "train_images.npy, train_labels.npy, test_images.npy and test_labels.npy")
    train, test = Mapped(folder / "train_images.npy"), Mapped(folder / "test_images.npy")
    labels = [_labels(folder / "train_labels.npy", len(train)), _labels(folder / "test_labels.npy", len(test))]
    count, samples = int(max(part.max() for part in labels)) + 1, len(train) + len(test)
    if (names := folder / "classes.txt").exists():
        try:
            classes = tuple(names.read_text(encoding="utf-8").removesuffix("\n").split("\n")[:count])
        except (OSError, ValueError) as error:
            raise BadData(f"{names} cannot be read as one name per line: {error}") from error
    elif count > samples:
        raise BadData(
            f"{folder} has the label {count - 1}, but only {samples} samples: number the classes from 0 without gaps, "
            f"or name every class in a classes.txt."
        )
    else:
        classes = tuple(map(str, range(count)))
    if len(classes) < count or train.shape[1:] != test.shape[1:]:
        seen = f"labels up to {count - 1}, {len(classes)} names, images of {train.shape[1:]} and {test.shape[1:]}"
        raise BadData(f"The files in {folder} do not fit together: {seen}.")
    return (train, test), labels, classes


def open_pictures(folder: Path | str, size: int = 64, workers: int | None = None) -> Dataset:
    """Open the image files in train/CLASS/... and test/CLASS/..., read as RGB and scaled to `size` pixels per side."""
    return _dataset(Path(folder), _picture_parts(Path(folder), size, workers))


def _picture_parts(folder: Path, size: int = 64, workers: int | None = None) -> Parts:
    classes = _picture_classes(folder)
    (train, train_labels), (test, test_labels) = (_files(folder / part, classes) for part in ("train", "test"))
    images = Pictures(train, (3, size, size), workers), Pictures(test, (3, size, size), workers)
    return images, [torch.tensor(train_labels), torch.tensor(test_labels)], classes


def _picture_classes(folder: Path) -> tuple[str, ...]:
    _require_folder(folder, "images in train/CLASS and test/CLASS")
    classes = tuple(sorted(path.name for path in (folder / "train").glob("*/") if path.is_dir()))
    if not classes:
        raise BadData(f"{folder / 'train'} has no folders; put each class's images into train/CLASS and test/CLASS.")
    return classes


def _require_folder(folder: Path, holding: str) -> None:
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
        raise BadData(f"{folder} has no images of the classes {some(classes)}.")
    return [path for path, _ in found], [label for _, label in found]


def _labels(path: Path, count: int) -> Tensor:
    labels = open_npy(path)
    if labels.dtype.kind not in "iu" or labels.shape != (count,) or not 0 <= labels.min() <= labels.max() < 2**63:
        raise BadData(f"{path} holds {labels.dtype} of shape {labels.shape}; labels are {count} whole numbers from 0, "
                      f"whose names may be in classes.txt, one per line.")
    return torch.from_numpy(labels.astype(np.int64))


def _statistics(images: Stored) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation per channel, from an evenly spaced sample of the images."""
    some = _evenly_spaced(images)
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
    """Return a SHA-256 over class names, labels, file sizes and the images' bytes, by which a run recognises its data.

    Above WHOLE bytes it covers only MEASURED evenly spaced images, so that it stays fast for data of any size. File
    names count only through their order."""
    seen = hashlib.sha256(json.dumps(classes).encode())
    for part, of in zip(images, labels):
        sizes = part.sizes()
        seen.update(json.dumps([part.shape, sizes]).encode() + of.numpy().astype("<i8").tobytes())
        for content in part.contents(np.arange(len(part)) if sum(sizes) <= WHOLE else _evenly_spaced(part).numpy()):
            seen.update(content)
    return seen.hexdigest()


def _evenly_spaced(images: Stored) -> Tensor:
    """Return MEASURED evenly spaced rows, or all rows if there are fewer."""
    return torch.linspace(0, len(images) - 1, min(MEASURED, len(images))).long()
