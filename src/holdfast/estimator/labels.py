"""The map from the user's labels to slots: a new label takes the next free slot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, column_or_1d
from torch import Tensor

from ..errors import BadInput
from ..quantities import some

Label = str | int | bool
KINDS = {"strings", "whole numbers", "booleans"}


def read(y: Any, count: int) -> list[Label]:
    """Return one label per sample as Python values: all strings, all integers or all booleans."""
    if y is None:
        raise BadInput("IncrementalClassifier requires y to be passed, but the target y is None.")
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    # Numpy would turn [1, "one"] into strings, so lists are kept as they are.
    values = list(y) if isinstance(y, list | tuple) else column_or_1d(y, warn=True).tolist()
    if len(values) != count:
        raise BadInput(f"There are {count} samples, but {len(values)} labels: give one label per sample.")
    kinds = sorted({_kind(value) for value in values})
    if kinds == ["fractions"]:  # integers stored as floats
        fractions = np.asarray(values, dtype=np.float64)
        assert_all_finite(fractions, input_name="y")
        check_classification_targets(fractions)
        return [int(value) for value in values]
    if len(kinds) > 1:
        raise BadInput(f"Labels of mixed types: {' and '.join(kinds)}. Use strings, or whole numbers, for all.")
    if not kinds or kinds[0] not in KINDS:
        raise BadInput(f"Unknown label type: {kinds[0] if kinds else 'nothing'}. Use strings or whole numbers.")
    return [str(v) if kinds == ["strings"] else bool(v) if kinds == ["booleans"] else int(v) for v in values]


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "strings"
    if isinstance(value, bool | np.bool_):
        return "booleans"
    if isinstance(value, int | np.integer):
        return "whole numbers"
    return "fractions" if isinstance(value, float | np.floating) else type(value).__name__


def without(history: list[dict[str, Any]], label: Label) -> list[dict[str, Any]]:
    """Return a model's history without the name of a class that was forgotten."""
    cleaned = []
    for record in history:
        record = {**record, "classes": [each for each in record["classes"] if each != label]}
        if report := record.get("stability"):
            record["stability"] = {
                **report, "classes": [each for each in report["classes"] if each["label"] != label],
                "refresh": [each for each in report["refresh"] if each != label],
            }
        cleaned.append(record)
    return cleaned


@dataclass
class Labels:
    """The slot of each label, out of `capacity` slots."""

    capacity: int
    slots: dict[Label, int] = field(default_factory=dict)  # in order of arrival
    used: int = 0  # slots 0..used-1 have been assigned at least once
    freed: list[int] = field(default_factory=list)  # slots that are free again, the longest free first

    @property
    def free(self) -> int:
        return self.capacity - len(self.slots)

    def take(self, labels: Iterable[Label]) -> list[int]:
        """Return the slot of each label; new labels take the next free slots in sorted order, all of them or none."""
        labels = list(labels)
        if self.slots and (before := _kind(next(iter(self.slots)))) != (now := _kind(labels[0])):
            raise BadInput(f"These labels are {now}, but the model's are {before}: use the same kind for all.")
        new = sorted({*labels} - self.slots.keys())
        if len(new) > self.free:
            raise BadInput(
                f"{len(new)} new labels ({some([*map(repr, new)])}), but only {self.free} free slots of "
                f"{self.capacity}: forget some labels, or start a model with more slots."
            )
        for label in new:
            self.slots[label] = self._next()
        return [self.slots[label] for label in labels]

    def give_back(self, label: Any) -> int:
        """Remove a label and return its slot, which is reused only when no other slot is free."""
        if isinstance(label, list | tuple | set | np.ndarray | Tensor):
            raise BadInput(f"forget takes one label at a time, not {label!r}: call it for each of them.")
        if not self.slots or _kind(label) != _kind(next(iter(self.slots))) or label not in self.slots:
            known = some([*map(repr, self.slots)], 10)
            raise BadInput(f"There is no label {label!r} to forget; the model knows {known or 'none'}.")
        slot = self.slots.pop(label)
        self.freed.append(slot)
        return slot

    def classes(self) -> np.ndarray:
        """Return the sorted labels, as scikit-learn's `classes_` must be."""
        return np.array(sorted(self.slots)) if self.slots else np.array([], dtype=np.int64)

    def slots_of_classes(self) -> list[int]:
        """Return the slots in the order of `classes`."""
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
        """Read what `to_json` returned."""
        return cls(capacity, {label: slot for label, slot in values["slots"]}, values["used"], values["freed"])
