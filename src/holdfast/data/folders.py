"""Folders of images, one subfolder per class. Unreadable files are listed, not fatal."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .. import pictures
from ..errors import BadInput, Stopped
from ..quantities import some
from . import inputs

Step = Callable[[], None]
Stop = Callable[[], bool]
Size = int | tuple[int, int] | None  # pixels per side, or (height, width)


@dataclass(frozen=True)
class Images:
    """The images that could be read, and the files that could not."""

    data: Tensor  # (n, 3, height, width) uint8
    paths: list[Path]  # the n files of `data`
    bad: list[tuple[Path, str]]  # each unreadable file and the reason


def classes(folders: Sequence[Path], besides: Path | None = None) -> dict[str, list[Path]]:
    """Return the image files of each class; each subfolder of `folders` is a class and is searched recursively.

    `besides`, the model's own folder, is not a class. A subfolder without images is skipped with a warning."""
    found: dict[str, list[Path]] = {}
    for folder in folders:
        if not folder.exists():
            raise BadInput(f"There is no folder {folder}.")
        if not folder.is_dir():
            raise BadInput(
                f"{folder} is not a folder; give one whose subfolders are the classes, a table (.csv, .tsv, .jsonl, "
                f".parquet) or arrays (.npy, .npz)."
            )
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.name.startswith(".") and (besides is None or not _same(child, besides)):
                found.setdefault(child.name, []).extend(below(child))
    if not found:
        names = ", ".join(map(str, folders))
        raise BadInput(f"There are no subfolders in {names}: put the images of each class into a folder of its name.")
    if empty := [name for name, files in found.items() if not files]:
        if len(empty) == len(found):
            raise BadInput(f"There are no images in the folders {some(empty)}: put some there.")
        warnings.warn(f"There are no images in the folders {some(empty)}; they are left out.", stacklevel=2)
    return {name: files for name, files in found.items() if files}


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def below(folder: Path) -> list[Path]:
    """Return every file below a folder that has an image's extension, sorted."""
    known = Image.registered_extensions()
    named = (p for p in folder.rglob("*") if p.suffix.lower() in known and not p.name.startswith("."))
    return sorted(path for path in named if path.is_file())


def files(given: Iterable[Path]) -> list[Path]:
    """Return the given files, and the images below the given folders."""
    return [path for each in given for path in (below(each) if each.is_dir() else [each])]


def unreadable(
    paths: Sequence[Path], step: Step = lambda: None, stop: Stop = lambda: False
) -> list[tuple[Path, str]]:
    """Return the images that cannot be decoded, each with the reason. Raise Stopped if `stop` returns True."""
    bad = []
    for path in _until(stop, paths):
        try:
            inputs.as_picture(path, str(path))
        except BadInput as error:
            bad.append((path, str(error)))
        step()
    return bad


def any_longer(paths: Sequence[Path], side: int, most: int = 100) -> bool:
    """Return True if one of the first images has a side of more than `side` pixels; open no more than needed."""
    return any(max(size) > side for size in _sizes(paths[:most], lambda: False))


def read(
    paths: Sequence[Path], shape: tuple[int, ...] | None, size: Size = None, step: Step = lambda: None,
    stop: Stop = lambda: False,
) -> Images:
    """Read images into one tensor of the model's shape; without a model, choose the shape from these images.

    Call `stop` before each file, and raise Stopped if it returns True."""
    if shape is None and paths:
        sizes = set() if size is not None else set(_sizes(paths, stop))
        shape = (3, *inputs.first_size(sizes or {(inputs.USUAL, inputs.USUAL)}, size))
    good, pixels, bad = [], [], []
    for path in _until(stop, paths):
        try:
            pixels.append(inputs.fit(inputs.as_picture(path, str(path)), shape or ()))
            good.append(path)
        except (BadInput, MemoryError) as error:
            bad.append((path, str(error)))
        step()
    data = torch.from_numpy(np.stack(pixels)) if pixels else torch.zeros(0, *(shape or (3, 1, 1)), dtype=torch.uint8)
    return Images(data, good, bad)


def _until(stop: Stop, paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if stop():
            raise Stopped
        yield path


def _sizes(paths: Sequence[Path], stop: Stop) -> Iterator[tuple[int, int]]:
    """Yield the (width, height) of each readable image, without decoding its pixels."""
    for path in _until(stop, paths):
        try:
            with pictures.opened(path) as picture:
                turned = picture.getexif().get(0x0112, 1) >= 5  # EXIF: rotated by 90 degrees
                size = (picture.height, picture.width) if turned else picture.size
        except BadInput:
            continue  # `read` reports it
        yield size
