"""Decode image files of known formats to upright RGB pictures. PyTorch is not imported, so that it starts quickly."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from .errors import BadInput

# File formats we accept. PIL would pass PostScript to an external program, and its rarer decoders are less robust.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "DIB", "PPM", "TIFF", "WEBP", "JPEG2000", "AVIF")


@contextmanager
def opened(path: str | Path) -> Iterator[Image.Image]:
    """Open an image file of one of FORMATS; turn any error while it is read into a BadInput that names the file."""
    with errors_as_bad_input(str(path)), Image.open(path, formats=formats()) as file:
        yield file


def decoded(content: bytes, name: str, most: int) -> Image.Image:
    """Decode the content of an image file of at most `most` pixels; raise BadInput that names it if that fails."""
    with errors_as_bad_input(name), Image.open(io.BytesIO(content), formats=formats()) as file:
        if file.width * file.height > most:
            raise ValueError(f"it has {file.width * file.height:,} pixels, and at most {most:,} are allowed.")
        return upright(file)


@cache
def formats() -> tuple[str, ...]:
    """Return those of FORMATS that the installed PIL can read."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def errors_as_bad_input(name: str) -> Iterator[None]:
    """Turn any exception of a decoder into a BadInput that names the image."""
    try:
        yield
    except UnidentifiedImageError as error:
        known = ", ".join(formats())
        raise BadInput(f"{name} cannot be read as an image: it is none of {known}; convert it to one.") from error
    except Exception as error:
        kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
        raise BadInput(f"{name} cannot be read as an image: {kind}{error}") from error


def cover(picture: Image.Image, height: int, width: int) -> Image.Image:
    """Scale a picture to cover this size, and crop it at the centre."""
    if picture.size == (width, height):
        return picture
    return ImageOps.fit(picture, (width, height), Image.Resampling.BICUBIC)


def upright(picture: Image.Image) -> Image.Image:
    """Convert a picture to RGB with 8 bits per channel, rotated by its EXIF tag."""
    if 0 in picture.size:
        raise BadInput(f"it is {picture.width} x {picture.height} pixels; it must have at least one.")
    if picture.mode.startswith("I;16"):  # PIL would clip 16-bit values at 255 instead of scaling them
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    elif picture.mode in ("I", "F"):  # PIL would clip 32-bit values too; treat them as an array
        picture = Image.fromarray(as_bytes(np.asarray(picture), f"a picture of mode {picture.mode}"))
    return ImageOps.exif_transpose(picture).convert("RGB")


def as_bytes(array: np.ndarray, what: str) -> np.ndarray:
    """Convert integers of 0..255, floats of 0..1 or booleans to bytes."""
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind == "b":
        return array.astype(np.uint8) * np.uint8(255)
    scale: Callable[[np.ndarray], np.ndarray]
    if array.dtype.kind in "iu":
        most, scale = 255, lambda a: a
    elif array.dtype.kind == "f":
        most, scale = 1, lambda a: np.rint(a * 255)
        if not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(1))[0])
            where = f"{what} (first in image {row})" if array.ndim == 4 and len(array) > 1 else what
            raise BadInput(f"There are NaN or infinite pixels in {where}: remove or repair those images.")
    else:
        raise BadInput(f"The pixels of {what} are {array.dtype}; they must be numbers.")
    if array.size and (array.min() < 0 or array.max() > most):
        seen = f"{array.min():g} to {array.max():g}"
        raise BadInput(f"The pixels of {what} are {array.dtype} from {seen}; they must lie between 0 and {most}.")
    return scale(array).astype(np.uint8)
