"""Residual networks for small images."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from .norms import BatchNorm2d


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


class PreActivationBlock(nn.Module):
    """norm, ReLU, conv, norm, ReLU, conv, plus the input; a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = BatchNorm2d(inputs)
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm2 = BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu_(self.norm1(x))
        skipped = x if self.shortcut is None else self.shortcut(active)
        return self.conv2(F.relu_(self.norm2(self.conv1(active)))) + skipped


class BasicBlock(nn.Module):
    """conv, norm, ReLU, conv, norm, plus the input, ReLU: the original residual block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm1 = BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        self.norm2 = BatchNorm2d(outputs)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), BatchNorm2d(outputs)
        ) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        skipped = x if self.shortcut is None else self.shortcut(x)
        return F.relu_(self.norm2(self.conv2(F.relu_(self.norm1(self.conv1(x))))) + skipped)


def _stages(
    block: Callable[[int, int, int], nn.Module], inputs: int, widths: tuple[int, ...], depth: int
) -> nn.Sequential:
    """Return `depth` blocks per width; each width after the first halves the image."""
    blocks = []
    for stage, width in enumerate(widths):
        for i in range(depth):
            blocks.append(block(inputs, width, 2 if stage > 0 and i == 0 else 1))
            inputs = width
    return nn.Sequential(*blocks)


def through(network: nn.Module, x: Tensor) -> Tensor:
    """Return network(x); `torch.compile` compiles this one function for all networks and blocks."""
    return network(x)


class ResidualNetwork(nn.Module):
    """A sequence of blocks; `each` calls one block, so that a compiler compiles once per kind of block."""

    blocks: nn.Sequential

    def through_blocks(self, x: Tensor, each: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
        for block in self.blocks:
            x = each(block, x)
        return x


class PreActivationResNet(ResidualNetwork):
    """The CIFAR residual network: three stages of `depth` pre-activation blocks, 16, 32, 64 times `widen`."""

    def __init__(self, channels: int, depth: int, widen: int = 1) -> None:
        super().__init__()
        widths = (16 * widen, 32 * widen, 64 * widen)
        self.stem = _conv3x3(channels, 16)
        self.blocks = _stages(PreActivationBlock, 16, widths, depth)
        self.norm = BatchNorm2d(widths[-1])
        self.out_features = widths[-1]

    def forward(self, x: Tensor, each: Callable[[nn.Module, Tensor], Tensor] = through) -> Tensor:
        x = self.through_blocks(self.stem(x), each)  # (batch, 64 widen, height/4, width/4)
        return F.relu_(self.norm(x)).mean((2, 3))  # (batch, 64 widen)


class ResNet18(ResidualNetwork):
    """ResNet18 for small images: a 3x3 stem at stride one, no max pooling; 512 features."""

    out_features = 512

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = _conv3x3(channels, 64)
        self.norm = BatchNorm2d(64)
        self.blocks = _stages(BasicBlock, 64, (64, 128, 256, 512), 2)

    def forward(self, x: Tensor, each: Callable[[nn.Module, Tensor], Tensor] = through) -> Tensor:
        x = self.through_blocks(F.relu_(self.norm(self.stem(x))), each)  # (batch, 512, height/8, width/8)
        return x.mean((2, 3))  # (batch, 512)
