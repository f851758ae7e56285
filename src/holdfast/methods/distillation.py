"""The terms of losses that several methods share: balanced softmax, distillation, softmax over some slots.

The strong recipe of `replay` has the first two as options.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..heads.base import Head
from ..learning.learner import Learner

WEIGHTS = {"logits": 0.5, "features": 5.0, "contrast": 9.0}  # default weights; the cross-entropy has weight 1
SHARPNESS = 10.0  # mu of the contrast: its authors' value


def log_frequency(slots: Tensor, count: int, absent: float) -> Tensor:
    """Return log n_k, (count,), where n_k is the count of slot k in the batch, or `absent` for absent slots.

    Added to the logits in training it gives a balanced softmax, p(k|x) ~ n_k exp(z_k). The logits z, which are used
    at test time, then do not depend on how frequent a class was (Ren et al., 2020).
    """
    # bincount would synchronise with the GPU to find the largest slot.
    counts = slots.new_zeros(count).scatter_add_(0, slots, torch.ones_like(slots))
    return counts.clamp(min=absent).log()


def dark_logits(head: Head, embedded: Tensor) -> Tensor:
    """Return the logits of all slots, (batch, slots), to be stored; NaN for slots that the head does not use yet."""
    logits = head.outputs(embedded)
    if head.softmax_over == "all":
        return logits
    known = torch.zeros(head.slots, dtype=torch.bool, device=logits.device)
    known[head.seen] = True
    return logits.masked_fill(~known, torch.nan)


def logit_distance(head: Head, embedded: Tensor, remembered: Tensor) -> Tensor:
    """Return the mean of (z - z')^2, where z' (batch, slots) are the stored logits (Buzzega et al., 2020).

    The mean is over samples and over the slots that had a logit when they were stored."""
    logits, known = head.outputs(embedded), ~remembered.isnan()
    return (logits - torch.where(known, remembered, logits.detach())).square().sum() / known.sum().clamp(min=1)


def feature_distance(embedded: Tensor, before: Tensor, taught: Tensor) -> Tensor:
    """Return the mean of 1 - cos(f, f'), where f' is the embedding before this task (Hou et al., 2019).

    The mean is over the samples that had been `taught` by then, (batch,); it is 0 if there is none."""
    return ((1 - F.cosine_similarity(embedded, before)) * taught).sum() / taught.sum().clamp(min=1)


def contrast(embedded: Tensor, before: Tensor, slots: Tensor, taught: Tensor) -> Tensor:
    """Return the HOC loss: InfoNCE between the vectors f' before this task and the vectors f now (Biondi et al., 2024).

        mean over i of -log( e(i, i) / (e(i, i) + sum of e(i, j) over j of other classes) )
        e(i, j) = exp(mu cos(f'_i, f_j))

    A sample's vector must stay nearer to its own old vector than the vectors of other classes are. Samples of the same
    class are no negatives. The mean is over the samples that had been `taught` by then; it is 0 if there is none."""
    near = SHARPNESS * F.normalize(before, dim=1) @ F.normalize(embedded, dim=1).T  # (batch, batch)
    same = (slots[:, None] == slots[None, :]).fill_diagonal_(False)
    lost = -F.log_softmax(near.masked_fill(same, -torch.inf), dim=1).diagonal()
    return (lost * taught).sum() / taught.sum().clamp(min=1)


def log_answers(head: Head, embedded: Tensor, slots: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log softmax(z / T) over these slots alone, (batch, slots)."""
    return F.log_softmax(head.outputs(embedded, slots) / temperature, dim=1)


def soft_cross_entropy(answers: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean over samples of - sum_k p'_k log p_k, from log p and log p', (batch, slots) each."""
    return -(wanted.exp() * answers).sum(1).mean()


@torch.no_grad()
def in_chunks(function: Callable[[Tensor], Tensor], images: Tensor, size: int = 512) -> Tensor:
    """Apply `function` in chunks, so that the activations of all images are never held at once."""
    return torch.cat([function(part) for part in images.split(size)])


def frozen(learner: Learner) -> Learner:
    """Copy a learner as it is now, in evaluation mode and without gradients."""
    return copy.deepcopy(learner).eval().requires_grad_(False)
