"""How far a model's vectors moved when it learned more, and whether an index of them is still good.

The queries are held-back samples, which are never trained on. The index is those and the remembered samples, each with
the vector that the model gave it when its batch was learned, as an index that is never refreshed would have it.
Searched by cosine, a sample among all others:

- recall before: queries by the model before this batch, among the vectors stored before it;
- recall: queries by the new model among the stored vectors: what a search in the old index finds;
- recall refreshed: queries by the new model among vectors by the new model: what rebuilding the index would bring.

It is an index of a few thousand samples at most. A larger one of yours will find a little less.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..metrics import degrees
from .labels import Label

if TYPE_CHECKING:
    from .model import Model

TOLERANCE = 0.02  # of recall that an index may lose before it is worth a refresh
CLASS_TOLERANCE = 0.1  # the same for a class, of which there are few samples


@dataclass(frozen=True)
class ClassStability:
    """One class. What cannot be measured, for want of held-back samples, is None."""

    label: Label
    samples: int  # held back
    moved: float | None  # degrees its mean direction turned in this partial_fit
    moved_since_learned: float | None  # and since its vectors were stored
    recall: float | None  # of its queries now, in the stored index
    recall_refreshed: float | None  # and in a refreshed one


@dataclass(frozen=True)
class Stability:
    """The report after one partial_fit; `str` of it is a table and an answer."""

    classes: tuple[ClassStability, ...]
    recall_before: float | None  # queries by the model before, in the stored index as far as it went
    recall: float | None
    recall_refreshed: float | None

    @property
    def refresh(self) -> tuple[Label, ...]:
        """The classes whose stored vectors cost recall."""
        return tuple(
            c.label for c in self.classes
            if c.recall is not None and c.recall_refreshed is not None
            and c.recall_refreshed - c.recall > CLASS_TOLERANCE
        )

    @property
    def action(self) -> str:
        """`unknown`, `keep`, `refresh` (the classes in `refresh`) or `rebuild`."""
        if self.recall is None or self.recall_refreshed is None:
            return "unknown"
        if self.recall_refreshed - self.recall <= TOLERANCE:
            return "keep"
        return "refresh" if 0 < len(self.refresh) <= len(self.classes) / 2 else "rebuild"

    @property
    def answer(self) -> str:
        """What to do with an index of this model's vectors."""
        if self.action == "unknown":
            return "Not measured: too few held-back samples (of a class of n samples, held_back * n are)."
        found = f"a search finds {_percent(self.recall)}, in a rebuilt index {_percent(self.recall_refreshed)}"
        if self.action == "keep":
            return f"Keep the index: {found}."
        if self.action == "refresh":
            return f"Refresh these classes: {', '.join(map(str, self.refresh))} ({found})."
        return f"Rebuild the index: {found}."

    def __str__(self) -> str:
        head = ("class", "samples", "moved", "since learned", "recall", "refreshed")
        rows = [
            (str(c.label), str(c.samples), _angle(c.moved), _angle(c.moved_since_learned), _percent(c.recall),
             _percent(c.recall_refreshed))
            for c in self.classes
        ]
        rows.append(("all", str(sum(c.samples for c in self.classes)), "", "", _percent(self.recall),
                     _percent(self.recall_refreshed)))
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in [head, *rows]]
        return "\n".join([*lines, self.answer])

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "action": self.action, "refresh": list(self.refresh)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Stability:
        """What `to_json` gave."""
        rows = tuple(ClassStability(**row) for row in values["classes"])
        return cls(rows, values["recall_before"], values["recall"], values["recall_refreshed"])


def measure(before: Model | None, after: Model) -> Stability:
    """Compare two models, one batch apart, on the samples that `after` holds back."""
    held = after.held
    images, slots = held.images[: len(held)], held.slots[: len(held)]
    if not len(held):
        unknown = [ClassStability(label, 0, None, None, None, None) for label in after.labels.slots]
        return Stability(tuple(unknown), None, None, None)
    stored = F.normalize(held.notes["stored"][: len(held)], dim=1)  # (n, dim)
    now = F.normalize(after.embed(images), dim=1)
    old = held.tasks[: len(held)] < after.taught - 1  # known before this batch
    then = F.normalize(before.embed(images), dim=1) if before is not None else now
    kept, refreshed, kept_slots, kept_old = _remembered(after)
    all_slots, all_stored = torch.cat([slots, kept_slots]), torch.cat([stored, kept])
    hits = nearest_is_right(now, all_stored, slots, all_slots)
    fresh = nearest_is_right(now, torch.cat([now, refreshed]), slots, all_slots)
    counts = torch.bincount(all_slots, minlength=after.labels.capacity)
    rows = []
    for label, slot in after.labels.slots.items():
        mine = slots == slot
        searched = mine & (counts[slot] > 1)  # a class of one sample has nothing of its own to find
        rows.append(ClassStability(
            label, int(mine.sum()), _turned(then, now, mine & old), _turned(stored, now, mine),
            _share(hits[searched]), _share(fresh[searched]),
        ))
    several, known = counts[slots] > 1, torch.cat([old, kept_old])
    earlier = None
    if bool(old.any()):
        earlier = _share(nearest_is_right(then[old], all_stored[known], slots[old], all_slots[known]))
    return Stability(tuple(rows), earlier, _share(hits[several]), _share(fresh[several]))


def _remembered(model: Model) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the memory: the vectors as stored, as they are now, their slots, and which came before the last batch."""
    memory, dim = model.memory, model.held.notes["stored"].shape[1]
    count = len(memory) if "stored" in memory.notes else 0  # of a head too wide they are not kept
    now = F.normalize(model.embed(memory.images[:count]), dim=1)
    stored = memory.notes["stored"][:count].to(now.dtype) if count else now.new_zeros(0, dim)
    return stored, now.view(-1, dim), memory.slots[:count], memory.tasks[:count] < model.taught - 1


def nearest_is_right(queries: Tensor, gallery: Tensor, slots: Tensor, gallery_slots: Tensor) -> Tensor:
    """For each unit query (n, dim): is the nearest gallery vector of its class? (n,) Query i is the gallery's row i."""
    similar = queries @ gallery.T  # (n, gallery)
    similar.fill_diagonal_(-2)  # not itself
    return gallery_slots[similar.argmax(1)] == slots


def _turned(a: Tensor, b: Tensor, rows: Tensor) -> float | None:
    """Degrees between the mean directions of some rows of unit vectors."""
    if not bool(rows.any()):
        return None
    return float(degrees(F.normalize(a[rows].mean(0), dim=0), F.normalize(b[rows].mean(0), dim=0)))


def _share(hits: Tensor) -> float | None:
    return float(hits.double().mean()) if len(hits) else None


def _angle(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}°"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
