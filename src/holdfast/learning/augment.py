"""Augmentation as batched tensor code: one gather per batch, with draws from the run's generator."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import BadConfig
from ..registry import Registry

Augment = Callable[[Tensor, torch.Generator], Tensor]  # uint8 (batch, channels, h, w) to the same


def crop(images: Tensor, generator: torch.Generator, *, padding: int, flip: bool) -> Tensor:
    """Pad each image with zeros and crop it at a random place; with `flip`, mirror half of the images."""
    batch, channels, height, width = images.shape
    device = images.device
    top = torch.randint(2 * padding + 1, (batch, 1), generator=generator, device=device)
    left = torch.randint(2 * padding + 1, (batch, 1), generator=generator, device=device)
    rows = top + torch.arange(height, device=device)  # (batch, height)
    columns = torch.arange(width, device=device).expand(batch, width)
    if flip:
        mirrored = torch.rand(batch, 1, generator=generator, device=device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    columns = left + columns  # (batch, width)
    padded = F.pad(images, (padding,) * 4)
    stride = width + 2 * padding
    places = (rows[:, :, None] * stride + columns[:, None, :]).view(batch, 1, -1)  # (batch, 1, height * width)
    return padded.flatten(2).gather(2, places.expand(-1, channels, -1)).view_as(images)


def none(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return the images unchanged."""
    return images


def crop_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Crop after padding by 4, and flip: usual for CIFAR."""
    return crop(images, generator, padding=4, flip=True)


def shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift by up to 2 pixels each way: for digits, which must not be mirrored."""
    return crop(images, generator, padding=2, flip=False)


AUGMENTATIONS: Registry[Augment] = Registry("augmentation", "holdfast.augmentations")
AUGMENTATIONS.register("none", "no augmentation")(none)
AUGMENTATIONS.register("crop-flip", "crop after padding by 4, and mirror half of them: usual for CIFAR")(crop_flip)
AUGMENTATIONS.register("shift", "shift by up to 2 pixels each way: for digits")(shift)


def register(name: str) -> Callable[[Augment], Augment]:
    """Register a function of (uint8 images, generator) as a value of `augment` and `augment_memory`.

    The name is part of a run's hash, so do not change later what the function does."""

    def add(function: Augment) -> Augment:
        @functools.wraps(function)
        def checked(images: Tensor, generator: torch.Generator) -> Tensor:
            varied = function(images, generator)
            if varied.shape != images.shape or varied.dtype != images.dtype:
                raise BadConfig(
                    f"The augmentation {name!r} returned {tuple(varied.shape)} {varied.dtype} for "
                    f"{tuple(images.shape)} {images.dtype}; it must keep shape and type."
                )
            return varied

        AUGMENTATIONS.register(name, (function.__doc__ or "a user's own").splitlines()[0])(checked)
        return function

    return add
