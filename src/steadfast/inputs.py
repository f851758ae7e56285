"""People's own data into tensors: arrays, tensors, images, files; bytes for images, float32 for vectors.

What is done to it, always the same way:
- Two dimensions are vectors. Everything else is images.
- Whole arrays of images are (n, h, w), (n, h, w, c) or (n, c, h, w) with 1 or 3 channels: whole numbers of 0..255,
  fractions of 0..1, or booleans. They must have the model's size, unless an `image_size` was asked for: then they are
  treated as a list.
- Lists of images (arrays, PIL images, paths) may mix sizes: each is scaled to cover the model's size and cropped in
  the middle. PIL images and files are read as RGB, turned as their EXIF says; those of 32 bits a pixel as arrays are.
- A model's size and channels are those of its first batch. Grey images are repeated over the channels of a colour
  model; a colour image is refused by a grey model.
"""

from __future__ import annotations

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

from .errors import BadConfig, BadInput

Shape = tuple[int, ...]
LARGEST = 96  # pixels a side that images of one size may have to be taken as they are
USUAL = 64  # pixels a side for larger and mixed ones, unless asked for another
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "DIB", "PPM", "TIFF", "WEBP", "JPEG2000", "AVIF")  # of files; PIL would hand
# PostScript to a program, whatever the file is called, and its decoders of rarer formats fail in ways of their own


def are_images(X: Any) -> bool:
    """Whether these are images (or files of images); otherwise they are vectors, or nothing at all."""
    X = _in_a_row(X)
    if hasattr(X, "ndim") and not _is_list(X):
        return bool(X.ndim > 2)
    if isinstance(X, str | Path | Image.Image):
        raise BadInput(f"This is a single image ({X!r}); give a list of them: [{X!r}].")
    return _is_list(X) and len(X) > 0 and _is_image(X[0])


def images(X: Any, shape: Shape | None, size: int | tuple[int, int] | None = None) -> Tensor:
    """Images as (n, channels, height, width) uint8, of the model's `shape` if it has one already."""
    X = _in_a_row(X)
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
                f"resize them, give a list of images, which are resized one by one, or begin with an image_size."
            )
        pixels = _fit_channels(pixels, shape[0])
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


def as_picture(item: Any, at: int | str) -> Image.Image:
    """One image as PIL's, grey or RGB, upright; whatever is wrong with it is a BadInput that names it."""
    if isinstance(item, str | Path):
        with opened(item) as file:
            return _upright(file)
    if isinstance(item, Image.Image):
        with _its_own_fault(f"Image {at}"):  # it may not have read its file yet
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
    """An image file of one of FORMATS by its content; what cannot be read within this is a BadInput that names it."""
    with _its_own_fault(str(path)), Image.open(path, formats=formats()) as file:
        yield file


@cache
def formats() -> tuple[str, ...]:
    """Those of FORMATS that this PIL has been built to read."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def _its_own_fault(name: str) -> Iterator[None]:
    """Decoders raise whatever they like, and within this it is the image's fault."""
    try:
        yield
    except UnidentifiedImageError as error:
        known = ", ".join(formats())
        raise BadInput(f"{name} cannot be read as an image: it is none of {known}; convert it to one.") from error
    except Exception as error:
        kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
        raise BadInput(f"{name} cannot be read as an image: {kind}{error}") from error


def vectors(X: np.ndarray) -> Tensor:
    """Checked vectors (n, features) as float32."""
    return torch.from_numpy(np.array(X, dtype=np.float32, order="C"))


def plain(X: Any) -> Any:
    """A torch tensor as numpy's; anything else as it is."""
    return _numpy(X) if isinstance(X, Tensor) else X


def statistics(data: Tensor) -> tuple[list[float], list[float]]:
    """Mean and deviation of a first batch, that all batches are normalised with: per channel, or per feature.

    They stay as they are, because to change them is to move every vector there is. A feature that does not vary
    in the first batch (one class, say) is taken to vary as the others do; a channel by at least a twentieth.
    """
    if data.dtype == torch.uint8:
        unit = data.double().div(255)
        return unit.mean((0, 2, 3)).tolist(), unit.std((0, 2, 3), correction=0).clamp(min=0.05).tolist()
    mean, std = data.double().mean(0), data.double().std(0, correction=0)
    varies = std > 1e-6 * mean.abs().clamp(min=1e-12)
    usual = float(std[varies].median()) if varies.any() else 1.0
    return mean.tolist(), torch.where(varies, std, usual).tolist()


def given_statistics(given: Any, size: int) -> tuple[list[float], list[float]]:
    """(mean, deviation), each a number or `size` of them (channels, or features), as two lists of `size`."""
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
    """Pictures of any size as one tensor (n, channels, height, width) of the model's shape."""
    if not pictures:
        raise BadInput("The batch is empty: give at least one image.")
    shape = shape or _first_shape(pictures, size)
    channels, height, width = shape
    batch = np.empty((len(pictures), channels, height, width), dtype=np.uint8)
    for at, picture in enumerate(pictures):
        batch[at] = fit(picture, shape)
    return torch.from_numpy(batch)


def fit(picture: Image.Image, shape: Shape) -> np.ndarray:
    """A picture of any size as (channels, height, width) of this shape: scaled to cover it, cropped in the middle."""
    channels, height, width = shape
    if picture.size != (width, height):
        picture = ImageOps.fit(picture, (width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(picture)
    return _fit_channels(pixels[..., None] if pixels.ndim == 2 else pixels, channels).transpose(2, 0, 1)


def _first_shape(pictures: Sequence[Image.Image], size: int | tuple[int, int] | None) -> Shape:
    channels = 3 if any(picture.mode == "RGB" for picture in pictures) else 1
    return (channels, *first_size({picture.size for picture in pictures}, size))


def first_size(sizes: set[tuple[int, int]], size: int | tuple[int, int] | None) -> tuple[int, int]:
    """The (height, width) of a new model: as asked for, or of images that are all of one (width, height), or USUAL."""
    if size is not None:
        return pair(size)
    (width, height), *others = sizes
    return (USUAL, USUAL) if others or max(width, height) > LARGEST else (height, width)


def _upright(picture: Image.Image) -> Image.Image:
    if 0 in picture.size:
        raise BadInput(f"it is {_by(picture.size)} pixels; it must have at least one.")
    if picture.mode.startswith("I;16"):  # PIL would cut 16 bits off at 255, not scale them
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    elif picture.mode in ("I", "F"):  # likewise 32 bits; what they mean is as for an array of them
        picture = Image.fromarray(_bytes(np.asarray(picture), f"a picture of mode {picture.mode}"))
    return ImageOps.exif_transpose(picture).convert("RGB")


def pair(size: Any) -> tuple[int, int]:
    """An image size as (height, width), both above 0."""
    sides = [size] * 2 if isinstance(size, Integral) else list(size) if isinstance(size, list | tuple) else []
    if len(sides) != 2 or not all(isinstance(side, Integral) and int(side) > 0 for side in sides):
        raise BadConfig(f"image_size is {size!r}; it is a whole number of pixels, or (height, width).")
    return int(sides[0]), int(sides[1])


def _in_a_row(X: Any) -> Any:
    """A column of a table (a pandas Series of paths, say) as numpy's; anything else as it is."""
    column = not isinstance(X, np.ndarray | Tensor) and getattr(X, "ndim", None) == 1 and hasattr(X, "__array__")
    return np.asarray(X) if column else X


def _is_list(X: Any) -> bool:
    """A sequence of single things, rather than one array."""
    if isinstance(X, np.ndarray):
        return X.ndim == 1 and X.dtype.kind in "OU"
    return isinstance(X, list | tuple)


def _is_image(item: Any) -> bool:
    return isinstance(item, str | Path | Image.Image) or getattr(item, "ndim", 0) >= 2


def _numpy(X: Any) -> np.ndarray:
    return X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)


def _channels_last(array: np.ndarray, *, channels_first: bool) -> np.ndarray:
    """(n, h, w), (n, h, w, c) or (n, c, h, w) to (n, h, w, c); where both fit, tensors are channels first."""
    if array.ndim == 3:
        return array[..., None]
    first, last = array.ndim == 4 and array.shape[1] in (1, 3), array.ndim == 4 and array.shape[3] in (1, 3)
    if not first and not last:
        raise BadInput(f"Images of shape {array.shape}: they are (n, h, w), (n, h, w, c) or (n, c, h, w), c is 1 or 3.")
    return array.transpose(0, 2, 3, 1) if first and (channels_first or not last) else array


def _bytes(array: np.ndarray, what: str) -> np.ndarray:
    """Pixels of 0..255, 0..1 or booleans as bytes."""
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
            raise BadInput(f"There are NaN or infinite pixels in {what}: leave those images out, or mend them.")
    else:
        raise BadInput(f"The pixels of {what} are {array.dtype}; they must be numbers.")
    if array.size and (array.min() < 0 or array.max() > most):
        seen = f"{array.min():g} to {array.max():g}"
        raise BadInput(f"The pixels of {what} are {array.dtype} of {seen}; they must be of 0 to {most} (or bytes).")
    return scale(array).astype(np.uint8)


def _fit_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """(..., c) to the model's channels; colour into a grey model only if it is grey indeed."""
    if pixels.shape[-1] == channels:
        return pixels
    if channels == 3:
        return pixels.repeat(3, axis=-1)
    if bool((pixels == pixels[..., :1]).all()):
        return pixels[..., :1]
    raise BadInput("A colour image, but the model learned from grey ones: convert it to grey first.")


def _by(sides: Sequence[int]) -> str:
    return " x ".join(str(side) for side in sides)
