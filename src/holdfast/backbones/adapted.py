"""Use other networks as backbones: any `torch.nn.Module`, and timm's by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import BadConfig
from .networks import Shape, image_shape

PUBLISHED = "published"  # timm:NAME@published starts from the weights that timm downloads


class Adapted(nn.Module):
    """A network whose output is flattened to (batch, out_features)."""

    def __init__(self, network: nn.Module, out_features: int) -> None:
        super().__init__()
        self.network = network
        self.out_features = out_features

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).flatten(1)  # (batch, out_features)


def adapt(network: nn.Module, shape: Shape) -> nn.Module:
    """Return `network` with `out_features`, found by a forward pass that does not change the network."""
    try:
        with _quiet(network), torch.no_grad():
            weight = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
            output = network(torch.zeros(2, *shape, dtype=weight.dtype, device=weight.device))
    except Exception as error:
        raise BadConfig(f"{type(network).__name__} does not take inputs of shape {shape}: {error}") from error
    if not isinstance(output, Tensor) or output.dim() < 2 or output.shape[0] != 2:
        seen = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise BadConfig(
            f"A backbone must return (batch, features); {type(network).__name__} returned {seen} for a batch of 2. "
            "Wrap it in a module that returns only its features."
        )
    found = output[0].numel()
    if output.dim() == 2 and getattr(network, "out_features", None) == found:
        return network
    return Adapted(network, found)


@contextmanager
def _quiet(network: nn.Module) -> Iterator[None]:
    """Put `network` into evaluation mode; restore its modes and the random generators afterwards."""
    modes = {module: module.training for module in network.modules()}
    with torch.random.fork_rng(devices={p.device for p in network.parameters() if p.is_cuda}):
        try:
            network.eval()
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode


def from_timm(name: str, shape: Shape) -> nn.Module:
    """Build a network of timm: `NAME` with random weights, `NAME@published`, or `NAME@FILE.safetensors`."""
    channels, _, _ = image_shape(f"timm:{name}", shape)
    name, _, weights = name.partition("@")
    try:
        import timm
    except ImportError as error:
        raise BadConfig(
            f"The backbone 'timm:{name}' needs timm, which is not installed: pip install 'holdfast[timm]'"
        ) from error
    try:
        network: nn.Module = timm.create_model(
            name, pretrained=weights == PUBLISHED, num_classes=0, in_chans=channels
        )
    except Exception as error:  # timm raises many kinds for unknown names and unsupported inputs
        raise BadConfig(
            f"timm makes no {name!r} for {channels} channels: {error}. `timm.list_models()` gives its names."
        ) from error
    if weights and weights != PUBLISHED:
        from ..embedders.photographs import load_weights

        load_weights(network, Path(weights).expanduser(), name)
    return network
