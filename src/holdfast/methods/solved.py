"""Solved, not trained: the backbone is frozen, and the junction has a closed form.

    accumulate:  n_c, sum x, sum x x^T       per class, over the samples of the task, once each
    solve:       o_c(x) = w_c^T x + b_c      one weight vector per class, from the sums alone
    junction:    z(x) = sum_c o_c(x) v_c     v_c is the vertex of class c

With the simplex, the logit of class c is o_c minus the mean of all o, so the arg max is that of o. With other polytopes
the outputs are those of ridge regression, and z is the ridge regression of the features onto the vertices.
The result does not depend on the order of the data, and no sample is kept but for calibration. The features x never
move; the junction is solved anew after each task, so z does.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadConfig
from ..heads.fixed import FixedHead
from ..heads.polytopes import Simplex
from ..learning.streams import Task
from ..solving import Solver, SolverOptions
from ..solving.options import SolvedOptions
from ..solving.random_features import RandomFeatures
from .accumulating import Accumulating


class SolvedJunction(nn.Module):
    """The map z = A phi(x) + b, where phi appends random features."""

    weight: Tensor
    bias: Tensor

    def __init__(self, features: RandomFeatures, dim: int) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("weight", torch.zeros(dim, features.size))
        self.register_buffer("bias", torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        expanded = self.features(x.double().cpu()).to(x)  # (batch, size)
        return nn.functional.linear(expanded, self.weight, self.bias)  # (batch, dim)


class Solved(Accumulating):
    """Accumulate in the first epoch of each task, solve at its end."""

    Options = SolvedOptions
    options: SolvedOptions
    head = "simplex"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        head = self.learner.head
        if not isinstance(head, FixedHead):
            raise BadConfig("solved needs a fixed head: choose --head simplex, orthoplex, cube or polygon.")
        seed = int(torch.randint(2**31, (), generator=self.generator, device=self.generator.device))
        rule = self.options.rule if isinstance(head.polytope, Simplex) else "ridge"
        self.solver = Solver(SolverOptions(**{**vars(replace(self.options, rule=rule)), "seed": seed}))
        self.solver.begin(head.junction.in_features)
        head.junction = SolvedJunction(self.solver.map, head.dim).to(self.learner.shift.device)  # type: ignore[assignment]
        head.softmax_over = "seen"  # the vertices of classes to come have no output yet
        self.fixed_head = head

    def accumulate(self, images: Tensor, slots: Tensor) -> None:
        self.solver.learn(self.learner.features(images).cpu(), slots.cpu())

    def end_task(self, task: Task) -> None:
        if len(self.solver.slots) < 2:
            return  # a single class is always the answer
        weights, intercepts = self.solver.coefficients()  # (classes, size), (classes,)
        temperature = self.solver.calibration().temperature
        vertices = self.fixed_head.directions(self.solver.slots.to(self.learner.shift.device)).double().cpu()
        junction = self.fixed_head.junction
        junction.weight.zero_()
        junction.weight[:, : weights.shape[1]] = (vertices.T @ weights / temperature).to(junction.weight)
        junction.bias.copy_((vertices.T @ intercepts / temperature).to(junction.bias))

    def state(self) -> dict[str, Tensor]:
        tensors, plain = self.solver.state() if self.solver.learned else ({}, {})
        text = json.dumps({**plain, "left": self.left}).encode()
        return {**tensors, "plain": torch.tensor(list(text), dtype=torch.uint8)}

    def load(self, state: dict[str, Tensor]) -> None:
        plain = json.loads(bytes(state["plain"].tolist()))
        self.left = plain.pop("left")
        if plain:
            self.solver = Solver.from_state({k: v for k, v in state.items() if k != "plain"}, plain)
