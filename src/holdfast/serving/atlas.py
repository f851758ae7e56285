"""The map of the page: a fixed linear projection of the space of the class directions to two dimensions.

It depends on the polytope alone, so nothing that is learned can move it. Slot k gets a target t_k on the unit circle,
at k golden angles. For the simplex with K vertices w_k the targets are centred, p_k = t_k - mean(t), and

    P z = (K-1)/K sum_k p_k (w_k . z)

has P w_k = p_k, because w_k . w_j = -1/(K-1) and the p_k sum to zero. With the logits in closed form
(`heads.polytopes`) this is one row of two numbers per dimension; neither K x d vertices nor K logits are needed. Other
polytopes have fewer dimensions than vertices, which cannot be placed freely: there, P maps coordinate i to t_i.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ..estimator.model import Model
from ..estimator.solved import SolvedModel
from ..heads.base import Head
from ..heads.fixed import FixedHead
from ..heads.polytopes import Polygon, Polytope, Simplex

TURN = math.pi * (3 - math.sqrt(5))  # the golden angle: any number of slots spreads evenly over the circle


class Atlas:
    """Places of slots and samples on the map of one model."""

    def __init__(self, model: Model | SolvedModel | None, slots: int) -> None:
        head: Head | None = model.learner.head if isinstance(model, Model) else None
        self.head = head
        if isinstance(head, FixedHead):
            self.polytope: Polytope | None = head.polytope
        else:  # a solved model regresses onto a simplex; a trainable head has no fixed directions
            self.polytope = Simplex(max(2, slots)) if head is None else None
        self.plane = plane(self.polytope) if self.polytope is not None else targets(int(head.dim))  # type: ignore[union-attr]

    def places(self, slots: list[int]) -> np.ndarray:
        """Return where the directions of slots lie, (n, 2)."""
        if self.polytope is None:
            assert self.head is not None
            device = next(self.head.parameters()).device
            directions = self.head.directions(torch.tensor(slots, dtype=torch.int64, device=device)).double()
            return np.asarray(directions.cpu().numpy() @ self.plane)
        if isinstance(self.polytope, Simplex):  # without its dense vertices
            return centred_targets(self.polytope.slots)[slots]
        return np.asarray(self.polytope.vertices(torch.tensor(slots), dtype=torch.float64).numpy() @ self.plane)

    def samples(self, embedded: Tensor, chances: np.ndarray, slots: list[int]) -> np.ndarray:
        """Return where samples lie, (n, 2).

        A trained model puts a sample at its embedding, of length one as the vertices are. A solved model has no
        embedding in this space: it puts a sample at the mean of the vertices, weighted with its probabilities."""
        if self.head is None:
            return np.asarray(chances @ self.places(slots))
        return np.asarray(torch.nn.functional.normalize(embedded.double(), dim=1).cpu().numpy() @ self.plane)


def targets(count: int) -> np.ndarray:
    """Return points on the unit circle, (count, 2), each one golden angle after the last."""
    angles = TURN * np.arange(count)
    return np.stack([np.cos(angles), np.sin(angles)], 1)


@lru_cache(4)
def centred_targets(count: int) -> np.ndarray:
    """Return the targets minus their mean, (count, 2)."""
    return np.asarray(targets(count) - targets(count).mean(0))


def plane(polytope: Polytope) -> np.ndarray:
    """Return the projection P as (dim, 2): a row of coordinates z lies at z @ P."""
    if isinstance(polytope, Simplex):
        centred = centred_targets(polytope.slots)  # p_k
        share = (polytope.slots - 1) / polytope.slots * polytope.scale
        return np.asarray(share * (centred[:-1] + polytope.alpha * centred[-1]))
    return np.eye(2) if isinstance(polytope, Polygon) else targets(polytope.dim)
