"""What the streaming methods share: frozen features, sums over the samples, class weights in closed form.

    o_c(x) = w_c^T h(x) + b_c         one weight vector per class, solved from the sums after each task
    trainable head: w_c, b_c are the rows of the head
    fixed head:     the junction becomes z(x) = sum_c o_c(x) v_c; on a simplex the arg max is that of o

The backbone keeps the weights that it was built with: pretrained ones, or random ones. Each sample is used once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadConfig
from ..heads.fixed import FixedHead
from ..heads.polytopes import Simplex
from ..heads.trainable import TrainableHead
from ..learning.streams import Task
from ..solving import Sums
from .accumulating import Accumulating


class Streaming(Accumulating):
    """Accumulate in the first epoch of each task, solve at its end. Subclasses define `solve`."""

    scatter = True  # False if only the class means are needed
    any_polytope = False  # True if the outputs may be placed at the vertices of any polytope

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        head: Any = self.learner.head
        plain = type(head) is TrainableHead
        usable = isinstance(head, FixedHead) and (self.any_polytope or isinstance(head.polytope, Simplex))
        if not plain and not usable:
            raise BadConfig(
                f"{type(self).__name__.lower()} writes its class scores into the head, which this head cannot hold: "
                "choose --head expanding, preallocated or simplex."
            )
        self.expansion = self.expand(head.rows.in_features if plain else head.junction.in_features)
        self.linear = self.place(head)
        head.softmax_over = "seen"  # classes to come have no score yet
        self.sums = Sums(self.linear.in_features)

    def expand(self, size: int) -> nn.Module:
        """Return the fixed map from features to h, of this many features; by default the identity."""
        return nn.Identity()

    def place(self, head: Any) -> nn.Linear:
        """Return the linear layer that receives the solution."""
        return head.junction if isinstance(head, FixedHead) else head.rows

    def inputs(self, images: Tensor) -> Tensor:
        """Return h, (batch, size), in double precision."""
        head, features = self.learner.head, self.learner.features(images)
        embedded = self.expansion(features) if isinstance(head, FixedHead) else head.embed(features)
        return embedded.double().cpu()

    def accumulate(self, images: Tensor, slots: Tensor) -> None:
        self.sums.add(self.inputs(images), slots.cpu())

    def solve(self) -> tuple[Tensor, Tensor]:
        """Return weights (classes, size) and intercepts (classes,), in the order of `self.sums.slots`."""
        raise NotImplementedError

    @torch.no_grad()
    def end_task(self, task: Task) -> None:
        weights, intercepts = self.solve()
        if not self.any_polytope:  # the same arg max, more digits
            weights, intercepts = weights - weights.mean(0), intercepts - intercepts.mean()
        head, slots = self.learner.head, torch.tensor(self.sums.slots, device=self.linear.weight.device)
        if isinstance(head, FixedHead):
            vertices = head.directions(slots).double().cpu()  # (classes, dim)
            self.linear.weight.copy_(vertices.T @ weights)
            self.linear.bias.copy_(vertices.T @ intercepts)
        else:
            self.linear.weight[slots] = weights.to(self.linear.weight)
            self.linear.bias[slots] = intercepts.to(self.linear.bias)

    def state(self) -> dict[str, Tensor]:
        tensors, plain = self.sums.state()
        if not self.scatter:
            del tensors["within"]
        return {**tensors, "here": torch.tensor([self.left, plain["n_within"]])}

    def load(self, state: dict[str, Tensor]) -> None:
        tensors = {"within": torch.zeros(self.sums.dim, self.sums.dim), **state}
        self.left, n_within = tensors.pop("here").tolist()
        self.sums = Sums.from_state(tensors, {"dim": self.sums.dim, "n_within": n_within, "keep_scatter": False})
