"""Several gradients of the same parameters as the rows of one matrix."""

from __future__ import annotations

import torch
from torch import Tensor


class GradientRows:
    """A (count, parameters) matrix whose rows `backward` fills without copying.

    Each parameter's `.grad` is a view into the current row, in the parameter's own memory layout. So autograd
    accumulates in place, inner products are one matrix product, and the optimizer uses the row entered last.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], count: int) -> None:
        self.parameters = parameters
        sizes = [p.numel() for p in parameters]
        self.matrix = torch.zeros(count, sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
        self.views = [
            [part.as_strided(p.shape, p.stride(), part.storage_offset()) for p, part in zip(parameters, parts)]
            for parts in (row.split(sizes) for row in self.matrix)
        ]

    def enter(self, row: int) -> Tensor:
        """Zero this row, make it the target of every following backward pass, and return it, (parameters,)."""
        self.matrix[row].zero_()
        for parameter, view in zip(self.parameters, self.views[row]):
            parameter.grad = view
        return self.matrix[row]
