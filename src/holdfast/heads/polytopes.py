"""The geometry of fixed classifiers: simplex, orthoplex, cube and polygon.

A polytope gives every slot a unit vertex; a slot's logit is the dot product of the features and its vertex. Closed
forms replace the vertex matrix and, for the loss, the logits. So a million slots cost no more than the features.
"""

from __future__ import annotations

import math
import operator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import BadConfig
from .chunks import by_rows

SMALL = 2**22  # numbers up to which it is fastest to compute all logits, or a few copies of the features
MOST_LOGITS = 2**24  # a cube with more slots never computes all its logits
MOST_VERTICES = 2**30  # numbers above which no vertex matrix is built


class Polytope:
    """Unit vertices in `dim` dimensions, one per slot.

    It has no tensors and no parameters, and follows the features' device and dtype. A subclass defines `_dim` and
    `_vertices`; its other overrides are closed forms that avoid the vertices.
    """

    name = "polytope"
    fewest = 1  # slots
    few = 2**15  # slots up to which F.cross_entropy is fast and precise (over a million, float32 sums are off by 1e-4)

    def __init__(self, slots: int) -> None:
        try:
            self.slots = operator.index(slots)
        except TypeError:
            raise BadConfig(f"The slots of a {self.name} are a whole number, not {slots!r}.") from None
        if self.slots < self.fewest:
            raise BadConfig(f"A {self.name} needs at least {self.fewest} slots, not {slots}.")
        self.dim = self._dim()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.slots})"

    def vertices(
        self,
        slots: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Build the vertices of all slots, or of the given ones, as unit rows (slots, dim)."""
        if slots is not None:
            self._check_slots(slots)
        elif self.slots * self.dim > MOST_VERTICES:
            raise BadConfig(
                f"{self!r} has too many vertices to build them all: ask for some with vertices(slots)."
            )
        else:
            slots = torch.arange(self.slots, device=device)
        return self._vertices(slots.to(device or slots.device), dtype or torch.get_default_dtype())

    def logits(self, features: Tensor, slots: Tensor | None = None) -> Tensor:
        """Return the logits (batch, slots) in closed form, of all slots or of the given ones."""
        if slots is not None:
            self._check_slots(slots)
        return self._logits(self._checked(features), slots)

    def logsumexp(self, features: Tensor) -> Tensor:
        """Return the log of the sum of exp(logit) over all slots, (batch,), without computing the logits."""
        return by_rows(lambda f, slots: self._logsumexp(f), self._checked(features), None, above=SMALL)

    def loss(
        self, features: Tensor, slots: Tensor, *, bias: Tensor | None = None, reduction: str = "mean"
    ) -> Tensor:
        """Return the cross-entropy over all slots; the logits are computed only if a `bias` (slots,) is added."""
        features = self._checked(features)
        self._check_slots(slots)
        if len(slots) != len(features):
            raise BadConfig(f"The loss needs one slot per sample: {len(features)} samples, but {len(slots)} slots.")
        if bias is not None and bias.shape != (self.slots,):
            raise BadConfig(f"The bias of {self!r} has shape ({self.slots},), not {tuple(bias.shape)}.")
        if reduction not in ("mean", "sum", "none"):
            raise BadConfig(f"The reduction is 'mean', 'sum' or 'none', not {reduction!r}.")
        if bias is not None:
            return F.cross_entropy(self._scores(features) + bias, slots, reduction=reduction)
        if self._is_small(features):
            return F.cross_entropy(self._scores(features), slots, reduction=reduction)
        losses = by_rows(self._cross_entropy, features, slots, above=SMALL)  # (batch,)
        return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()

    def predict(self, features: Tensor) -> Tensor:
        """Return the slot with the largest logit, (batch,), without computing the logits; on a tie the first."""
        return self._predict(self._checked(features))

    # Defaults that use the vertices. Features (batch, dim) are already checked and at least float32.

    def _dim(self) -> int:
        raise NotImplementedError

    def _vertices(self, slots: Tensor, dtype: torch.dtype) -> Tensor:  # (n,) to (n, dim)
        raise NotImplementedError

    def _logits(self, features: Tensor, slots: Tensor | None) -> Tensor:  # (batch, slots) or (batch, n)
        slots = torch.arange(self.slots, device=features.device) if slots is None else slots
        with torch.autocast(features.device.type, enabled=False):
            return features @ self._vertices(slots, features.dtype).T

    def _scores(self, features: Tensor) -> Tensor:
        """Return the logits (batch, slots) up to a constant per row, which a softmax ignores."""
        return self._logits(features, None)

    def _own_logit(self, features: Tensor, slots: Tensor) -> Tensor:
        """Return each row's logit of its own slot, (batch,)."""
        return (features * self._vertices(slots, features.dtype)).sum(-1)

    def _logsumexp(self, features: Tensor) -> Tensor:  # (batch,)
        return self._logits(features, None).logsumexp(-1)

    def _cross_entropy(self, features: Tensor, slots: Tensor) -> Tensor:  # (batch,)
        return self._logsumexp(features) - self._own_logit(features, slots)

    def _predict(self, features: Tensor) -> Tensor:  # (batch,)
        return self._scores(features).argmax(-1)

    def _is_small(self, features: Tensor) -> bool:
        return self.slots <= self.few and len(features) * self.slots <= SMALL

    # Validation.

    def _checked(self, features: Tensor) -> Tensor:
        if features.ndim != 2 or features.shape[1] != self.dim:
            raise BadConfig(
                f"{self!r} needs features of shape (batch, {self.dim}), not {tuple(features.shape)}: "
                f"a junction (a linear layer to {self.dim}) maps a backbone's features to it."
            )
        return features.float() if features.dtype in (torch.float16, torch.bfloat16) else features

    def _check_slots(self, slots: Tensor) -> None:
        if slots.dtype != torch.int64 or slots.ndim != 1:
            seen = f"{slots.dtype} of shape {tuple(slots.shape)}"
            raise BadConfig(f"Slots are int64 of shape (n,), one per sample, not {seen}: try slots.long().")
        # Check the values only where that is cheap: no GPU synchronisation, not under vmap or compile.
        if slots.device.type != "cpu" or slots.numel() == 0 or torch.compiler.is_compiling():
            return
        if not torch._C._functorch.is_functorch_wrapped_tensor(slots) and self._outside(slots):
            low, high = slots.min().item(), slots.max().item()
            raise BadConfig(f"{self!r} has slots 0 to {self.slots - 1}, but was given slots {low} to {high}.")

    def _outside(self, slots: Tensor) -> bool:
        low, high = torch.aminmax(slots)
        return low.item() < 0 or high.item() >= self.slots


class Simplex(Polytope):
    """K slots in d = K-1 dimensions; every two vertices have cosine -1/(K-1). This is the paper's classifier.

    Start from {e_1, ..., e_d, alpha sum(e_i)} with alpha = (1 - sqrt(K))/d, subtract the centroid c sum(e_i) with
    c = (1 + alpha)/K, and normalise with scale = sqrt(K/d). With S = sum(f) the logits are
    logit_i = scale (f_i - c S) for i <= d, and logit_K = scale (alpha - c) S.
    """

    name = "simplex"
    fewest = 2

    def _dim(self) -> int:
        self.alpha = -1 / (1 + math.sqrt(self.slots))  # = (1 - sqrt(K))/d, without cancellation
        self.c = (1 + self.alpha) / self.slots
        self.scale = math.sqrt(self.slots / (self.slots - 1))
        return self.slots - 1

    def _vertices(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        basis = torch.zeros(len(slots), self.dim, dtype=dtype, device=slots.device)
        basis.scatter_(1, slots.clamp(max=self.dim - 1)[:, None], 1.0)  # e_i
        basis[slots == self.dim] = self.alpha  # alpha sum(e_i)
        return (basis - self.c) * self.scale

    def _scores(self, features: Tensor) -> Tensor:
        return torch.cat([features, self.alpha * features.sum(-1, keepdim=True)], -1).mul_(self.scale)

    def _logits(self, features: Tensor, slots: Tensor | None) -> Tensor:
        S = features.sum(-1, keepdim=True)  # (batch, 1)
        if slots is None:
            basis = torch.cat([features, self.alpha * S], -1)
        else:
            e = features[:, slots.clamp(max=self.dim - 1)]
            basis = torch.where(slots < self.dim, e, self.alpha * S)
        return self.scale * (basis - self.c * S)

    def _own_logit(self, features: Tensor, slots: Tensor) -> Tensor:
        S = features.sum(-1)  # (batch,)
        e = features.gather(1, slots.clamp(max=self.dim - 1)[:, None])[:, 0]
        return self.scale * (torch.where(slots < self.dim, e, self.alpha * S) - self.c * S)

    def _logsumexp(self, features: Tensor) -> Tensor:
        S = self.scale * features.sum(-1)  # (batch,)
        return torch.logaddexp((self.scale * features).logsumexp(-1), self.alpha * S) - self.c * S

    def _predict(self, features: Tensor) -> Tensor:
        best, slot = features.max(-1)
        return torch.where(self.alpha * features.sum(-1) > best, self.dim, slot)


class Orthoplex(Polytope):
    """2d slots in d dimensions: slot i is e_i and slot d+i is -e_i, so the logits are [f, -f].

    An odd number of slots leaves out the last -e_d.
    """

    name = "orthoplex"

    def _dim(self) -> int:
        self.negatives = self.slots // 2  # number of slots with a -e_i
        return self.slots - self.negatives

    def _sign(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        return 1 - 2 * (slots >= self.dim).to(dtype)

    def _vertices(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        basis = torch.zeros(len(slots), self.dim, dtype=dtype, device=slots.device)
        return basis.scatter_(1, slots[:, None] % self.dim, self._sign(slots, dtype)[:, None])

    def _logits(self, features: Tensor, slots: Tensor | None) -> Tensor:
        if slots is None:
            return torch.cat([features, -features[:, : self.negatives]], -1)
        return features[:, slots % self.dim] * self._sign(slots, features.dtype)

    def _own_logit(self, features: Tensor, slots: Tensor) -> Tensor:
        return features.gather(1, slots[:, None] % self.dim)[:, 0] * self._sign(slots, features.dtype)

    def _logsumexp(self, features: Tensor) -> Tensor:
        return torch.logaddexp(features.logsumexp(-1), (-features[:, : self.negatives]).logsumexp(-1))

    def _predict(self, features: Tensor) -> Tensor:
        best, slot = features.max(-1)
        if self.negatives == 0:
            return slot
        least, opposite = features[:, : self.negatives].min(-1)
        return torch.where(-least > best, self.dim + opposite, slot)


class Cube(Polytope):
    """2^d slots in d dimensions: coordinate i of a vertex is +1/sqrt(d) if bit i of its slot is set, else -1/sqrt(d).

    With g = f/sqrt(d) the sum over all corners factorises: log sum exp = sum_i log(2 cosh(g_i)). So cross-entropy
    over 2^d slots is the sum of d binary cross-entropies. If the number of slots n is not a power of two, the codes
    below n form one subcube per set bit b of n: bits above b as in n, bit b clear, bits below b free. A slot has at
    most the 64 bits of an int64.
    """

    name = "cube"
    few = 64

    def _dim(self) -> int:
        if self.slots > 2**64:
            raise BadConfig(f"A cube has at most 2**64 slots (a slot is an int64), not {self.slots}.")
        dim = max(1, (self.slots - 1).bit_length())
        self.full = self.slots == 2**dim  # every corner is a slot
        self.code = self.slots - 2**64 if self.slots >= 2**63 else self.slots  # n as an int64 bit pattern
        return dim

    def _bits(self, codes: Tensor | int, device: torch.device) -> Tensor:  # (n, 1) or () to (n, dim) or (dim,)
        return (codes >> torch.arange(self.dim, device=device)) & 1

    def _vertices(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        return (2 * self._bits(slots[:, None], slots.device) - 1).to(dtype) / math.sqrt(self.dim)

    def _logits(self, features: Tensor, slots: Tensor | None) -> Tensor:
        if slots is not None:
            return super()._logits(features, slots)
        if self.slots > MOST_LOGITS:
            raise BadConfig(
                f"{self!r} has too many logits to compute them all, which logits and a bias need: compute some with "
                "logits(features, slots), or use loss without a bias, and predict."
            )
        g = features / math.sqrt(self.dim)
        first, *others = torch.stack([-g, g], -1).unbind(1)  # dim times (batch, 2): bit clear, bit set
        logits = first
        for pair in others:  # every coordinate doubles the corners
            logits = (pair[:, :, None] + logits[:, None, :]).flatten(1)
        return logits[:, : self.slots]

    def _is_small(self, features: Tensor) -> bool:
        return not self.full and super()._is_small(features)

    def _cross_entropy(self, features: Tensor, slots: Tensor) -> Tensor:
        if not self.full:
            return super()._cross_entropy(features, slots)
        g, bits = features / math.sqrt(self.dim), self._bits(slots[:, None], slots.device)
        return F.binary_cross_entropy_with_logits(2 * g, bits.to(g.dtype), reduction="none").sum(-1)

    def _subcubes(self, g: Tensor, free: Tensor) -> Tensor:
        """Return (batch, dim): per set bit of n its subcube's fixed part plus `free` of the lower bits, else -inf."""
        bits = self._bits(self.code, g.device)  # (dim,)
        above = F.pad((g * (2 * bits - 1)).flip(-1).cumsum(-1), (1, -1)).flip(-1)  # sum over i > b
        below = F.pad(free.cumsum(-1), (1, -1))  # sum over i < b
        return (above - g + below).masked_fill(bits == 0, -math.inf)

    def _logsumexp(self, features: Tensor) -> Tensor:
        g = features / math.sqrt(self.dim)
        log_2cosh = torch.logaddexp(g, -g)
        return log_2cosh.sum(-1) if self.full else self._subcubes(g, log_2cosh).logsumexp(-1)

    def _predict(self, features: Tensor) -> Tensor:
        places = torch.arange(self.dim, device=features.device)
        corner = ((features > 0).long() << places).sum(-1)  # the nearest of all corners
        if self.full:
            return corner
        reach = self._subcubes(features, features.abs()).flip(-1)  # high bits first: their codes are lower
        bit = 1 << (self.dim - 1 - reach.argmax(-1))
        return (corner & (bit - 1)) | (self.code & ~(bit | (bit - 1)))

    def _outside(self, slots: Tensor) -> bool:
        if self.slots <= 2**63:
            return super()._outside(slots)
        return bool(((slots < 0) & (slots > self.code - 1)).any()) if self.slots < 2**64 else False


class Polygon(Polytope):
    """K slots on a circle, slot i at the angle 2 pi i/K: two dimensions, for plots.

    The sum over slots has no closed form. There are only K pairs, so the vertices are used.
    """

    name = "polygon"
    fewest = 3

    def _dim(self) -> int:
        return 2

    def _vertices(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        angle = slots.to(dtype) * (2 * math.pi / self.slots)
        return torch.stack([angle.cos(), angle.sin()], -1)

    def _predict(self, features: Tensor) -> Tensor:
        turn = torch.atan2(features[:, 1], features[:, 0]) / (2 * math.pi)
        return (turn * self.slots).round().long() % self.slots


POLYTOPES: dict[str, type[Polytope]] = {p.name: p for p in (Simplex, Orthoplex, Cube, Polygon)}
