"""Backbones: from an image (or a vector) to features. LeNet and ResNet56 as in the paper, and friends.

`build` takes a name from `names()`, a `timm:NAME`, or any `nn.Module`; what it gives back maps
(batch, *shape) to (batch, out_features). Weights start as PyTorch starts them, from the global generator:
seed it (in `torch.random.fork_rng`, say) for the same weights again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steadfast.errors import BadConfig, nearest

Shape = tuple[int, ...]
Factory = Callable[[Shape], nn.Module]

_registry: dict[str, tuple[str, Factory]] = {}


def names() -> tuple[str, ...]:
    """The names `build` knows, besides `timm:NAME`."""
    return tuple(_registry)


def describe() -> dict[str, str]:
    """A line on each backbone."""
    return {name: line for name, (line, _) in _registry.items()}


def register(name: str, line: str) -> Callable[[Factory], Factory]:
    """Decorate a `shape -> nn.Module` factory, and `build` knows it by `name`."""

    def add(factory: Factory) -> Factory:
        if name in _registry:
            raise BadConfig(f"A backbone called {name!r} is registered already. Choose another name.")
        _registry[name] = (line, factory)
        return factory

    return add


def build(name: str | nn.Module, shape: Shape) -> nn.Module:
    """The backbone for inputs of `shape`, (channels, height, width) or (n,), with its `out_features`."""
    shape = tuple(shape)
    if not shape or any(not isinstance(size, int) or size < 1 for size in shape):
        raise BadConfig(f"A backbone's input shape is (channels, height, width) or (n,), not {shape}.")
    if isinstance(name, nn.Module):
        return adapt(name, shape)
    if name.startswith("timm:"):
        return adapt(_from_timm(name.removeprefix("timm:"), shape), shape)
    if name not in _registry:
        raise nearest("backbone", name, [*_registry, "timm:NAME"])
    network = _registry[name][1](shape)
    return network if isinstance(getattr(network, "out_features", None), int) else adapt(network, shape)


# Batch norm, for any batch.


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


class BatchNorm2d(_BatchOfOne, nn.BatchNorm2d):
    """`nn.BatchNorm2d` that takes a batch of one."""


# The paper's two, and their families.


class LeNet(nn.Module):
    """Two 5x5 convolutions and a wide linear layer, each with batch norm; 500 features.

    ReLU comes after the pooling: max and ReLU commute, and there is a quarter as much left to rectify.
    """

    out_features = 500

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels, height, width = _image("lenet", shape, least=4)
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
    """Two hidden layers of 400 with ReLU; flattens whatever it is given."""

    out_features = 400

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.linear1 = nn.Linear(math.prod(shape), self.out_features)
        self.linear2 = nn.Linear(self.out_features, self.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(self.linear2(F.relu_(self.linear1(x.flatten(1)))))  # (batch, 400)


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
    """`depth` blocks a width; each width after the first halves the image."""
    blocks = []
    for stage, width in enumerate(widths):
        for i in range(depth):
            blocks.append(block(inputs, width, 2 if stage > 0 and i == 0 else 1))
            inputs = width
    return nn.Sequential(*blocks)


class PreActivationResNet(nn.Module):
    """The CIFAR residual network: three stages of `depth` pre-activation blocks, 16, 32, 64 times `widen`."""

    def __init__(self, shape: Shape, depth: int, widen: int = 1) -> None:
        super().__init__()
        channels, _, _ = _image("a ResNet", shape)
        widths = (16 * widen, 32 * widen, 64 * widen)
        self.stem = _conv3x3(channels, 16)
        self.blocks = _stages(PreActivationBlock, 16, widths, depth)
        self.norm = BatchNorm2d(widths[-1])
        self.out_features = widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))  # (batch, 64 widen, height/4, width/4)
        return F.relu_(self.norm(x)).mean((2, 3))  # (batch, 64 widen)


class ResNet18(nn.Module):
    """ResNet18 for small images: a 3x3 stem at stride one, no max pooling; 512 features."""

    out_features = 512

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels, _, _ = _image("resnet18", shape)
        self.stem = _conv3x3(channels, 64)
        self.norm = BatchNorm2d(64)
        self.blocks = _stages(BasicBlock, 64, (64, 128, 256, 512), 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu_(self.norm(self.stem(x))))  # (batch, 512, height/8, width/8)
        return x.mean((2, 3))  # (batch, 512)


def _image(name: str, shape: Shape, least: int = 1) -> tuple[int, int, int]:
    """(channels, height, width), or an error that says what to use instead."""
    if len(shape) != 3:
        raise BadConfig(
            f"{name} reads images of shape (channels, height, width), not {shape}. For vectors use 'mlp'."
        )
    channels, height, width = shape
    if min(height, width) < least:
        raise BadConfig(f"{name} needs images of at least {least}x{least}, not {height}x{width}. Use 'mlp'.")
    return channels, height, width


def _preactivation(depth: int, widen: int = 1) -> Factory:
    return lambda shape: PreActivationResNet(shape, depth, widen)


register("lenet", "two 5x5 convolutions, a linear layer, batch norm; 500 features, 1.6 M parameters")(LeNet)
register("mlp", "two hidden layers of 400 with ReLU, for vectors and images; 400 features")(MLP)
register("resnet20", "pre-activation, 3 x 3 blocks; 64 features, 0.27 M parameters")(_preactivation(3))
register("resnet32", "pre-activation, 3 x 5 blocks; 64 features, 0.47 M parameters")(_preactivation(5))
register("resnet56", "pre-activation, 3 x 9 blocks; 64 features, 0.86 M parameters")(_preactivation(9))
register("resnet110", "pre-activation, 3 x 18 blocks; 64 features, 1.7 M parameters")(_preactivation(18))
register("resnet18", "4 x 2 blocks, for small images; 512 features, 11.2 M parameters")(ResNet18)
register("wrn-28-2", "wide, 3 x 4 blocks; 128 features, 1.5 M parameters")(_preactivation(4, 2))
register("wrn-28-10", "wide, 3 x 4 blocks; 640 features, 36.5 M parameters")(_preactivation(4, 10))


# Other people's networks.


class Adapted(nn.Module):
    """Somebody's network, its output flattened to (batch, out_features)."""

    def __init__(self, network: nn.Module, out_features: int) -> None:
        super().__init__()
        self.network = network
        self.out_features = out_features

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).flatten(1)  # (batch, out_features)


def adapt(network: nn.Module, shape: Shape) -> nn.Module:
    """`network` with its `out_features`, found by a dry run that leaves no trace in it."""
    try:
        with _quiet(network), torch.no_grad():
            weight = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
            output = network(torch.zeros(2, *shape, dtype=weight.dtype, device=weight.device))
    except Exception as error:
        raise BadConfig(f"{type(network).__name__} does not take inputs of shape {shape}: {error}") from error
    if not isinstance(output, Tensor) or output.dim() < 2 or output.shape[0] != 2:
        seen = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise BadConfig(
            f"A backbone gives (batch, features); {type(network).__name__} gave {seen} for a batch of 2. "
            "Wrap it in a module that returns its features alone."
        )
    found = output[0].numel()
    if output.dim() == 2 and getattr(network, "out_features", None) == found:
        return network
    return Adapted(network, found)


@contextmanager
def _quiet(network: nn.Module) -> Iterator[None]:
    """`network` in eval mode, where batch norm learns nothing; modes and generators as before when done."""
    modes = {module: module.training for module in network.modules()}
    with torch.random.fork_rng(devices={p.device for p in network.parameters() if p.is_cuda}):
        try:
            network.eval()
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode


def _from_timm(name: str, shape: Shape) -> nn.Module:
    channels, _, _ = _image(f"timm:{name}", shape)
    try:
        import timm
    except ImportError as error:
        raise BadConfig(
            f"The backbone 'timm:{name}' needs timm, which is not installed: pip install 'steadfast[timm]'"
        ) from error
    return timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels)
