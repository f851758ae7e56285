"""Write images of other libraries' containers as a data set of our own, which `arrays:FOLDER` names.

    from holdfast import data

    name = data.write_arrays("birds", train=photos["train"], test=photos["test"])
    run(Config(name))                        # or: holdfast run arrays:birds

The containers are those of `others`. They are read once, one sample at a time, so a stream may be larger than memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from .. import files
from ..errors import BadInput
from ..quantities import some
from . import inputs, others

GREY = ("1", "L", "I", "F", "I;16")  # modes of PIL images with one channel


def write_arrays(
    folder: str | Path, train: Any, test: Any, *, label: str | None = None, size: int | tuple[int, int] | None = None,
    pixels: tuple[int, int, int] | None = None,
) -> str:
    """Write training and test samples into a new folder, whole or not at all; return its name, `arrays:FOLDER`.

    `train` and `test` are containers of `others`, or (X, y). `label` names the column of the labels. Images are scaled
    to `size`, by default the first one's. `pixels` is the (channels, height, width) of samples that are rows of pixels.
    """
    target = Path(folder).absolute()
    if target.exists():
        raise BadInput(f"{target} exists already: name a new folder, or delete it first.")
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    files.make_folder(part)
    try:
        _write(part, {"train": train, "test": test}, label, size, pixels)
        part.rename(target)
    except OSError as error:
        raise files.cannot_write(target, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return f"arrays:{target}"


def _write(folder: Path, parts: dict[str, Any], label: str | None, size: Any, pixels: Any) -> None:
    shape: tuple[int, ...] | None = None
    labels: dict[str, list[Any]] = {}
    ordered: list[Any] | None = None
    for name, given in parts.items():
        found, names = others.pairs(*given) if isinstance(given, tuple) else others.pairs(given, label)
        ordered = ordered or names
        with open(folder / f"{name}_images.npy", "wb") as file:
            labels[name], shape = _stream(file, name, found, names, shape, size, pixels)
    classes = _classes(labels, ordered)
    for name, those in labels.items():
        np.save(folder / f"{name}_labels.npy", np.array([classes[each] for each in those], dtype=np.int64))
    (folder / "classes.txt").write_text("".join(f"{each}\n" for each in classes), encoding="utf-8")


def _stream(
    file: IO[bytes], part: str, found: Iterator[tuple[Any, Any]], names: list[Any] | None,
    shape: tuple[int, ...] | None, size: Any, pixels: Any,
) -> tuple[list[Any], tuple[int, ...]]:
    """Write images as they come; return their labels and shape. The header is written again with their number."""
    labels: list[Any] = []
    start = 0
    for at, (sample, label) in enumerate(found):
        where = f"{at} of the {part} samples"
        picture = inputs.as_picture(sample if pixels is None else _shaped(sample, pixels, where), where)
        if shape is None:
            grey = picture.mode == "L" or getattr(sample, "mode", "") in GREY
            shape = (1 if grey else 3, *inputs.first_size({picture.size}, size))
        if not at:
            start = _header(file, 0, shape)
        file.write(np.ascontiguousarray(inputs.fit(picture, shape)).tobytes())
        labels.append(others.name_of(label, names))
    if not labels or shape is None:
        raise BadInput(f"There are no {part} samples. An iterator can be read only once: make a new one.")
    file.seek(0)
    if _header(file, len(labels), shape) != start:
        raise AssertionError("the header of a .npy file grew")  # numpy reserves room for the number of rows
    return labels, shape


def _header(file: IO[bytes], count: int, shape: tuple[int, ...]) -> int:
    """Write the header of a .npy file of images; return its length."""
    told = {"descr": "|u1", "fortran_order": False, "shape": (count, *shape)}
    np.lib.format.write_array_header_1_0(file, told)
    return file.tell()


def _shaped(sample: Any, pixels: tuple[int, int, int], where: str) -> np.ndarray:
    """Return one row of pixels as an image (height, width, channels)."""
    row = np.asarray(sample)
    if row.size != np.prod(pixels):
        raise BadInput(f"Sample {where} has {row.size} numbers; pixels={pixels} means {np.prod(pixels)}.")
    return row.reshape(pixels).transpose(1, 2, 0)


def _classes(labels: dict[str, list[Any]], ordered: list[Any] | None) -> dict[Any, int]:
    """Number the classes: in the container's own order if it has one, sorted otherwise."""
    train, test = ({*those} for those in (labels["train"], labels["test"]))
    if missing := sorted(map(str, train ^ test)):
        raise BadInput(f"These classes have no training or no test samples: {some(missing)}. Each needs both.")
    if len({type(each) for each in train}) > 1 or not all(isinstance(each, str | int) for each in train):
        raise BadInput("Labels are all strings or all whole numbers; these are of other or mixed types.")
    if broken := [each for each in train if isinstance(each, str) and (not each.strip() or len(each.splitlines()) > 1)]:
        raise BadInput(f"A class is called {broken[0]!r}; a name is one line of text.")
    order = [each for each in ordered if each in train] if ordered else []
    return {each: at for at, each in enumerate(order if {*order} == train else sorted(train))}
