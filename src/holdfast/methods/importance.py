"""Measure how important each parameter is to a task: the mean over samples of per-sample squared or absolute gradients.

A sample's gradient is J^T c, where J is the Jacobian of its logits and c the gradient of the score with respect to
them. The square (or absolute value) must be taken before the sum over samples, which a normal backward pass does not
do. So one backward pass per chunk delivers each layer's inputs a and output gradients g, from which we compute:

- linear layer: (g_i a_j)^2 = g_i^2 a_j^2, so the sum over samples is one matrix product, (g^2)^T a^2;
- convolution: a product with the unfolded images;
- batch norm: a product with the normalised inputs.

Parameters used in any other way go through `torch.func.vmap(grad)`. Both ways are exact.

`batch_gradients` is the reading of the reference code, which sums the gradients of a batch before the square.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..learning.learner import Learner

BUDGET = {False: 2**28, True: 2**23}  # bytes of per-sample tensors at once (True: on a CPU, to fit the cache)
CHUNK = 128  # samples per forward pass

Slope = Callable[[Tensor, Tensor], Tensor]  # logits (b, n) and slots (b,) to d score / d logits (b, n)
Fold = Callable[[Tensor], Tensor]  # torch.square or torch.abs; must satisfy fold(xy) = fold(x) fold(y)
Totals = Iterator[tuple[Tensor | None, Tensor]]  # a parameter and the sum of its folded per-sample gradients


@torch.no_grad()
def mean_gradients(
    learner: Learner, batches: Iterable[tuple[Tensor, Tensor]], slope: Slope, fold: Fold
) -> list[Tensor]:
    """Return the mean over samples of fold(J^T slope), one tensor per trainable parameter.

    The network is in evaluation mode: batch norm uses its running statistics, so that one sample's gradient does not
    depend on the others. `batches` are uint8 images with their slots; dimension 0 must be the samples.
    """
    network, training, count = _Network(learner), learner.training, 0
    totals = {name: torch.zeros_like(p) for name, p in network.named_parameters() if p.requires_grad}
    frozen = {name: p.detach() for name, p in network.named_parameters()}
    learner.eval()
    for images, slots in batches:
        if learner.ranks is not None:
            images, slots = learner.ranks.mine(images), learner.ranks.mine(slots)
        x = learner.normalise(images)
        if not len(x):  # fewer samples than ranks; other ranks may wait for this one in `slope`
            slope(network(x), slots)
            continue
        with torch.enable_grad(), _Watch({n: frozen[n] for n in totals}, len(x), fold, totals) as watch:
            logits = functional_call(network, frozen, (x,))  # (b, n)
            c = slope(logits.detach(), slots)
            if logits.requires_grad:
                logits.backward(c)
        _one_by_one(network, frozen, watch.others(), x, c, fold, totals)
        count += len(x)
    learner.train(training)
    if learner.ranks is not None:
        seen = torch.tensor(count, device=learner.shift.device)
        learner.ranks.sum([seen, *totals.values()])
        count = int(seen)
    return [total / max(count, 1) for total in totals.values()]


def batch_gradients(
    learner: Learner, batches: Iterable[tuple[Tensor, Tensor]], slope: Slope, fold: Fold
) -> list[Tensor]:
    """Return the mean over batches of fold(sum over the batch of J^T slope) / batch size, as the reference code does.

    `mean_gradients` folds each sample's gradient first. For absolute values it is never smaller than this.
    """
    network, training, count = _Network(learner), learner.training, 0
    parameters = [p for p in network.parameters() if p.requires_grad]
    totals = [torch.zeros_like(p) for p in parameters]
    learner.eval()
    for images, slots in batches:
        size = len(images)
        if learner.ranks is not None:
            images, slots = learner.ranks.mine(images), learner.ranks.mine(slots)
        logits = network(learner.normalise(images))  # (b, n)
        found = torch.autograd.grad(logits, parameters, slope(logits.detach(), slots), allow_unused=True)
        sums = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found)]
        if learner.ranks is not None:
            learner.ranks.sum(sums)
        for total, gradient in zip(totals, sums):
            total += fold(gradient) / size
        count += 1
    learner.train(training)
    return [total / max(count, 1) for total in totals]


class _Network(nn.Module):
    """Maps normalised images to logits."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.learner = learner

    def forward(self, x: Tensor) -> Tensor:
        return self.learner.head.logits(self.learner.backbone(x))


def _one_by_one(
    network: nn.Module, frozen: dict[str, Tensor], names: list[str], x: Tensor, c: Tensor, fold: Fold,
    totals: dict[str, Tensor],
) -> None:
    """Add the folded gradients of the named parameters, computed per sample by vmap in chunks."""

    def score(some: dict[str, Tensor], x: Tensor, c: Tensor) -> Tensor:
        return (functional_call(network, {**frozen, **some}, (x[None],))[0] * c).sum()

    some = {name: frozen[name] for name in names}
    for xs, cs in _parts(sum(p.numel() for p in some.values()), x, c) if some else ():
        for name, g in vmap(grad(score), in_dims=(None, 0, 0))(some, xs, cs).items():
            totals[name] += fold(g).sum(0)


class _Watch(TorchFunctionMode):
    """Intercepts every function that uses a parameter, and collects gradients where RULES has a rule for it."""

    def __init__(self, parameters: dict[str, Tensor], batch: int, fold: Fold, totals: dict[str, Tensor]) -> None:
        super().__init__()
        self.names = {id(p): name for name, p in parameters.items()}
        self.batch, self.fold, self.totals = batch, fold, totals
        self.uses = dict.fromkeys(parameters, 0)  # a rule is valid only if the parameter is used exactly once

    def others(self) -> list[str]:
        """Return the parameters that no rule covers."""
        return [name for name, uses in self.uses.items() if uses != 1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        used = [self.names[id(a)] for a in tree_leaves((args, kwargs)) if id(a) in self.names]
        if not used:
            return out
        covered = func in RULES and self._applies(args, kwargs)
        for name in used:
            self.uses[name] += 1 if covered else 2
        if covered and torch.is_grad_enabled():
            if not out.requires_grad:  # no parameters before this layer: the backward pass may end here
                out = out.requires_grad_().clone()
            out.register_hook(lambda g: self._add(RULES[func](self.fold, g, *args, **kwargs)))
        return out

    def _applies(self, args: Any, kwargs: Any) -> bool:
        x = args[0] if args else None
        plain = isinstance(x, Tensor) and id(x) not in self.names and x.dim() > 1 and len(x) == self.batch
        return plain and not any(isinstance(a, str) or a is True for a in (*args[1:], *kwargs.values()))

    @torch.no_grad()
    def _add(self, found: Totals) -> None:
        for parameter, total in found:
            name = self.names.get(id(parameter))
            if name is not None and self.uses[name] == 1:
                self.totals[name] += total


def _linear(fold: Fold, g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Totals:
    if x.dim() == 2:
        yield weight, fold(g).T @ fold(x)
        yield bias, fold(g).sum(0)
    else:  # (batch, ..., features): sum over the middle dimensions of each sample first
        g, x = g.flatten(1, -2), x.flatten(1, -2)
        for gs, xs in _parts(weight.numel(), g, x):
            yield weight, fold(gs.mT @ xs).sum(0)
        yield bias, fold(g.sum(1)).sum(0)


def _conv2d(
    fold: Fold, g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Totals:
    unfolded = weight[0].numel() * groups * g[0, 0].numel()  # numbers per sample
    (sy, sx), (py, px), (dy, dx) = _pair(stride), _pair(padding), _pair(dilation)
    for gs, xs in _parts(unfolded + weight.numel(), g, x):
        windows = F.pad(xs.contiguous(), (px, px, py, py))  # the result of F.unfold in a third of the time
        windows = windows.unfold(2, dy * (weight.shape[2] - 1) + 1, sy)[..., ::dy]
        windows = windows.unfold(3, dx * (weight.shape[3] - 1) + 1, sx)[..., ::dx]  # (b, inputs, h, w, ky, kx)
        columns = windows.permute(0, 1, 4, 5, 2, 3).reshape(len(xs), groups, weight[0].numel(), -1)
        gs = gs.reshape(len(gs), groups, -1, columns.shape[-1])  # (b, groups, outputs, h * w)
        yield weight, fold(gs @ columns.mT).sum(0).view(weight.shape)  # (b, groups, outputs, inputs * ky * kx)
    yield bias, fold(g.sum((2, 3))).sum(0)


def _batch_norm(
    fold: Fold, g: Tensor, x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Totals:
    places = list(range(2, x.dim()))
    product = (x - mean.view(-1, *[1] * len(places))).mul_(g)  # (batch, channels, ...)
    yield weight, fold((product.sum(places) if places else product) * (var + eps).rsqrt()).sum(0)
    yield bias, fold(g.sum(places) if places else g).sum(0)


RULES: dict[Any, Callable[..., Totals]] = {F.linear: _linear, F.conv2d: _conv2d, F.batch_norm: _batch_norm}


def _parts(numbers: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split the tensors into chunks of samples, so that `numbers` floats per sample stay within the budget."""
    chunk = BUDGET[tensors[0].device.type == "cpu"] // (4 * max(numbers, 1))
    return zip(*(t.split(max(1, chunk)) for t in tensors))


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[-1])
