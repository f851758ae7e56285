"""Which classes of a search index to embed again: tried out on a small one, class by class."""

from __future__ import annotations

import torch
from torch import Tensor

NOTHING = -2.0  # less similar than anything


class Refreshing:
    """Queries in an index of stored vectors of which some classes are replaced by fresh ones.

    A search asks only which class is nearest, so that all it needs is each class's nearest vector, stored and fresh.
    There are two classes at least: among one, a search is always right.
    """

    def __init__(
        self, queries: Tensor, stored: Tensor, fresh: Tensor, slots: Tensor, all_slots: Tensor, rows: Tensor
    ) -> None:
        """Unit queries (n, dim) of `slots` (n,), which are the `rows` (n,) of the index; vectors (g, dim) of it."""
        self.classes, column = all_slots.unique(return_inverse=True)  # (c,), (g,)
        self.right = torch.searchsorted(self.classes, slots)  # (n,) the column that a query should find
        self.stored, self.fresh = (_nearest(queries, v, column, len(self.classes), rows) for v in (stored, fresh))

    def recall(self, chosen: set[int]) -> float:
        """What a search finds when the vectors of these slots have been refreshed."""
        return _share(self._similar(chosen).argmax(1) == self.right)

    def fewest(self, stale: list[int], enough: float, most: int) -> list[int]:
        """As few of the stale slots as bring `enough` recall, at most `most`; none if it takes more.

        Greedy: next is the one that helps most, or, if none helps alone, the one whose vectors moved most. What turns
        out not to be needed is left out again at the end."""
        chosen: list[int] = []
        while self.recall({*chosen}) < enough:
            if len(chosen) >= most:
                return []
            gains = self._with_each({*chosen})
            chosen.append(max((slot for slot in stale if slot not in chosen), key=lambda slot: gains[slot]))
        for slot in list(chosen):
            rest = [other for other in chosen if other != slot]
            if self.recall({*rest}) >= enough:
                chosen = rest
        return chosen

    def _with_each(self, chosen: set[int]) -> dict[int, tuple[float, float]]:
        """By slot: the recall if it is refreshed as well, and how far its vectors have moved."""
        (best, second), (first, other) = (part.unbind(1) for part in self._similar(chosen).topk(2, dim=1))
        moved = (self.fresh - self.stored).abs().mean(0).tolist()
        found = {}
        for at, slot in enumerate(self.classes.tolist()):
            others, which = torch.where(first == at, second, best), torch.where(first == at, other, first)  # (n,)
            nearest = torch.where(self.fresh[:, at] > others, at, which)
            found[slot] = _share(nearest == self.right), moved[at]
        return found

    def _similar(self, chosen: set[int]) -> Tensor:
        fresh = torch.tensor([slot in chosen for slot in self.classes.tolist()], device=self.stored.device)
        return torch.where(fresh, self.fresh, self.stored)  # (n, c)


def _nearest(queries: Tensor, vectors: Tensor, column: Tensor, classes: int, rows: Tensor) -> Tensor:
    """(n, classes) how similar the nearest vector of each class is, the query itself left out."""
    similar = queries @ vectors.T  # (n, g)
    similar[torch.arange(len(rows), device=rows.device), rows] = NOTHING
    nearest = similar.new_full((len(queries), classes), NOTHING)
    return nearest.scatter_reduce_(1, column.expand_as(similar), similar, "amax")


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())
