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

from .errors import BadConfig, nearest
from .norms import BatchNorm1d, BatchNorm2d
from .registry import Registry
from .resnets import PreActivationResNet, ResNet18

Shape = tuple[int, ...]
Factory = Callable[[Shape], nn.Module]

BACKBONES: Registry[Factory] = Registry("backbone", "steadfast.backbones")
register = BACKBONES.register  # decorates a `shape -> nn.Module` factory, and `build` knows it by its name


def names() -> tuple[str, ...]:
    """The names `build` knows, besides `timm:NAME`."""
    return tuple(BACKBONES)


def describe() -> dict[str, str]:
    """A line on each backbone."""
    return BACKBONES.describe()


def check(name: str) -> None:
    """Refuse a name that `build` does not know, with the nearest one."""
    if not name.startswith("timm:") and name not in BACKBONES:
        raise nearest("backbone", name, [*BACKBONES, "timm:NAME"])


def build(name: str | nn.Module, shape: Shape) -> nn.Module:
    """The backbone for inputs of `shape`, (channels, height, width) or (n,), with its `out_features`."""
    shape = tuple(shape)
    if not shape or any(not isinstance(size, int) or size < 1 for size in shape):
        raise BadConfig(f"A backbone's input shape is (channels, height, width) or (n,), not {shape}.")
    if isinstance(name, nn.Module):
        return adapt(name, shape)
    if name.startswith("timm:"):
        return adapt(_from_timm(name.removeprefix("timm:"), shape), shape)
    check(name)
    network = BACKBONES[name](shape)
    return network if isinstance(getattr(network, "out_features", None), int) else adapt(network, shape)


# The paper's LeNet, and the networks we have by name.


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


def _preactivation(name: str, depth: int, widen: int = 1) -> Factory:
    return lambda shape: PreActivationResNet(_image(name, shape)[0], depth, widen)


def _resnet18(shape: Shape) -> nn.Module:
    return ResNet18(_image("resnet18", shape)[0])


register("lenet", "two 5x5 convolutions, a linear layer, batch norm; 500 features, 1.6 M parameters")(LeNet)
register("mlp", "two hidden layers of 400 with ReLU, for vectors and images; 400 features")(MLP)
register("resnet20", "pre-activation, 3 x 3 blocks; 64 features, 0.27 M parameters")(_preactivation("resnet20", 3))
register("resnet32", "pre-activation, 3 x 5 blocks; 64 features, 0.47 M parameters")(_preactivation("resnet32", 5))
register("resnet56", "pre-activation, 3 x 9 blocks; 64 features, 0.86 M parameters")(_preactivation("resnet56", 9))
register("resnet110", "pre-activation, 3 x 18 blocks; 64 features, 1.7 M parameters")(_preactivation("resnet110", 18))
register("resnet18", "4 x 2 blocks, for small images; 512 features, 11.2 M parameters")(_resnet18)
register("wrn-28-2", "wide, 3 x 4 blocks; 128 features, 1.5 M parameters")(_preactivation("wrn-28-2", 4, 2))
register("wrn-28-10", "wide, 3 x 4 blocks; 640 features, 36.5 M parameters")(_preactivation("wrn-28-10", 4, 10))


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
    try:
        return timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels)
    except Exception as error:  # whatever it raises for a name it does not know or a model without such inputs
        raise BadConfig(
            f"timm makes no {name!r} for {channels} channels: {error}. `timm.list_models()` gives its names."
        ) from error
