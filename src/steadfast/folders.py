"""Folders of images: a subfolder is a class. What cannot be read is listed, and is not fatal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from . import inputs
from .errors import BadInput
from .training import Stopped

Step = Callable[[], None]
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Images:
    """What could be read of some files, and what could not."""

    data: Tensor  # (n, 3, height, width) uint8
    paths: list[Path]  # of the n
    bad: list[tuple[Path, str]]  # each unreadable file and why


def classes(folders: Sequence[Path], besides: Path | None = None) -> dict[str, list[Path]]:
    """The image files of each class: of every subfolder of the folders (besides the model's), at any depth below it."""
    found: dict[str, list[Path]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise BadInput(f"{folder} is not a folder; give one whose subfolders are the classes.")
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.name.startswith(".") and (besides is None or not _same(child, besides)):
                found.setdefault(child.name, []).extend(below(child))
    if not found:
        names = ", ".join(map(str, folders))
        raise BadInput(f"There are no subfolders in {names}: put the images of each class into a folder of its name.")
    if empty := [name for name, files in found.items() if not files]:
        raise BadInput(f"There are no images in the folders {', '.join(empty)}: fill them, or take them away.")
    return found


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def below(folder: Path) -> list[Path]:
    """Every file under a folder that is named like an image, in order."""
    known = Image.registered_extensions()
    named = (p for p in folder.rglob("*") if p.suffix.lower() in known and not p.name.startswith("."))
    return sorted(path for path in named if path.is_file())


def files(given: Iterable[Path]) -> list[Path]:
    """Files as they are, folders as the images below them."""
    return [path for each in given for path in (below(each) if each.is_dir() else [each])]


def read(
    paths: Sequence[Path], shape: tuple[int, ...] | None, size: int | None = None, step: Step = lambda: None,
    stop: Stop = lambda: False,
) -> Images:
    """The images as one tensor, of the model's shape or of the one a first batch of them gives it.

    Before each file it looks whether to stop, which raises Stopped."""
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
    """The (width, height) of each that says so; the pixels are not read."""
    for path in _until(stop, paths):
        try:
            with inputs.opened(path) as picture:
                turned = picture.getexif().get(0x0112, 1) >= 5  # on its side
                size = (picture.height, picture.width) if turned else picture.size
        except BadInput:
            continue  # `read` will say so
        yield size
