"""The registered networks: the paper's LeNet and ResNet56, an MLP, and variants."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from .. import options
from ..errors import BadConfig
from .norms import BatchNorm1d, BatchNorm2d
from .resnets import PreActivationResNet, ResNet18

Shape = tuple[int, ...]


class LeNet(nn.Module):
    """Two 5x5 convolutions and a wide linear layer, each with batch norm; 500 features.

    ReLU comes after the pooling: the two commute, and ReLU then has a quarter of the work.
    """

    out_features = 500

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels, height, width = image_shape("lenet", shape, least=4)
        self.conv1 = nn.Conv2d(channels, 20, 5, padding=2)
        self.norm1 = BatchNorm2d(20)
        self.conv2 = nn.Conv2d(20, 50, 5, padding=2)
        self.norm2 = BatchNorm2d(50)
        self.linear = nn.Linear(50 * (height // 4) * (width // 4), self.out_features)
        self.norm3 = BatchNorm1d(self.out_features)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(F.max_pool2d(self.norm1(self.conv1(x)), 2))  # (batch, 20, height/2, width/2)
        x = F.relu_(F.max_pool2d(self.norm2(self.conv2(x)), 2))  # (batch, 50, height/4, width/4)
        return F.relu_(self.norm3(self.linear(x.flatten(1))))  # (batch, 500)


class MLP(nn.Module):
    """Two hidden layers with ReLU; flattens its input."""

    threads = 1  # its steps are too small to share between threads (docs/speed.md)

    @dataclass(frozen=True)
    class Options(options.Options):
        hidden: int = options.option(400, "units per hidden layer, and number of features", at_least=1)

    def __init__(self, shape: Shape, given: Options | None = None) -> None:
        super().__init__()
        self.out_features = (given or self.Options()).hidden
        self.linear1 = nn.Linear(math.prod(shape), self.out_features)
        self.linear2 = nn.Linear(self.out_features, self.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(self.linear2(F.relu_(self.linear1(x.flatten(1)))))  # (batch, hidden)


def image_shape(name: str, shape: Shape, least: int = 1) -> tuple[int, int, int]:
    """Return (channels, height, width), or raise BadConfig with what to use instead."""
    if len(shape) != 3:
        raise BadConfig(
            f"{name} reads images of shape (channels, height, width), not {shape}. For vectors use 'mlp'."
        )
    channels, height, width = shape
    if min(height, width) < least:
        raise BadConfig(f"{name} needs images of at least {least}x{least}, not {height}x{width}. Use 'mlp'.")
    return channels, height, width


def resnet20(shape: Shape) -> nn.Module:
    return PreActivationResNet(image_shape("resnet20", shape)[0], 3)


def resnet32(shape: Shape) -> nn.Module:
    return PreActivationResNet(image_shape("resnet32", shape)[0], 5)


def resnet56(shape: Shape) -> nn.Module:
    return PreActivationResNet(image_shape("resnet56", shape)[0], 9)


def resnet110(shape: Shape) -> nn.Module:
    return PreActivationResNet(image_shape("resnet110", shape)[0], 18)


def resnet18(shape: Shape) -> nn.Module:
    return ResNet18(image_shape("resnet18", shape)[0])


def wrn_28_2(shape: Shape) -> nn.Module:
    return PreActivationResNet(image_shape("wrn-28-2", shape)[0], 4, 2)


def wrn_28_10(shape: Shape) -> nn.Module:
    return PreActivationResNet(image_shape("wrn-28-10", shape)[0], 4, 10)
