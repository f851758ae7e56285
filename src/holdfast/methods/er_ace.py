"""Experience replay with asymmetric cross-entropy (Caccia et al., 2022, "New insights on reducing abrupt
representation change in online continual learning").

    L = CE(B; C_new) + CE(B_M; C_seen)

The new samples B compete only with each other's classes, C_new, so they do not push the old classes away. The samples
B_M from memory compete with all classes. The memory is a reservoir.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .rehearsal import Rehearsal, ReservoirOptions


class ERACE(Rehearsal):
    """C_new are the classes of the batch's new samples, as in the paper. The paper has no hyperparameter of its own."""

    Options = ReservoirOptions

    def loss(self, images: Tensor, slots: Tensor) -> Tensor:
        head, features, new = self.learner.head, self.learner.features(images), self.new_in(slots)
        loss = self.among_present(head.embed(features[:new]), slots[:new])  # CE(B; C_new)
        if new < len(slots):
            loss = loss + head.loss(features[new:], slots[new:])  # CE(B_M; C_seen)
        return loss

    def among_present(self, embedded: Tensor, slots: Tensor) -> Tensor:
        """Return the cross-entropy over the classes that these samples have."""
        head = self.learner.head
        columns = torch.searchsorted(head.seen, slots)
        absent = torch.ones_like(head.seen, dtype=torch.bool).index_fill(0, columns, False)  # (seen,)
        logits = head.outputs(embedded, head.seen).masked_fill(absent, -torch.inf)  # (batch, seen)
        return F.cross_entropy(logits, columns)
