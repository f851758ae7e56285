"""The registry of methods, one file per method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import Registry

if TYPE_CHECKING:
    from ..learning.method import Method

_HERE = "holdfast.methods"

METHODS: Registry[type[Method]] = Registry(
    "method", _HERE,
    {
        "replay": (f"{_HERE}.replay:Replay",
                   "half of each batch is new, half from memory (the paper's method, with any head)"),
        "solved": (f"{_HERE}.solved:Solved",
                   "frozen backbone, classifier in closed form from sums: exact, keeps no samples"),
        "ewc": (f"{_HERE}.ewc:EWC", "elastic weight consolidation, one anchor per task"),
        "online-ewc": (f"{_HERE}.ewc:OnlineEWC",
                       "elastic weight consolidation with one anchor (the latest weights) and summed importances"),
        "si": (f"{_HERE}.si:SI", "synaptic intelligence: how much each parameter's path lowered the loss"),
        "mas": (f"{_HERE}.mas:MAS",
                "memory aware synapses: how strongly the outputs depend on each parameter; needs no labels"),
        "gem": (f"{_HERE}.gem:GEM", "project the gradient so that no old task's memory loss rises"),
        "agem": (f"{_HERE}.agem:AGEM", "GEM with one constraint: the mean loss on a batch from memory"),
        "finetune": (f"{_HERE}.simple:Finetune", "learn each task and keep nothing: the lower bound"),
        "joint": (f"{_HERE}.simple:Joint", "learn all tasks at once from all data: the upper bound"),
    },
)
