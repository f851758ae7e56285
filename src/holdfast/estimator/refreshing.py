"""Choose the classes of a search index to embed again, by trying them out on a small index."""

from __future__ import annotations

import torch
from torch import Tensor

NOTHING = -2.0  # below every cosine similarity


class Refreshing:
    """Searches an index of stored vectors in which some classes are replaced by fresh vectors.

    Only the nearest class counts, so it is enough to keep the nearest vector of each class, stored and fresh. There
    must be at least two classes; with one, a search is always right.
    """

    def __init__(
        self, queries: Tensor, stored: Tensor, fresh: Tensor, slots: Tensor, all_slots: Tensor, rows: Tensor
    ) -> None:
        """Take unit queries (n, dim) with their `slots` and `rows` in the index, and the index's vectors (g, dim)."""
        self.classes, column = all_slots.unique(return_inverse=True)  # (c,), (g,)
        self.right = torch.searchsorted(self.classes, slots)  # (n,) the right column for each query
        self.stored, self.fresh = (_nearest(queries, v, column, len(self.classes), rows) for v in (stored, fresh))

    def recall(self, chosen: set[int]) -> float:
        """Return the recall of a search after the vectors of these slots were refreshed."""
        return _share(self.hits(chosen))

    def hits(self, chosen: set[int]) -> Tensor:
        """Return (n,) True where the search finds the right class after these slots were refreshed."""
        return self._similar(chosen).argmax(1) == self.right

    def fewest(self, stale: list[int], enough: float, most: int) -> list[int]:
        """Return few stale slots whose refresh gives a recall of `enough`, or [] if more than `most` are needed.

        Greedy: add the slot with the largest gain; on a tie, the one whose vectors moved most. At the end drop the
        slots that are not needed."""
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
        """Return per slot the recall if it is refreshed too, and the distance its vectors moved."""
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
    """Return the similarity (n, classes) of each class's nearest vector, excluding the query itself."""
    similar = queries @ vectors.T  # (n, g)
    similar[torch.arange(len(rows), device=rows.device), rows] = NOTHING
    nearest = similar.new_full((len(queries), classes), NOTHING)
    return nearest.scatter_reduce_(1, column.expand_as(similar), similar, "amax")


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())
