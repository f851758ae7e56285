"""Heads turn features into logits and a loss. `fixed.py` is the paper's classifier, `trainable.py` its rivals.

Any head works with any method. `build` makes one by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..registry import Registry

if TYPE_CHECKING:
    from .base import Head

HEADS: Registry[Any] = Registry(  # each entry is a function of (in_features, slots, options)
    "head", "holdfast.heads",
    {
        "simplex": ("holdfast.heads.fixed:simplex",
                    "fixed, K directions in K-1 dimensions, all equally far apart (the paper's method)"),
        "orthoplex": ("holdfast.heads.fixed:orthoplex", "fixed, 2d directions in d dimensions: both ends of each axis"),
        "cube": ("holdfast.heads.fixed:cube", "fixed, 2^d directions in d dimensions: 64 numbers hold 2^64 classes"),
        "polygon": ("holdfast.heads.fixed:polygon", "fixed, K directions in the plane: to plot features"),
        "expanding": ("holdfast.heads.trainable:expanding",
                      "trainable, a row is added with each new class (the usual classifier)"),
        "preallocated": ("holdfast.heads.trainable:preallocated",
                         "trainable, all K rows take part from the start (the paper's Tables 2 and 3)"),
        "cosine": ("holdfast.heads.cosine:cosine", "trainable, directions without length or bias (lucir's head)"),
    },
)


def build(name: str, in_features: int, slots: int, options: Any = None, **values: Any) -> Head:
    """Build the head called `name` with `slots` outputs, from its options or from their values."""
    return HEADS[name](in_features, slots, options or HEADS.options(name)(**values))
