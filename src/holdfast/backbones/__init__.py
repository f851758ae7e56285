"""Backbones map images (or vectors) to features: LeNet and ResNet56 as in the paper, and others.

`build` takes a registered name, `timm:NAME`, or any `torch.nn.Module`. The result maps (batch, *shape) to
(batch, out_features). Weights have PyTorch's default initialisation from the global generator; for reproducible
weights, seed it inside `torch.random.fork_rng`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import BadConfig, nearest
from ..options import declared
from ..registry import Registry

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int, ...]
_HERE = "holdfast.backbones.networks"

BACKBONES: Registry[Any] = Registry(  # each entry is a function of the input's shape and, if declared, its options
    "backbone", "holdfast.backbones",
    {
        "lenet": (f"{_HERE}:LeNet",
                  "two 5x5 convolutions, a linear layer, batch norm; 500 features, 1.6 M parameters"),
        "mlp": (f"{_HERE}:MLP", "two hidden layers with ReLU, for vectors and images; 400 features"),
        "resnet20": (f"{_HERE}:resnet20", "pre-activation, 3 x 3 blocks; 64 features, 0.27 M parameters"),
        "resnet32": (f"{_HERE}:resnet32", "pre-activation, 3 x 5 blocks; 64 features, 0.47 M parameters"),
        "resnet56": (f"{_HERE}:resnet56", "pre-activation, 3 x 9 blocks; 64 features, 0.86 M parameters"),
        "resnet110": (f"{_HERE}:resnet110", "pre-activation, 3 x 18 blocks; 64 features, 1.7 M parameters"),
        "resnet18": (f"{_HERE}:resnet18", "4 x 2 blocks, for small images; 512 features, 11.2 M parameters"),
        "wrn-28-2": (f"{_HERE}:wrn_28_2", "wide, 3 x 4 blocks; 128 features, 1.5 M parameters"),
        "wrn-28-10": (f"{_HERE}:wrn_28_10", "wide, 3 x 4 blocks; 640 features, 36.5 M parameters"),
    },
)
register = BACKBONES.register


def names() -> tuple[str, ...]:
    """Return the registered names; `timm:NAME` works too."""
    return tuple(BACKBONES)


def check(name: str) -> None:
    """Raise UnknownName, with the closest known name, for an unknown backbone."""
    if not name.startswith("timm:") and name not in BACKBONES:
        raise nearest("backbone", name, [*BACKBONES, "timm:NAME"])


def unweighted(name: str) -> str:
    """Return a backbone's name without the weights it started from: a saved model has its own."""
    return name.partition("@")[0] if name.startswith("timm:") else name


def options(name: str) -> type[Any]:
    """Return the options dataclass of a backbone."""
    from ..options import Options

    return Options if name.startswith("timm:") else BACKBONES.options(name)


def build(name: str | nn.Module, shape: Shape, given: Any = None) -> nn.Module:
    """Build a backbone for inputs of `shape`, (channels, height, width) or (n,); it has `out_features`."""
    from .adapted import adapt, from_timm

    shape = tuple(shape)
    if not shape or any(not isinstance(size, int) or size < 1 for size in shape):
        raise BadConfig(f"A backbone's input shape is (channels, height, width) or (n,), not {shape}.")
    if not isinstance(name, str):
        return adapt(name, shape)
    if name.startswith("timm:"):
        return adapt(from_timm(name.removeprefix("timm:"), shape), shape)
    check(name)
    kind = BACKBONES.options(name)
    network = BACKBONES[name](shape, given or kind()) if declared(kind) else BACKBONES[name](shape)
    return network if isinstance(getattr(network, "out_features", None), int) else adapt(network, shape)
