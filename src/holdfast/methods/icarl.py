"""iCaRL (Rebuffi et al., 2017): herding, distillation, and the nearest mean of exemplars.

    L = mean of - sum_{k in C_new} [y_k log g_k + (1 - y_k) log(1 - g_k)]
                - sum_{k in C_old} [q_k log g_k + (1 - q_k) log(1 - g_k)],   g = sigmoid(z)

    answer: argmin_k || phi(x) / |phi(x)| - mu_k ||,   mu_k = normalised mean of phi / |phi| over the exemplars of k

q are the outputs of the learner as it was before the task; y_k is 1 for the sample's class. The memory keeps
M / classes exemplars per class, chosen by herding. phi is the embedding: the features, or the junction's output if a
head has one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..learning.streams import Task
from .distillation import in_chunks
from .rehearsal import HerdingOptions, Rehearsal


class ICaRL(Rehearsal):
    """The head serves the training only. Without a memory there is no exemplar, and the head answers."""

    Options = HerdingOptions
    distils = True
    means: Tensor | None = None  # (classes, dim)
    means_of: Tensor | None = None  # (classes,) their slots

    def loss(self, images: Tensor, slots: Tensor) -> Tensor:
        head = self.learner.head
        logits = head.outputs(head.embed(self.learner.features(images)), head.seen)  # (batch, seen)
        wanted = F.one_hot(torch.searchsorted(head.seen, slots), len(head.seen)).to(logits)
        if self.before is not None:
            old = self.before.head.seen
            q = self.before.head.outputs(self.before.embed(images), old).sigmoid()
            wanted[:, torch.searchsorted(head.seen, old)] = q
        return F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(1).mean()

    def end_task(self, task: Task) -> None:
        super().end_task(task)
        if len(self.memory):
            embedded = in_chunks(self.learner.embed_frozen, self.memory.images[: len(self.memory)])
            self.means_of, row = self.memory.slots[: len(self.memory)].unique(return_inverse=True)
            sums = embedded.new_zeros(len(self.means_of), embedded.shape[1])
            self.means = F.normalize(sums.index_add_(0, row, F.normalize(embedded, dim=1)), dim=1)

    def predict(self, embedded: Tensor) -> Tensor:
        if self.means is None or self.means_of is None:
            return super().predict(embedded)
        return self.means_of[torch.cdist(F.normalize(embedded, dim=1), self.means).argmin(1)]

    def state(self) -> dict[str, Tensor]:
        means = {} if self.means is None else {"means": self.means, "means_of": self.means_of}
        return {**super().state(), **means}  # type: ignore[dict-item]

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        self.means, self.means_of = state.get("means"), state.get("means_of")
