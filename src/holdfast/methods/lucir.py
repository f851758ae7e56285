"""LUCIR, a unified classifier by rebalancing (Hou et al., 2019).

    L = CE + lambda * mean over B ∪ B_M of (1 - cos(f, f'))
           + mean over B_M of sum_{k in top K of C_new} max(0, m - cos(theta_y, f) + cos(theta_k, f))

    lambda = lambda_base * sqrt(|C_old| / |C_new|)

f' is the embedding before the task (less-forget constraint); the last term (margin ranking) separates samples from
memory from the K new classes they resemble most. The logits of the paper's head are eta * cos(theta, f): `--head
cosine`. The factor in lambda is that of the authors' code; equation 7 of the paper prints the inverse ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import BadConfig
from ..heads.cosine import CosineHead
from ..heads.fixed import FixedHead
from ..options import option
from .distillation import feature_distance
from .rehearsal import HerdingOptions, Rehearsal


@dataclass(frozen=True)
class LUCIROptions(HerdingOptions):
    less_forget: float | None = option(
        None, "lucir's lambda_base: weight of the less-forget constraint  (default: the benchmark's, or else the "
        "paper's for CIFAR-100, 5)", at_least=0,
    )
    ranking_margin: float = option(0.5, "lucir's margin m between a sample's class and new classes", at_least=0)
    ranked_classes: int = option(2, "new classes that each sample from memory is ranked against (K)", at_least=1)
    fallbacks: ClassVar = {"less_forget": 5.0}


class LUCIR(Rehearsal):
    """Not included: the paper's optional balanced fine-tuning, and new rows imprinted from mean features."""

    Options = LUCIROptions
    options: LUCIROptions
    head = "cosine"
    distils = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.learner.head, CosineHead | FixedHead):
            raise BadConfig(
                "lucir compares directions of one length: choose --head cosine (the paper's), simplex, orthoplex, cube "
                "or polygon; the rows of expanding and preallocated heads have lengths and biases."
            )

    def loss(self, images: Tensor, slots: Tensor) -> Tensor:
        head, features, new = self.learner.head, self.learner.features(images), self.new_in(slots)
        loss = head.loss(features, slots)
        if self.before is None:
            return loss
        embedded, fresh = head.embed(features), self.new_slots()
        weight = (self.options.less_forget or 0.0) * math.sqrt(len(self.before.head.seen) / len(fresh))
        every = torch.ones_like(slots, dtype=torch.bool)
        loss = loss + weight * feature_distance(embedded, self.before.embed(images), every)
        return loss + self.ranking(embedded[new:], slots[new:], fresh) if new < len(slots) else loss

    def ranking(self, embedded: Tensor, slots: Tensor, fresh: Tensor) -> Tensor:
        """Return the margin ranking loss of samples from memory against the new classes `fresh`, (n,)."""
        cosines = self.cosines(embedded)  # (batch, seen)
        seen = self.learner.head.seen
        own = cosines.gather(1, torch.searchsorted(seen, slots)[:, None])  # (batch, 1)
        among = cosines[:, torch.searchsorted(seen, fresh)]
        nearest = among.topk(min(self.options.ranked_classes, len(fresh)), dim=1).values  # (batch, K)
        return (self.options.ranking_margin - own + nearest).clamp(min=0).sum(1).mean()

    def cosines(self, embedded: Tensor) -> Tensor:
        """Return the cosine of each sample with each direction in use, (batch, seen)."""
        head = self.learner.head
        outputs = head.outputs(F.normalize(embedded, dim=1), head.seen)
        return outputs / head.scale if isinstance(head, CosineHead) else outputs
