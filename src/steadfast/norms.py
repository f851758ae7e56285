"""The batch norms that all our backbones use: PyTorch's, for a batch of one too, and fast on a CPU for any width."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LINE = 16  # channels that fill a cache line; half as many, a vector register


class _BatchOfOne:
    """In training too, a batch of one sample is normalised with the running statistics.

    One sample has no batch to be compared with: over vectors its variance is not even defined, and the last
    batch of an epoch may well hold just one. The running statistics then stay as they are.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 1 and self.training:  # type: ignore[attr-defined]
            norm: nn.BatchNorm2d = self  # type: ignore[assignment]
            return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
        return super().forward(x)  # type: ignore[misc]


class BatchNorm1d(_BatchOfOne, nn.BatchNorm1d):
    """`nn.BatchNorm1d` that takes a batch of one."""


class _Folding(nn.BatchNorm2d):
    """In training on a CPU, several pixels' channels are normalised as one wide pixel's.

    PyTorch's kernels for channels last are slow where the channels fill no cache line, as LeNet's 20 do not: registers
    are half empty, and threads that write their sums into one line hold each other up. Four pixels side by side have
    80. Each copy of a channel gets sums of its own, and what belongs together is then joined.
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
        """How many pixels to put side by side: 1 where PyTorch's own way is as fast, or the only one."""
        if x.device.type != "cpu" or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return 1
        usual = self.affine and self.track_running_stats and self.momentum is not None and x.dtype == self.weight.dtype
        if not usual or x.ndim != 4 or not x.is_contiguous(memory_format=torch.channels_last):
            return 1
        return side_by_side(x.shape[1], x.shape[2] * x.shape[3])


@cache
def side_by_side(channels: int, pixels: int) -> int:
    """The least number of pixels whose channels fill a cache line, or else whole registers, and by which all divide."""
    fitting = [copies for copies in range(1, LINE + 1) if pixels % copies == 0 and pixels > copies]
    for line in (LINE, LINE // 2):
        for copies in fitting:
            if copies * channels % line == 0:
                return copies
    return 1


class BatchNorm2d(_BatchOfOne, _Folding):
    """`nn.BatchNorm2d` that takes a batch of one, and folds where that is faster."""


class _FoldedNorm(torch.autograd.Function):
    """Batch norm in training; beside the result it gives the batch's mean and (biased) variance, without gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, copies: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        folded = fold(x, copies)
        means, variances = (
            value.view(copies, -1) for value in torch.batch_norm_update_stats(folded, None, None, 0.0)
        )
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square().mean(0)  # within the copies, and between them
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.copies, ctx.eps = copies, eps
        ctx.mark_non_differentiable(mean, variance)
        scale = weight * (variance + eps).rsqrt()
        y = torch.empty_like(x)  # written through a view: as a view itself nothing could be changed in place after it
        torch.addcmul(wide(bias - mean * scale, copies), folded, wide(scale, copies), out=fold(y, copies))
        return y, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upper: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """With u the gradient of the result, z the normalised x and s its scale, means over the batch:
        s (u - mean(u) - z mean(u z)). The first of the three, and both sums, are those of a norm that stands still."""
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
    """(batch, channels, height, width), channels last, as (batch, copies * channels, pixels / copies, 1): a view."""
    batch, channels, height, width = x.shape
    pixels = x.permute(0, 2, 3, 1).reshape(batch, height * width // copies, 1, copies * channels)
    return pixels.permute(0, 3, 1, 2)


def wide(values: Tensor, copies: int) -> Tensor:
    """One value a channel, to go with what is folded."""
    return values.repeat(copies)[:, None, None]
