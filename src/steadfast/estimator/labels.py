"""The user's labels and the slots they hold: a new label takes the next free slot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from ..errors import BadInput

Label = str | int | bool
KINDS = {"strings", "whole numbers", "booleans"}


def read(y: Any, count: int) -> list[Label]:
    """One label a sample, all strings or all whole numbers (or all booleans), as plain Python values."""
    if y is None:
        raise BadInput("IncrementalClassifier requires y to be passed, but the target y is None.")
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    if isinstance(y, list | tuple):  # not by numpy, which would make strings of [1, "one"]
        values = np.empty(len(y), dtype=object)
        values[:] = y if all(np.ndim(item) == 0 for item in y) else [list(np.ravel(item)) for item in y]
        y = values
    y = np.asarray(y)
    if y.ndim == 1 and y.dtype == object:
        kinds = sorted({_kind(value) for value in y})
        if len(kinds) > 1:
            raise BadInput(f"Labels of mixed types: {' and '.join(kinds)}. Use strings, or whole numbers, for all.")
    else:
        y = column_or_1d(y, warn=True)
    if len(y) != count:
        raise BadInput(f"There are {count} samples, but {len(y)} labels: give one a sample.")
    if y.dtype.kind == "f" or (y.dtype == object and len(y) and _kind(y[0]) == "fractions"):
        y = np.asarray(y, dtype=np.float64)
        if not np.isfinite(y).all():
            raise BadInput("Labels must be strings or whole numbers: Input y contains NaN or infinity.")
        check_classification_targets(y)
        y = y.astype(np.int64)
    kind = _kind(y[0]) if len(y) else "nothing"
    if kind not in KINDS:
        raise BadInput(f"Unknown label type: {kind}. Labels must be strings or whole numbers.")
    return [str(v) if kind == "strings" else bool(v) if kind == "booleans" else int(v) for v in y]


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "strings"
    if isinstance(value, bool | np.bool_):
        return "booleans"
    if isinstance(value, int | np.integer):
        return "whole numbers"
    return "fractions" if isinstance(value, float | np.floating) else type(value).__name__


@dataclass
class Labels:
    """Which label holds which slot of `capacity`."""

    capacity: int
    slots: dict[Label, int] = field(default_factory=dict)  # in the order in which they came
    used: int = 0  # slots 0..used-1 have been given out at least once
    freed: list[int] = field(default_factory=list)  # of these, the ones free again; the longest free first

    @property
    def free(self) -> int:
        return self.capacity - len(self.slots)

    def take(self, labels: Iterable[Label]) -> list[int]:
        """The slot of each label; new labels take the next free ones, in sorted order. All of them or none."""
        labels = list(labels)
        if self.slots and (before := _kind(next(iter(self.slots)))) != (now := _kind(labels[0])):
            raise BadInput(f"These labels are {now}, but the model's are {before}: use the same kind for all.")
        new = sorted({*labels} - self.slots.keys())
        if len(new) > self.free:
            some = ", ".join(repr(label) for label in new[:5])
            raise BadInput(
                f"{len(new)} new labels ({some}{', ...' if len(new) > 5 else ''}) and {self.free} free slots of "
                f"{self.capacity}: forget some labels, or start a model with more slots."
            )
        for label in new:
            self.slots[label] = self._next()
        return [self.slots[label] for label in labels]

    def give_back(self, label: Any) -> int:
        """The label is gone; its slot is free again, and taken again last."""
        if isinstance(label, list | tuple | set | np.ndarray | Tensor):
            raise BadInput(f"forget takes one label at a time, not {label!r}: call it for each of them.")
        if not self.slots or _kind(label) != _kind(next(iter(self.slots))) or label not in self.slots:
            known = ", ".join(repr(each) for each in list(self.slots)[:10])
            raise BadInput(f"There is no label {label!r} to forget; the model knows {known or 'none'}.")
        slot = self.slots.pop(label)
        self.freed.append(slot)
        return slot

    def classes(self) -> np.ndarray:
        """The labels, sorted, as scikit-learn wants them."""
        return np.array(sorted(self.slots)) if self.slots else np.array([], dtype=np.int64)

    def slots_of_classes(self) -> list[int]:
        """The slots in the order of `classes`."""
        return [self.slots[label] for label in sorted(self.slots)]

    def of_slot(self) -> dict[int, Label]:
        return {slot: label for label, slot in self.slots.items()}

    def _next(self) -> int:
        if self.used < self.capacity:
            self.used += 1
            return self.used - 1
        return self.freed.pop(0)

    def to_json(self) -> dict[str, Any]:
        return {"slots": [[label, slot] for label, slot in self.slots.items()], "used": self.used, "freed": self.freed}

    @classmethod
    def from_json(cls, capacity: int, values: dict[str, Any]) -> Labels:
        """What `to_json` gave; a ValueError if it contradicts itself."""
        labels = cls(capacity, {label: slot for label, slot in values["slots"]}, values["used"], values["freed"])
        given = [*labels.slots.values(), *labels.freed]
        kinds = {_kind(label) for label in labels.slots}
        whole = all(type(slot) is int for slot in [*given, labels.used])
        if not whole or sorted(given) != list(range(labels.used)) or labels.used > capacity:
            raise ValueError("the slots contradict each other")
        if len(labels.slots) != len(values["slots"]) or len(kinds) > 1 or not kinds <= KINDS:
            raise ValueError("the labels contradict each other")
        return labels
