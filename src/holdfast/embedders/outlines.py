"""Images by their outlines and colours, without a trained network: nothing to install or download.

Histograms of oriented gradients (Dalal and Triggs, 2005) of a small grey copy, and the mean colours of a coarse grid.
A pretrained network is better for photographs; this tells drawings, digits, colours and simple objects apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import inputs
from ..errors import BadConfig
from .base import Embedder, digest_of

BINS = 8  # directions of a gradient, over half a turn
CELL = 4  # pixels per side of a cell
GRID = 4  # cells per side for the colours
LEAST, MOST = 16, 128  # pixels per side
VERSION = 1


class Outlines(Embedder):
    """`outlines:SIZE`: images are scaled to SIZE pixels per side, a multiple of 4."""

    kind, takes = "outlines", "images"

    def __init__(self, size: str) -> None:
        if not size.isdecimal() or not LEAST <= int(size) <= MOST or int(size) % CELL:
            raise BadConfig(f"The embedder outlines:{size} needs a size of {LEAST} to {MOST} pixels, a multiple of 4.")
        self.name, self.size = size, int(size)
        self.digest = digest_of({"version": VERSION, "size": self.size, "bins": BINS, "cell": CELL, "grid": GRID})

    def embed(self, samples: Sequence[Any]) -> Any:
        shape = (3, self.size, self.size)
        pixels = np.stack([inputs.fit(inputs.as_picture(item, row), shape) for row, item in enumerate(samples)])
        x = torch.from_numpy(pixels).float() / 255  # (n, 3, size, size)
        return torch.cat([gradients(x.mean(1, keepdim=True)), colours(x)], 1)


def gradients(grey: Tensor) -> Tensor:
    """Return histograms of gradient directions, normalised over blocks of two by two cells.  # (n, features)"""
    padded = F.pad(grey, (1, 1, 1, 1), mode="replicate")
    dx = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
    dy = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    length, turn = (dx.square() + dy.square()).sqrt(), torch.atan2(dy, dx).remainder(math.pi) * BINS / math.pi
    low = turn.floor()
    share = turn - low
    bins = torch.arange(BINS).view(1, -1, 1, 1)
    lower, upper = low.remainder(BINS) == bins, (low + 1).remainder(BINS) == bins
    cells = F.avg_pool2d(length * (lower * (1 - share) + upper * share), CELL)  # (n, BINS, cells, cells)
    energy = F.avg_pool2d(cells.square().sum(1, keepdim=True), 2, stride=1)  # (n, 1, cells - 1, cells - 1)
    scale = F.interpolate(energy, size=cells.shape[2:], mode="bilinear", align_corners=False)
    return (cells / (scale + 1e-3).sqrt()).flatten(1).clamp(max=1.0) / 4


def colours(x: Tensor) -> Tensor:
    """Return the mean colour in each part of a coarse grid.  # (n, 3 * GRID * GRID)"""
    return F.adaptive_avg_pool2d(x, GRID).flatten(1)
