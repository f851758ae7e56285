"""The two ends of the scale: forget everything, and have everything at once."""

from __future__ import annotations

from .base import METHODS, Method


@METHODS.register("finetune", "learn each task and keep nothing: the lower bound")
class Finetune(Method):
    """Plain training on the stream."""


@METHODS.register("joint", "learn all tasks at once from all data: the upper bound")
class Joint(Method):
    """Plain training on the joined stream; needs no memory and has no order to forget."""

    joint = True
