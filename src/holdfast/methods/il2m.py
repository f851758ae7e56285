"""IL2M, class-incremental learning with dual memory (Belouadah and Popescu, 2019).

    p^r_k = p_k * (mu^P_k / mu^N_k) * (mu(M_N) / mu(M_P))   if the best class is new, for each old class k

mu^P_k is the mean score of class k's samples right after class k was learned, mu^N_k that of its exemplars now. mu(M)
is a model's mean top score on its new classes: M_P when class k was learned, M_N now. Training is plain replay; the
second memory, of these statistics, rectifies the scores at test time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..learning.streams import Task
from .distillation import in_chunks, log_answers
from .rehearsal import Rehearsal, RehearsalOptions

CHUNK = 512
STATISTICS = ("known", "first", "now", "confidence", "fresh")


class IL2M(Rehearsal):
    """All statistics are one number per class, in the order in which the classes came."""

    Options = RehearsalOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.known = torch.empty(0, dtype=torch.long, device=self.learner.shift.device)  # (n,) slots
        self.first = self.now = self.confidence = self.known.float()  # mu^P_k, mu^N_k, mu(M_P) of class k
        self.fresh = self.known.bool()  # (n,) True for the classes of the last task

    def end_task(self, task: Task) -> None:
        super().end_task(task)
        new = torch.tensor(task.slots, device=self.known.device)
        self.fresh = torch.cat([torch.zeros_like(self.fresh), torch.ones_like(new, dtype=torch.bool)])
        self.known = torch.cat([self.known, new])
        rows = torch.arange(len(task.train), device=self.known.device)
        scores = torch.cat([self.scores(task.train.batch(part)[0]) for part in rows.split(CHUNK)])  # (samples, n)
        mine = self.means(scores, task.train.slots.to(self.known.device))
        held = slice(len(self.memory))
        self.now = mine
        if len(self.memory):
            exemplars = in_chunks(self.scores, self.memory.images[held])
            self.now = torch.where(self.fresh, mine, self.means(exemplars, self.memory.slots[held]))
        self.first = torch.cat([self.first, mine[self.fresh]])
        top = scores.max(1).values.mean().expand(len(new))
        self.confidence = torch.cat([self.confidence, top])

    def scores(self, images: Tensor) -> Tensor:
        """Return the probabilities over the known classes, (batch, n)."""
        return log_answers(self.learner.head, self.learner.embed_frozen(images), self.known).exp().detach()

    def means(self, scores: Tensor, slots: Tensor) -> Tensor:
        """Return the mean score of each class on its own samples, (n,); NaN for a class without samples."""
        own = slots[:, None] == self.known  # (samples, n)
        return (scores * own).sum(0) / own.sum(0)

    def factors(self) -> Tensor:
        """Return what the score of each class is multiplied with if the best class is new, (n,); 1 for new classes."""
        ratio = self.first / self.now * self.confidence[-1] / self.confidence
        return ratio.nan_to_num(1.0)  # no exemplar: not rectified

    def predict(self, embedded: Tensor) -> Tensor:
        scores = log_answers(self.learner.head, embedded, self.known).exp()
        new_is_best = self.fresh[scores.argmax(1)][:, None]
        return self.known[torch.where(new_is_best, scores * self.factors(), scores).argmax(1)]

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), **{name: getattr(self, name) for name in STATISTICS}}

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        for name in STATISTICS:
            setattr(self, name, state[name].to(self.known.device))
