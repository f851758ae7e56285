"""Features to logits and loss: fixed on a polytope, expanding, preallocated; one interface.

The paper's method is `FixedHead(Simplex(K))`: a trainable junction maps the features to the polytope's
space, where the class directions are fixed vertices that never move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import BadConfig
from .polytopes import Cube, Orthoplex, Polygon, Polytope, Simplex
from .registry import Registry

OVER = ("all", "seen")


class Head(nn.Module):
    """What every head does. `over` says which outputs the softmax runs over, in training and at test:
    `all` slots from the start (unseen classes then see negatives), or only the ones `seen` so far."""

    def __init__(self, slots: int, dim: int, over: str) -> None:
        super().__init__()
        if over not in OVER:
            raise BadConfig(f"over is {over!r}; the softmax runs over one of {', '.join(OVER)}.")
        self.slots, self.dim, self.over = slots, dim, over
        self.register_buffer("seen", torch.empty(0, dtype=torch.long), persistent=False)
        self.seen: Tensor  # (n,) the slots in use, in ascending order

    def open(self, slots: Iterable[int]) -> None:
        """New classes take these slots from now on."""
        new = sorted({*self.seen.tolist(), *slots})
        if outside := [slot for slot in new if not 0 <= slot < self.slots]:
            raise BadConfig(f"Slots {outside} do not exist: this head has {self.slots} slots; allocate more.")
        self.seen = torch.tensor(new, dtype=torch.long, device=self.seen.device)

    def close(self, slot: int) -> None:
        """The class in this slot is gone; its slot is free again."""
        self.seen = self.seen[self.seen != slot]

    def embed(self, features: Tensor) -> Tensor:
        """(batch, in) to (batch, dim): the space in which the class directions live."""
        raise NotImplementedError

    def directions(self, slots: Tensor) -> Tensor:
        """(n, dim) unit vectors of these slots."""
        raise NotImplementedError

    def outputs(self, embedded: Tensor, slots: Tensor | None = None) -> Tensor:
        """(batch, dim) to the logits of all slots, or of the given ones."""
        raise NotImplementedError

    def cross_entropy(self, embedded: Tensor, slots: Tensor, prior: Tensor | None, reduction: str) -> Tensor:
        """Cross-entropy over all slots; `prior` (slots,) is added to the logits."""
        logits = self.outputs(embedded)
        return F.cross_entropy(logits if prior is None else logits + prior, slots, reduction=reduction)

    def logits(self, features: Tensor) -> Tensor:
        """(batch, in) to (batch, slots), or (batch, seen) in the order of `seen`."""
        return self.outputs(self.embed(features), self.seen if self.over == "seen" else None)

    def forward(self, features: Tensor) -> Tensor:
        """The logits, so that a head stands wherever a classifier's last layer does."""
        return self.logits(features)

    def loss(self, features: Tensor, slots: Tensor, *, prior: Tensor | None = None, reduction: str = "mean") -> Tensor:
        """Cross-entropy over the slots that `over` names; `prior` (slots,) shifts the logits in training."""
        embedded = self.embed(features)
        if self.over == "all":
            return self.cross_entropy(embedded, slots, prior, reduction)
        logits = self.outputs(embedded, self.seen)  # (batch, seen)
        if prior is not None:
            logits = logits + prior[self.seen]
        columns = torch.searchsorted(self.seen, slots)
        known = self.seen[columns.clamp(max=len(self.seen) - 1)] == slots
        try:  # a slot that was not opened has no column; nobody waits to see whether there is one
            return F.cross_entropy(logits, torch.where(known, columns, logits.shape[1]), reduction=reduction)
        except IndexError:
            strange = sorted(set(slots.tolist()) - set(self.seen.tolist()))[:5]
            raise BadConfig(f"Slots {strange} have not been opened; call head.open({strange}) first.") from None

    def predict(self, features: Tensor) -> Tensor:
        """(batch, in) to the slot of the largest logit, (batch,)."""
        return self.nearest(self.embed(features))

    def nearest(self, embedded: Tensor) -> Tensor:
        """(batch, dim) to the slot of the largest logit among those that `over` names."""
        if self.over == "seen":
            return self.seen[self.outputs(embedded, self.seen).argmax(1)]
        return self.outputs(embedded).argmax(1)

    def get_extra_state(self) -> Tensor:
        return self.seen

    def set_extra_state(self, state: Tensor) -> None:
        found = state.tolist() if state.dtype == torch.long and state.dim() == 1 else [-1]
        if found != sorted({*found}) or (found and not 0 <= found[0] <= found[-1] < self.slots):
            raise ValueError(f"the slots {found[:10]} in use, in a head of {self.slots}; they are ascending numbers")
        self.seen = state.to(self.seen.device)


class FixedHead(Head):
    """The paper's classifier: a trainable junction, then directions fixed at a polytope's vertices."""

    def __init__(self, in_features: int, polytope: Polytope, over: str = "all") -> None:
        super().__init__(polytope.slots, polytope.dim, over)
        self.polytope = polytope
        self.junction = nn.Linear(in_features, polytope.dim)

    def embed(self, features: Tensor) -> Tensor:
        return self.junction(features)

    def directions(self, slots: Tensor) -> Tensor:
        return self.polytope.vertices(slots, dtype=self.junction.weight.dtype, device=slots.device)

    def outputs(self, embedded: Tensor, slots: Tensor | None = None) -> Tensor:
        return self.polytope.logits(embedded, slots)

    def cross_entropy(self, embedded: Tensor, slots: Tensor, prior: Tensor | None, reduction: str) -> Tensor:
        return self.polytope.loss(embedded, slots, bias=prior, reduction=reduction)  # closed form, no logits

    def nearest(self, embedded: Tensor) -> Tensor:
        return super().nearest(embedded) if self.over == "seen" else self.polytope.predict(embedded)


class TrainableHead(Head):
    """A linear layer with one trainable row a slot.

    Over `seen` it is the expanding classifier: a row whose class has not come has no logit, so no gradient
    and no Adam state either; that makes it equal to a matrix that grows (to the bit with plain optimizers, to
    rounding with fused ones), while every parameter keeps
    its shape for the optimizer, the importances and the checkpoint. Over `all` it is the pre-allocated one.
    """

    def __init__(self, in_features: int, slots: int, over: str, embedding: int | None = None) -> None:
        super().__init__(slots, embedding or in_features, over)
        self.junction = nn.Linear(in_features, embedding) if embedding else nn.Identity()
        self.rows = nn.Linear(self.dim, slots)

    def embed(self, features: Tensor) -> Tensor:
        return self.junction(features)

    def directions(self, slots: Tensor) -> Tensor:
        return F.normalize(self.rows.weight.detach()[slots], dim=1)

    def outputs(self, embedded: Tensor, slots: Tensor | None = None) -> Tensor:
        if slots is None:
            return self.rows(embedded)
        return F.linear(embedded, self.rows.weight[slots], self.rows.bias[slots])


Factory = Callable[..., Head]  # (in_features, slots, over | None, embedding | None) -> Head
HEADS: Registry[Factory] = Registry("head", "steadfast.heads")
DEFAULT_OVER: dict[str, str] = {}  # what each of our heads takes None for: the paper's reading


def build(name: str, in_features: int, slots: int, *, over: str | None = None, embedding: int | None = None) -> Head:
    """The head called `name`, with `slots` outputs; `over` by default as the paper reads."""
    return HEADS[name](in_features, slots, over, embedding)


def _fixed(name: str, polytope: Callable[[int], Polytope], line: str) -> None:
    def factory(in_features: int, slots: int, over: str | None, embedding: int | None) -> Head:
        shape = polytope(slots)
        if embedding not in (None, shape.dim):
            raise BadConfig(
                f"embedding is {embedding}, but a {name} of {slots} slots lives in {shape.dim} dimensions; "
                f"leave embedding out, or choose the head 'polygon' (2), 'preallocated' or 'expanding' (any)."
            )
        return FixedHead(in_features, shape, over or "all")

    HEADS.register(name, line)(factory)
    DEFAULT_OVER[name] = "all"


def _trainable(name: str, default: str, line: str) -> None:
    def factory(in_features: int, slots: int, over: str | None, embedding: int | None) -> Head:
        return TrainableHead(in_features, slots, over or default, embedding)

    HEADS.register(name, line)(factory)
    DEFAULT_OVER[name] = default


_fixed("simplex", Simplex, "fixed, K directions in K-1 dimensions, all equally far apart (the paper's method)")
_fixed("orthoplex", Orthoplex, "fixed, 2d directions in d dimensions: the axes, both ways")
_fixed("cube", Cube, "fixed, 2^d directions in d dimensions: 64 numbers hold 2^64 classes")
_fixed("polygon", Polygon, "fixed, K directions in the plane: for pictures of the features")
_trainable("expanding", "seen", "trainable, a row is added when its class comes (the usual classifier)")
_trainable("preallocated", "all", "trainable, all K rows take part from the start (the paper's Tables 2 and 3)")
