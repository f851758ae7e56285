"""`check_backbone`: a backbone keeps the promises that learners rely on."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .. import backbones
from .failing import check_entry, require

CLOSE = 1e-4  # batches of different sizes may round differently


def check_backbone(name: str | nn.Module, shape: tuple[int, ...] = (3, 32, 32), **options: Any) -> None:
    """Raise CheckFailed unless this backbone works for inputs of `shape`: a registered name, or your own module.

    Features of the announced size; a batch of one in training; gradients; the same weights from the same seed; features
    in evaluation that depend on the sample alone; a state dict that restores them.
    """
    if isinstance(name, str) and not name.startswith("timm:"):
        check_entry(backbones.BACKBONES, name)
    said = name if isinstance(name, str) else type(name).__name__
    network, twin = _built(name, shape, 0, options), _built(name, shape, 0, options)
    require(_same(network, twin),
            f"{said}: two networks of the same seed differ; draw weights from the global generator.")
    x = torch.randn(6, *shape, generator=torch.Generator().manual_seed(1))
    given, width = x.clone(), network.out_features
    network.train()
    features = network(x)
    require(tuple(features.shape) == (6, width), f"{said}: features are {tuple(features.shape)}, not (6, {width}).")
    require(torch.equal(x, given), f"{said}: it changes its input; work on a copy.")
    features.square().sum().backward()
    require(any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in network.parameters() if p.requires_grad)
            or not any(p.requires_grad for p in network.parameters()), f"{said}: no weight gets a gradient.")
    single = network(x[:1])
    require(tuple(single.shape) == (1, width) and bool(single.isfinite().all()),
            f"{said}: a training batch of one gives {tuple(single.shape)}; a task may end with one sample.")
    _check_evaluation(said, network, _built(name, shape, 2, options), x)


def _built(name: str | nn.Module, shape: tuple[int, ...], seed: int, options: dict[str, Any]) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not isinstance(name, str):
            return backbones.build(copy.deepcopy(name), shape)
        return backbones.build(name, shape, backbones.options(name)(**options))


@torch.no_grad()
def _check_evaluation(said: str, network: nn.Module, other: nn.Module, x: Tensor) -> None:
    network.eval()
    features = network(x)
    require(torch.equal(features, network(x)), f"{said}: in evaluation the same input gives different features.")
    alone = torch.cat([network(x[at : at + 1]) for at in range(len(x))])
    require(torch.allclose(features, alone, rtol=CLOSE, atol=CLOSE * float(features.abs().max())),
            f"{said}: in evaluation a sample's features depend on the rest of its batch.")
    other.eval().load_state_dict(network.state_dict())
    require(torch.equal(other(x), features), f"{said}: its state dict does not restore its features.")


def _same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values()))
