"""The lower bound (fine-tuning) and the upper bound (joint training)."""

from __future__ import annotations

from ..learning.method import Method


class Finetune(Method):
    """Plain training on one task after another, without a memory."""


class Joint(Method):
    """Plain training on all tasks at once."""

    joint = True
