"""Batch norms of all our backbones: PyTorch's, extended to a batch of one sample, and faster on a CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LINE = 16  # channels that fill a cache line; half as many fill a vector register


class _BatchOfOne:
    """Normalises a batch of one sample with the running statistics, also in training.

    The last batch of an epoch may hold one sample, and for vectors the variance of one sample is undefined. Such a
    batch does not change the running statistics.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 1 and self.training:  # type: ignore[attr-defined]
            norm: nn.BatchNorm2d = self  # type: ignore[assignment]
            return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
        return super().forward(x)  # type: ignore[misc]


class BatchNorm1d(_BatchOfOne, nn.BatchNorm1d):
    """`nn.BatchNorm1d` that accepts a batch of one."""


class _Folding(nn.BatchNorm2d):
    """In training on a CPU, treats several adjacent pixels as one pixel with more channels.

    PyTorch's channels-last kernels are slow if the channels do not fill a cache line, such as LeNet's 20: vector
    registers are half empty, and threads contend for the same line. Four pixels together have 80 channels. Each copy
    of a channel gets its own sums, which are combined at the end.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and (copies := self._copies(x)) > 1:
            assert self.num_batches_tracked is not None and self.running_mean is not None
            assert self.running_var is not None and self.momentum is not None
            y, mean, variance = _FoldedNorm.apply(x, self.weight, self.bias, copies, self.eps)
            with torch.no_grad():
                count = x.numel() // x.shape[1]
                self.num_batches_tracked += 1
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)
            return y
        return super().forward(x)

    def _copies(self, x: Tensor) -> int:
        """Return how many pixels to combine; 1 where PyTorch's own kernel is as fast or the only option."""
        if x.device.type != "cpu" or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return 1
        usual = self.affine and self.track_running_stats and self.momentum is not None and x.dtype == self.weight.dtype
        if not usual or x.ndim != 4 or not x.is_contiguous(memory_format=torch.channels_last):
            return 1
        return side_by_side(x.shape[1], x.shape[2] * x.shape[3])


@cache
def side_by_side(channels: int, pixels: int) -> int:
    """Return the smallest divisor of `pixels` whose channels fill whole cache lines, or else whole registers."""
    fitting = [copies for copies in range(1, LINE + 1) if pixels % copies == 0 and pixels > copies]
    for line in (LINE, LINE // 2):
        for copies in fitting:
            if copies * channels % line == 0:
                return copies
    return 1


class BatchNorm2d(_BatchOfOne, _Folding):
    """`nn.BatchNorm2d` that accepts a batch of one, and combines pixels where that is faster."""


class _FoldedNorm(torch.autograd.Function):
    """Batch norm in training; also returns the batch's mean and (biased) variance, without gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, copies: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        folded = fold(x, copies)
        means, variances = (
            value.view(copies, -1) for value in torch.batch_norm_update_stats(folded, None, None, 0.0)
        )
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square().mean(0)  # variance within the copies, plus between them
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.copies, ctx.eps = copies, eps
        ctx.mark_non_differentiable(mean, variance)
        scale = weight * (variance + eps).rsqrt()
        y = torch.empty_like(x)  # not itself a view, so that later layers may change it in place
        torch.addcmul(wide(bias - mean * scale, copies), folded, wide(scale, copies), out=fold(y, copies))
        return y, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upper: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Return s (u - mean(u) - z mean(u z)), with u the upper gradient, z the normalised x and s the scale.

        The term s u and both sums come from PyTorch's backward pass of a norm in evaluation mode."""
        x, weight, mean, variance = ctx.saved_tensors
        copies, count = ctx.copies, x.numel() // x.shape[1]
        folded = fold(x, copies)
        of_folded, *sums = torch.ops.aten.native_batch_norm_backward(
            fold(upper, copies), folded, weight.repeat(copies), mean.repeat(copies), variance.repeat(copies),
            None, None, False, ctx.eps, [True, True, True],
        )
        of_weight, of_bias = (value.view(copies, -1).sum(0) for value in sums)
        inverse = (variance + ctx.eps).rsqrt()
        slope = weight * inverse.square() * of_weight / count  # of x
        start = weight * inverse * of_bias / count - slope * mean
        of_folded.addcmul_(folded, wide(slope, copies), value=-1).sub_(wide(start, copies))
        batch, channels, height, width = x.shape
        of_x = of_folded.permute(0, 2, 3, 1).reshape(batch, height, width, channels).permute(0, 3, 1, 2)
        return of_x, of_weight, of_bias, None, None


def fold(x: Tensor, copies: int) -> Tensor:
    """Return a view (batch, copies * channels, pixels / copies, 1) of a channels-last batch of images."""
    batch, channels, height, width = x.shape
    pixels = x.permute(0, 2, 3, 1).reshape(batch, height * width // copies, 1, copies * channels)
    return pixels.permute(0, 3, 1, 2)


def wide(values: Tensor, copies: int) -> Tensor:
    """Repeat one value per channel for folded tensors."""
    return values.repeat(copies)[:, None, None]
