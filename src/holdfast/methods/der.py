"""Dark experience replay (Buzzega et al., 2020, "Dark experience for general continual learning").

    DER:    L = CE(B) + alpha * mean (z - z')^2 over B_M
    DER++:  L = CE(B) + alpha * mean (z - z')^2 over B_M + beta * CE(B_M')

The memory is a reservoir. With each sample it stores z', the logits at the moment when the sample entered. The mean is
over samples and slots, as in the authors' code; the paper writes a squared norm. B_M and B_M' are the halves of one
draw from the memory. `replay --distill logits --store during` is a near relative: the whole draw serves both terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..errors import BadConfig
from ..heads.polytopes import MOST_LOGITS
from ..options import option
from . import distillation
from .rehearsal import Rehearsal, ReservoirOptions


@dataclass(frozen=True)
class DEROptions(ReservoirOptions):
    alpha: float | None = option(
        None, "weight of the stored logits  (default: the benchmark's, or else the paper's for CIFAR-10 at M = 200: "
        "0.3 for der, 0.1 for der++)", at_least=0,
    )
    fallbacks: ClassVar = {"alpha": 0.3}

    def check_with(self, run: Any) -> None:
        super().check_with(run)
        if run.slots > MOST_LOGITS:
            raise BadConfig(
                f"{run.method} stores the logits of all {run.slots} slots with each sample: allocate at most "
                f"{MOST_LOGITS} slots, or choose er-ace."
            )


@dataclass(frozen=True)
class DERPlusOptions(DEROptions):
    beta: float | None = option(
        None, "weight of der++'s cross-entropy on samples from memory  (default: the benchmark's, or else the paper's, "
        "0.5)", at_least=0,
    )
    fallbacks: ClassVar = {"alpha": 0.1, "beta": 0.5}


class DER(Rehearsal):
    """Stored logits only: the memory's labels are not used."""

    Options: type[DEROptions] = DEROptions
    head = "preallocated"  # as in the paper: z' must hold the logits of classes to come, or nothing keeps them low

    def loss(self, images: Tensor, slots: Tensor) -> Tensor:
        head, features, new = self.learner.head, self.learner.features(images), self.new_in(slots)
        loss = head.loss(features[:new], slots[:new])  # CE(B)
        if self.recalled is None:
            return loss
        end = new + self.dark(len(self.recalled))
        stored = self.memory.notes["logits"][self.recalled[: end - new]]
        loss = loss + self.options.alpha * distillation.logit_distance(head, head.embed(features[new:end]), stored)
        if end < len(slots):
            loss = loss + self.options.beta * head.loss(features[end:], slots[end:])  # CE(B_M')
        return loss

    def dark(self, recalled: int) -> int:
        """Return how many of the samples from memory are for their logits."""
        return recalled

    def annotate(self, rows: Tensor) -> None:
        self.annotate_logits(rows)


class DERPlus(DER):
    """Half of the samples from memory are for their logits, the other half for their labels."""

    Options = DERPlusOptions

    def dark(self, recalled: int) -> int:
        return (recalled + 1) // 2
