"""Frozen features of images without a pretrained network: responses to patches of the first batch.

Coates, Lee and Ng (2011) showed that one layer suffices for small images if its filters are whitened patches:

    q = (patch - its mean) / its deviation            contrast normalisation
    a = d^T W (q - m)                                 W whitens the patches, d is a whitened patch of length one
    f = [max(0, a - t), max(0, -a - t)]               averaged over the cells of a 3 x 3 grid

The filters come from the images of `fit` and are frozen after it. No label is used and nothing is trained.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .networks import Shape, image_shape

FILTERS = 96
SIDE = 6  # pixels per side of a patch; half the image's side if that is smaller
GRID = 3  # cells per side over which responses are averaged
THRESHOLD = 0.25  # t
PATCHES = 20_000  # patches from which the whitening is estimated
CONTRAST = 0.0025  # added to a patch's variance, so that flat patches are not amplified
RIDGE = 0.1  # added to the eigenvalues of the patches' covariance


class PatchFeatures(nn.Module):
    """Maps normalised images (batch, channels, height, width) to features (batch, 2 * FILTERS * GRID * GRID)."""

    filters: Tensor
    offsets: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels, height, width = image_shape("patches", shape)
        self.side = max(1, min(SIDE, height // 2, width // 2))
        self.grid = min(GRID, height - self.side + 1, width - self.side + 1)
        self.out_features = 2 * FILTERS * self.grid**2
        self.register_buffer("filters", torch.zeros(FILTERS, channels, self.side, self.side))
        self.register_buffer("offsets", torch.zeros(FILTERS))  # d^T W m

    @torch.no_grad()
    def fit(self, images: Tensor, generator: torch.Generator) -> PatchFeatures:
        """Take the filters from random patches of these normalised images (n, channels, height, width)."""
        patches = self._draw(images, generator).double()  # (PATCHES, channels * side * side)
        patches -= patches.mean(1, keepdim=True)
        patches /= (patches.square().mean(1, keepdim=True) + CONTRAST).sqrt()
        mean = patches.mean(0)
        patches -= mean
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        whiten = vectors @ torch.diag((values.clamp(min=0) + RIDGE).rsqrt()) @ vectors.T
        filters = F.normalize(patches[:FILTERS] @ whiten, dim=1) @ whiten  # (FILTERS, channels * side * side)
        self.filters.copy_(filters.view_as(self.filters))
        self.offsets.copy_(filters @ mean)
        return self

    def forward(self, x: Tensor) -> Tensor:
        # The contrast normalisation is linear but for the division, so one convolution does it for all patches.
        mean = F.avg_pool2d(x.mean(1, keepdim=True), self.side, 1)  # (batch, 1, rows, columns)
        square = F.avg_pool2d(x.square().mean(1, keepdim=True), self.side, 1)
        deviation = ((square - mean.square()).clamp(min=0) + CONTRAST).sqrt()
        shift = mean * self.filters.sum((1, 2, 3)).view(1, -1, 1, 1)
        a = (F.conv2d(x, self.filters) - shift) / deviation - self.offsets.view(1, -1, 1, 1)
        cells = [F.adaptive_avg_pool2d((sign * a - THRESHOLD).relu(), self.grid) for sign in (1, -1)]
        return torch.cat(cells, 1).flatten(1)

    def _draw(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return random patches, (PATCHES, channels * side * side)."""
        count, _, height, width = images.shape
        limits = (count, height - self.side + 1, width - self.side + 1)
        which, top, left = (torch.randint(limit, (PATCHES,), generator=generator).to(images.device) for limit in limits)
        reach = torch.arange(self.side, device=images.device)
        rows, columns = (top[:, None] + reach)[:, :, None], (left[:, None] + reach)[:, None, :]
        return images[which[:, None, None], :, rows, columns].movedim(-1, 1).flatten(1)
