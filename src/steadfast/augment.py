"""Augmentation as batched tensor code: one gather for a whole batch, drawn from the run's generator."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import BadConfig
from .registry import Registry

Augment = Callable[[Tensor, torch.Generator], Tensor]  # uint8 (batch, channels, h, w) to the same


def crop(images: Tensor, generator: torch.Generator, *, padding: int, flip: bool) -> Tensor:
    """Each image padded by zeros and cropped back at its own random place; half of them mirrored if asked."""
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
    """As it is."""
    return images


def crop_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """The usual one for CIFAR: crop after padding 4, and flip."""
    return crop(images, generator, padding=4, flip=True)


def shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Moved by up to 2 pixels each way: for digits, where a mirror image is another sign."""
    return crop(images, generator, padding=2, flip=False)


AUGMENTS: Registry[Augment] = Registry("augmentation", "steadfast.augmentations")
AUGMENTS.register("none", "as it is")(none)
AUGMENTS.register("crop-flip", "cropped after padding by 4, half of them mirrored: usual for CIFAR")(crop_flip)
AUGMENTS.register("shift", "moved by up to 2 pixels each way: for digits")(shift)


def register(name: str) -> Callable[[Augment], Augment]:
    """Decorate a function of (uint8 images, generator), and `augment` and `vary` know it by `name`.

    By its name a run is known and repeated, so a name stands for one function for good."""

    def add(function: Augment) -> Augment:
        @functools.wraps(function)
        def checked(images: Tensor, generator: torch.Generator) -> Tensor:
            varied = function(images, generator)
            if varied.shape != images.shape or varied.dtype != images.dtype:
                raise BadConfig(
                    f"The augmentation {name!r} made {tuple(varied.shape)} {varied.dtype} of {tuple(images.shape)} "
                    f"{images.dtype}; it must keep both."
                )
            return varied

        AUGMENTS.register(name, (function.__doc__ or "a user's own").splitlines()[0])(checked)
        return function

    return add


def get(name: str) -> Augment:
    """The augmentation called `name`."""
    return AUGMENTS[name]
