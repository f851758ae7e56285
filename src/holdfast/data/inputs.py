"""Convert the user's arrays, tensors, images and files to tensors: uint8 for images, float32 for vectors.

The rules:
- An array of two dimensions holds vectors. Everything else is images.
- An array of images is (n, h, w), (n, h, w, c) or (n, c, h, w) with 1 or 3 channels: integers of 0..255, floats of
  0..1, or booleans. The images must have the model's size. With `image_size` they are resized like a list.
- A list of images (arrays, PIL images, paths) may mix sizes: each image is scaled to cover the model's size and
  cropped at the centre. PIL images and files are converted to RGB and rotated by their EXIF tag. Images with 32 bits
  per pixel follow the rules of arrays.
- The first batch sets a model's size and channels. A colour model accepts grey images and repeats their channel; a
  grey model refuses colour images.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from ..errors import BadConfig, BadInput

Shape = tuple[int, ...]
LARGEST = 96  # pixels per side; images that share one size up to this are not resized
USUAL = 64  # pixels per side to which larger and mixed images are resized
# File formats we accept. PIL would pass PostScript to an external program, and its rarer decoders are less robust.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "DIB", "PPM", "TIFF", "WEBP", "JPEG2000", "AVIF")


def are_images(X: Any) -> bool:
    """Return True if X holds images or image files, False if it holds vectors or is empty."""
    X = _column_to_numpy(X)
    if hasattr(X, "ndim") and not _is_list(X):
        return bool(X.ndim > 2)
    if isinstance(X, str | Path | Image.Image):
        raise BadInput(f"This is a single image ({X!r}); give a list of them: [{X!r}].")
    return _is_list(X) and len(X) > 0 and _is_image(X[0])


def images(X: Any, shape: Shape | None, size: int | tuple[int, int] | None = None) -> Tensor:
    """Convert images to uint8 (n, channels, height, width), in the model's `shape` if it has one already."""
    X = _column_to_numpy(X)
    if _is_list(X):
        return _stack([as_picture(item, at) for at, item in enumerate(X)], shape, size)
    pixels = _bytes(_channels_last(_numpy(X), channels_first=isinstance(X, Tensor)), "the images")  # (n, h, w, c)
    if not len(pixels):
        raise BadInput("The batch is empty: give at least one image.")
    if not pixels.size:
        raise BadInput(f"The images are {_by(pixels.shape[1:3])} pixels; they must have at least one.")
    if size is not None and pixels.shape[1:3] != (shape[1:] if shape else pair(size)):
        return _stack([Image.fromarray(p.squeeze(-1) if p.shape[-1] == 1 else p) for p in pixels], shape, size)
    if shape is not None:
        if pixels.shape[1:3] != shape[1:]:
            raise BadInput(
                f"The images are {_by(pixels.shape[1:3])} pixels, but the model learned from {_by(shape[1:])}: "
                f"resize them, give them as a list (each is then resized), or create the model with an image_size."
            )
        pixels = _fit_channels(pixels, shape[0])
    return torch.from_numpy(np.require(pixels.transpose(0, 3, 1, 2), requirements=["C", "W"]))


def as_picture(item: Any, at: int | str) -> Image.Image:
    """Convert one image to an upright PIL image, grey or RGB; raise BadInput that names the image if that fails."""
    if isinstance(item, str | Path):
        with opened(item) as file:
            return _upright(file)
    if isinstance(item, Image.Image):
        with _errors_as_bad_input(f"Image {at}"):  # PIL may decode the file only now
            return _upright(item)
    if not hasattr(item, "ndim"):
        raise BadInput(f"Item {at} is a {type(item).__name__}; an image is an array, a PIL image or a path.")
    array = _numpy(item)
    if array.ndim not in (2, 3) or not array.size:
        raise BadInput(f"Image {at} has shape {array.shape}; an image is (h, w), (h, w, c) or (c, h, w).")
    pixels = _bytes(_channels_last(array[None], channels_first=isinstance(item, Tensor)), f"image {at}")[0]
    return Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels)


@contextmanager
def opened(path: str | Path) -> Iterator[Image.Image]:
    """Open an image file of one of FORMATS; turn any error while it is read into a BadInput that names the file."""
    with _errors_as_bad_input(str(path)), Image.open(path, formats=formats()) as file:
        yield file


def decoded(content: bytes, name: str, most: int) -> Image.Image:
    """Decode the content of an image file of at most `most` pixels; raise BadInput that names it if that fails."""
    with _errors_as_bad_input(name), Image.open(io.BytesIO(content), formats=formats()) as file:
        if file.width * file.height > most:
            raise ValueError(f"it has {file.width * file.height:,} pixels, and at most {most:,} are allowed.")
        return _upright(file)


@cache
def formats() -> tuple[str, ...]:
    """Return those of FORMATS that the installed PIL can read."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def _errors_as_bad_input(name: str) -> Iterator[None]:
    """Turn any exception of a decoder into a BadInput that names the image."""
    try:
        yield
    except UnidentifiedImageError as error:
        known = ", ".join(formats())
        raise BadInput(f"{name} cannot be read as an image: it is none of {known}; convert it to one.") from error
    except Exception as error:
        kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
        raise BadInput(f"{name} cannot be read as an image: {kind}{error}") from error


def vectors(X: np.ndarray) -> Tensor:
    """Convert checked vectors (n, features) to float32."""
    return torch.from_numpy(np.array(X, dtype=np.float32, order="C"))


def check_finite(X: Any) -> None:
    """Raise BadInput if a row of vectors contains NaN or infinity; the message names the first such row."""
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind == "f" and not np.isfinite(X).all():
        bad = np.flatnonzero(~np.isfinite(X).all(1))
        raise BadInput(f"Row {bad[0]} of X contains NaN or infinity ({len(bad)} such rows): remove or repair them.")


def plain(X: Any) -> Any:
    """Convert a torch tensor to numpy; return anything else unchanged."""
    return _numpy(X) if isinstance(X, Tensor) else X


def statistics(data: Tensor) -> tuple[list[float], list[float]]:
    """Return the mean and standard deviation of the first batch, per channel or per feature.

    All later batches are normalised with these values: new ones would move every stored vector. A feature that is
    constant in the first batch gets the median deviation of the others; a channel's deviation is at least 0.05.
    """
    if data.dtype == torch.uint8:
        unit = data.double().div(255)
        return unit.mean((0, 2, 3)).tolist(), unit.std((0, 2, 3), correction=0).clamp(min=0.05).tolist()
    mean, std = data.double().mean(0), data.double().std(0, correction=0)
    varies = std > 1e-6 * mean.abs().clamp(min=1e-12)
    usual = float(std[varies].median()) if varies.any() else 1.0
    return mean.tolist(), torch.where(varies, std, usual).tolist()


def given_statistics(given: Any, size: int) -> tuple[list[float], list[float]]:
    """Return the user's (mean, deviation) as two lists of `size` numbers; each may be one number or `size` of them."""
    try:
        mean, std = (np.broadcast_to(np.asarray(part, dtype=np.float64), (size,)) for part in given)
    except (TypeError, ValueError):
        raise BadConfig(
            f"normalise is {given!r}; it is 'auto' or (mean, deviation), each a number or {size} of them."
        ) from None
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
        raise BadConfig(f"normalise is {given!r}; the means must be finite and the deviations above 0.")
    return mean.tolist(), std.tolist()


def _stack(pictures: Sequence[Image.Image], shape: Shape | None, size: int | tuple[int, int] | None) -> Tensor:
    """Fit pictures of any size into one tensor (n, channels, height, width) of the model's shape."""
    if not pictures:
        raise BadInput("The batch is empty: give at least one image.")
    shape = shape or _first_shape(pictures, size)
    channels, height, width = shape
    batch = np.empty((len(pictures), channels, height, width), dtype=np.uint8)
    for at, picture in enumerate(pictures):
        batch[at] = fit(picture, shape)
    return torch.from_numpy(batch)


def fit(picture: Image.Image, shape: Shape) -> np.ndarray:
    """Scale a picture to cover `shape`, crop it at the centre, and return (channels, height, width)."""
    channels, height, width = shape
    if picture.size != (width, height):
        picture = ImageOps.fit(picture, (width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(picture)
    return _fit_channels(pixels[..., None] if pixels.ndim == 2 else pixels, channels).transpose(2, 0, 1)


def _first_shape(pictures: Sequence[Image.Image], size: int | tuple[int, int] | None) -> Shape:
    channels = 3 if any(picture.mode == "RGB" for picture in pictures) else 1
    return (channels, *first_size({picture.size for picture in pictures}, size))


def first_size(sizes: set[tuple[int, int]], size: int | tuple[int, int] | None) -> tuple[int, int]:
    """Return the (height, width) of a new model.

    It is `size` if given, the images' own size if they share one of at most LARGEST, and USUAL otherwise."""
    if size is not None:
        return pair(size)
    (width, height), *others = sizes
    return (USUAL, USUAL) if others or max(width, height) > LARGEST else (height, width)


def _upright(picture: Image.Image) -> Image.Image:
    if 0 in picture.size:
        raise BadInput(f"it is {_by(picture.size)} pixels; it must have at least one.")
    if picture.mode.startswith("I;16"):  # PIL would clip 16-bit values at 255 instead of scaling them
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    elif picture.mode in ("I", "F"):  # PIL would clip 32-bit values too; treat them as an array
        picture = Image.fromarray(_bytes(np.asarray(picture), f"a picture of mode {picture.mode}"))
    return ImageOps.exif_transpose(picture).convert("RGB")


def pair(size: Any) -> tuple[int, int]:
    """Return an image size as (height, width), both above 0."""
    sides = [size] * 2 if isinstance(size, Integral) else list(size) if isinstance(size, list | tuple) else []
    if len(sides) != 2 or not all(isinstance(side, Integral) and int(side) > 0 for side in sides):
        raise BadConfig(f"image_size is {size!r}; it is a whole number of pixels, or (height, width).")
    return int(sides[0]), int(sides[1])


def _column_to_numpy(X: Any) -> Any:
    """Convert a column of a table (such as a pandas Series of paths) to numpy; return anything else unchanged."""
    column = not isinstance(X, np.ndarray | Tensor) and getattr(X, "ndim", None) == 1 and hasattr(X, "__array__")
    return np.asarray(X) if column else X


def _is_list(X: Any) -> bool:
    """Return True for a sequence of single items, False for one array."""
    if isinstance(X, np.ndarray):
        return X.ndim == 1 and X.dtype.kind in "OU"
    return isinstance(X, list | tuple)


def _is_image(item: Any) -> bool:
    return isinstance(item, str | Path | Image.Image) or getattr(item, "ndim", 0) >= 2


def _numpy(X: Any) -> np.ndarray:
    return X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)


def _channels_last(array: np.ndarray, *, channels_first: bool) -> np.ndarray:
    """Convert (n, h, w), (n, h, w, c) or (n, c, h, w) to (n, h, w, c); an ambiguous tensor is channels first."""
    if array.ndim == 3:
        return array[..., None]
    first, last = array.ndim == 4 and array.shape[1] in (1, 3), array.ndim == 4 and array.shape[3] in (1, 3)
    if not first and not last:
        raise BadInput(f"Images of shape {array.shape}: they are (n, h, w), (n, h, w, c) or (n, c, h, w), c is 1 or 3.")
    return array.transpose(0, 2, 3, 1) if first and (channels_first or not last) else array


def _bytes(array: np.ndarray, what: str) -> np.ndarray:
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


def _fit_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Convert (..., c) to the model's channels; a grey model accepts RGB only if all three channels are equal."""
    if pixels.shape[-1] == channels:
        return pixels
    if channels == 3:
        return pixels.repeat(3, axis=-1)
    if bool((pixels == pixels[..., :1]).all()):
        return pixels[..., :1]
    raise BadInput("This is a colour image, but the model learned from grey ones: convert it to grey first.")


def _by(sides: Sequence[int]) -> str:
    return " x ".join(str(side) for side in sides)
