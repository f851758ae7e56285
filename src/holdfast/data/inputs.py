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

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import BadConfig, BadInput
from ..pictures import as_bytes, cover, errors_as_bad_input, opened, upright

Shape = tuple[int, ...]
LARGEST = 96  # pixels per side; images that share one size up to this are not resized
USUAL = 64  # pixels per side to which larger and mixed images are resized


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
    pixels = as_bytes(_channels_last(_numpy(X), channels_first=isinstance(X, Tensor)), "the images")  # (n, h, w, c)
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
            return upright(file)
    if isinstance(item, Image.Image):
        with errors_as_bad_input(f"Image {at}"):  # PIL may decode the file only now
            return upright(item)
    if not hasattr(item, "ndim"):
        raise BadInput(f"Item {at} is a {type(item).__name__}; an image is an array, a PIL image or a path.")
    array = _numpy(item)
    if array.ndim not in (2, 3) or not array.size:
        raise BadInput(f"Image {at} has shape {array.shape}; an image is (h, w), (h, w, c) or (c, h, w).")
    pixels = as_bytes(_channels_last(array[None], channels_first=isinstance(item, Tensor)), f"image {at}")[0]
    return Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels)


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
    pixels = np.asarray(cover(picture, height, width))
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
