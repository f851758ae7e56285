"""The paper's classifier: a trainable junction, then class directions fixed at the vertices of a regular polytope.

    logits = W (A f + b),   W = the polytope's unit vertices, never trained

More vertices are allocated than there are classes today. A new class takes a free vertex, and nothing else moves.
W is never stored: `polytopes.py` has the products, the loss and the arg max in closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadConfig
from ..options import Options, option
from .base import OVER_HELP, SOFTMAX_OVER, Head
from .polytopes import Cube, Orthoplex, Polygon, Polytope, Simplex

MOST_POLYGON_SLOTS = 100  # beyond it, neighbouring directions are under four degrees apart


@dataclass(frozen=True)
class FixedOptions(Options):
    """The options of every fixed head."""

    softmax_over: str = option("all", OVER_HELP, choices=SOFTMAX_OVER)
    radius: float | None = option(
        None, "normalise embedded features to this length, so that they lie on a sphere  (default: not normalised)",
        above=0,
    )
    vertex_probability: float | None = option(
        None, "choose the radius so that a sample exactly at its vertex has this probability, such as 0.9, in a "
        "softmax over all slots", above=0, below=1,
    )

    def check_with(self, run: Any) -> None:
        if self.radius is not None and self.vertex_probability is not None:
            raise BadConfig("radius and vertex_probability are both given, and each sets the sphere: leave one out.")


class FixedHead(Head):
    """A trainable junction, then directions fixed at a polytope's vertices.

    With a `radius` the embedded features have that length: they lie on a sphere. A small radius keeps the loss from
    saturating before a feature points at its vertex, so features settle there and move less when classes are added.
    """

    def __init__(
        self, in_features: int, polytope: Polytope, softmax_over: str = "all", radius: float | None = None
    ) -> None:
        super().__init__(polytope.slots, polytope.dim, softmax_over)
        self.polytope, self.radius = polytope, radius
        self.junction = nn.Linear(in_features, polytope.dim)

    def embed(self, features: Tensor) -> Tensor:
        z = self.junction(features)
        return z if self.radius is None else self.radius * F.normalize(z, dim=1)

    def directions(self, slots: Tensor) -> Tensor:
        return self.polytope.vertices(slots, dtype=self.junction.weight.dtype, device=slots.device)

    def outputs(self, embedded: Tensor, slots: Tensor | None = None) -> Tensor:
        return self.polytope.logits(embedded, slots)

    def cross_entropy(self, embedded: Tensor, slots: Tensor, prior: Tensor | None, reduction: str) -> Tensor:
        return self.polytope.loss(embedded, slots, bias=prior, reduction=reduction)  # closed form, no logits

    def nearest(self, embedded: Tensor) -> Tensor:
        return super().nearest(embedded) if self.softmax_over == "seen" else self.polytope.predict(embedded)


def radius_for(polytope: Polytope, probability: float) -> float:
    """Return the radius at which a sample exactly at its vertex has this probability.

    For the simplex, (K-1)/K log((K-1) p / (1-p)); for the others by bisection, since p grows with the radius."""
    count = polytope.slots
    if probability <= 1 / count:
        raise BadConfig(
            f"vertex_probability is {probability}; with {count} slots it must be above {1 / count:.3g}, chance."
        )
    if isinstance(polytope, Simplex):
        return (count - 1) / count * math.log((count - 1) * probability / (1 - probability))
    first = torch.zeros(1, dtype=torch.long, device="cpu")
    vertex = polytope.vertices(first, dtype=torch.float64, device="cpu")

    def reached(radius: float) -> float:
        z = radius * vertex
        return float((polytope.logits(z, first)[:, 0] - polytope.logsumexp(z)).exp())

    low, high = 0.0, 1.0
    while reached(high) < probability:
        if high > 1e6:
            raise BadConfig(f"vertex_probability is {probability}, which no radius reaches with {polytope}: lower it.")
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) < probability else (low, middle)
    return high


def _head(in_features: int, polytope: Polytope, options: FixedOptions) -> Head:
    radius = options.radius
    if options.vertex_probability is not None:
        radius = radius_for(polytope, options.vertex_probability)
    return FixedHead(in_features, polytope, options.softmax_over, radius)


def simplex(in_features: int, slots: int, options: FixedOptions) -> Head:
    """The paper's head: K vertices in K-1 dimensions, every pair equally far apart."""
    return _head(in_features, Simplex(slots), options)


def orthoplex(in_features: int, slots: int, options: FixedOptions) -> Head:
    return _head(in_features, Orthoplex(slots), options)


def cube(in_features: int, slots: int, options: FixedOptions) -> Head:
    return _head(in_features, Cube(slots), options)


def polygon(in_features: int, slots: int, options: FixedOptions) -> Head:
    if slots > MOST_POLYGON_SLOTS:
        raise BadConfig(
            f"A polygon of {slots} slots puts neighbours {360 / slots:.2g} degrees apart in a plane, too near to tell; "
            f"choose simplex, orthoplex or cube, or at most {MOST_POLYGON_SLOTS} slots."
        )
    return _head(in_features, Polygon(slots), options)


for _each in (simplex, orthoplex, cube, polygon):
    _each.Options = FixedOptions  # type: ignore[attr-defined]
