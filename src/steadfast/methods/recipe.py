"""What can be made of the remembered samples besides training on them: the pieces of the strong recipe.

Each is an option of `replay`, off in the paper's recipe, and one function that reads like its equation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..heads import Head
from ..learner import Learner

OPTIONS = ("recipe", "balance", "empty", "vary", "distill", "distill_weight", "insert")
OFF = {"balance": False, "vary": "none", "distill": "none"}  # as in the paper
DISTILL = ("none", "logits", "features")
WEIGHTS = {"logits": 0.5, "features": 5.0}  # of the distillation, beside a cross-entropy of weight 1
INSERT = ("after", "during")


def log_frequency(slots: Tensor, count: int, empty: float) -> Tensor:
    """log n_k of how often each of `count` slots is in the batch, (count,); an absent one counts as `empty`.

    Added to the logits in training it makes the softmax a balanced one: p(k|x) ~ n_k exp(z_k), so that z itself,
    which is used at test, owes nothing to how frequent a class was (Ren et al., 2020).
    """
    # Not by bincount, which on a GPU waits for the largest slot.
    counts = slots.new_zeros(count).scatter_add_(0, slots, torch.ones_like(slots))
    return counts.clamp(min=empty).log()


def dark_logits(head: Head, embedded: Tensor) -> Tensor:
    """All slots' logits (batch, slots) to be remembered; those the head does not use yet are NaN."""
    logits = head.outputs(embedded)
    if head.over == "all":
        return logits
    known = torch.zeros(head.slots, dtype=torch.bool, device=logits.device)
    known[head.seen] = True
    return logits.masked_fill(~known, torch.nan)


def logit_distance(head: Head, embedded: Tensor, remembered: Tensor) -> Tensor:
    """mean of (z - z')^2, where z' (batch, slots) was remembered (Buzzega et al., 2020).

    Over samples and the slots that had a logit then: all of them, or those in use for a head over the `seen` ones."""
    logits, known = head.outputs(embedded), ~remembered.isnan()
    return (logits - torch.where(known, remembered, logits.detach())).square().sum() / known.sum().clamp(min=1)


def feature_distance(embedded: Tensor, before: Tensor, taught: Tensor) -> Tensor:
    """mean of 1 - cos(f, f'), where f' is the embedding before this task (Hou et al., 2019).

    Over the samples that had been `taught` by then, (batch,); 0 if there is none."""
    return ((1 - F.cosine_similarity(embedded, before)) * taught).sum() / taught.sum().clamp(min=1)


@torch.no_grad()
def in_parts(function: Callable[[Tensor], Tensor], images: Tensor, size: int = 512) -> Tensor:
    """Outputs for many images without holding all their activations."""
    return torch.cat([function(part) for part in images.split(size)])


def frozen(learner: Learner) -> Learner:
    """A copy as it is now, in evaluation mode and without gradients."""
    return copy.deepcopy(learner).eval().requires_grad_(False)
