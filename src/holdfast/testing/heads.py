"""`check_head`: a head keeps the promises that every method relies on."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .. import heads
from ..heads import HEADS
from ..heads.base import Head
from .failing import check_entry, require

WIDTH, SLOTS, SEEN = 5, 8, (1, 4, 6)


def check_head(name: str, **options: Any) -> None:
    """Raise CheckFailed unless the registered head `name` keeps its promises, with these options.

    Shapes; unit directions; a loss that is the cross-entropy of its own logits; gradients for all its parameters;
    predictions among the open slots if the softmax runs over those; a state dict that restores everything.
    """
    check_entry(HEADS, name)
    head = _built(name, 0, options)
    head.open(SEEN[1:])
    head.open(SEEN[:1])
    require(head.seen.tolist() == list(SEEN), f"{name}: after open, `seen` is {head.seen.tolist()}, not {list(SEEN)}.")
    features = torch.randn(12, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    slots = torch.tensor(SEEN).repeat(4)
    _check_shapes(name, head, features)
    _check_loss(name, head, features, slots)
    _check_state(name, head, features, slots, options)
    head.close(SEEN[0])
    require(head.seen.tolist() == list(SEEN[1:]), f"{name}: close({SEEN[0]}) left {head.seen.tolist()}.")


def _built(name: str, seed: int, options: dict[str, Any]) -> Head:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return heads.build(name, WIDTH, SLOTS, **options).double()


def _check_shapes(name: str, head: Head, features: torch.Tensor) -> None:
    embedded, columns = head.embed(features), len(SEEN) if head.softmax_over == "seen" else SLOTS
    wanted = {"embed": (12, head.dim), "outputs": (12, SLOTS), "logits": (12, columns), "predict": (12,),
              "directions": (2, head.dim), "outputs of some slots": (12, 2)}
    some = torch.tensor([3, 0])
    found = {"embed": embedded, "outputs": head.outputs(embedded), "logits": head.logits(features),
             "predict": head.predict(features), "directions": head.directions(some),
             "outputs of some slots": head.outputs(embedded, some)}
    for what, tensor in found.items():
        require(tuple(tensor.shape) == wanted[what],
                f"{name}: {what} has shape {tuple(tensor.shape)}, not {wanted[what]}.")
    require(torch.allclose(found["outputs of some slots"], found["outputs"][:, some]),
            f"{name}: the outputs of some slots differ from those columns of all outputs.")
    lengths = head.directions(some).norm(dim=1)
    require(torch.allclose(lengths, torch.ones_like(lengths)),
            f"{name}: directions have lengths {lengths.tolist()}, not 1.")
    if head.softmax_over == "seen":
        strange = {*head.predict(features).tolist()} - {*SEEN}
        require(not strange, f"{name}: predicts {sorted(strange)}, but only {list(SEEN)} are open.")


def _check_loss(name: str, head: Head, features: torch.Tensor, slots: torch.Tensor) -> None:
    """Require the textbook's cross-entropy over the logits, and gradients."""
    columns = torch.searchsorted(torch.tensor(SEEN), slots) if head.softmax_over == "seen" else slots
    for reduction in ("mean", "sum", "none"):
        wanted = F.cross_entropy(head.logits(features), columns, reduction=reduction)
        require(torch.allclose(head.loss(features, slots, reduction=reduction), wanted),
                f"{name}: loss(reduction={reduction!r}) is not the cross-entropy of its logits.")
    inputs = features.clone().requires_grad_()
    head.loss(inputs, slots).backward()
    require(inputs.grad is not None and bool(inputs.grad.abs().sum() > 0), f"{name}: its features get no gradient.")
    idle = [key for key, weight in head.named_parameters() if weight.requires_grad and weight.grad is None]
    require(not idle, f"{name}: {', '.join(idle)} gets no gradient: make it a buffer, or use it.")


def _check_state(
    name: str, head: Head, features: torch.Tensor, slots: torch.Tensor, options: dict[str, Any]
) -> None:
    other = _built(name, 1, options)
    other.load_state_dict(head.state_dict())
    require(other.seen.tolist() == list(SEEN), f"{name}: its state dict does not restore the open slots.")
    require(torch.equal(other.logits(features), head.logits(features))
            and torch.equal(other.loss(features, slots), head.loss(features, slots)),
            f"{name}: its state dict does not restore its outputs: register what is missing as a buffer.")
