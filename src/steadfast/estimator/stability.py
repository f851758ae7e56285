"""How far a model's vectors moved when it learned more, and whether an index of them is still good.

The queries are held-back samples, which are never trained on. The index is those and the remembered samples, each with
the vector that the model gave it when its batch was learned, as an index that is never refreshed would have it.
Searched by cosine, a sample among all others:

- recall before: queries by the model before this batch, among the vectors stored before it;
- recall: queries by the new model among the stored vectors: what a search in the old index finds;
- recall refreshed: queries by the new model among vectors by the new model: what rebuilding the index would bring.

It is an index of a few thousand samples at most. A larger one of yours will find a little less. Which classes to
refresh is tried out in it: class by class, until a search finds enough.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..metrics import degrees
from .labels import Label
from .refreshing import Refreshing

if TYPE_CHECKING:
    from .model import Model

TOLERANCE = 0.02  # of recall that an index may lose before it is worth a refresh
FEW = round(1 / TOLERANCE)  # held-back samples; with fewer, a single one is more than the tolerance


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
    refresh: tuple[Label, ...] = ()  # the fewest classes whose refresh is nearly as good as rebuilding, if they are few

    @property
    def action(self) -> str:
        """`unknown`, `keep`, `refresh` (the classes in `refresh`) or `rebuild`."""
        if self.recall is None or self.recall_refreshed is None:
            return "unknown"
        if self.recall_refreshed - self.recall <= TOLERANCE:
            return "keep"
        return "refresh" if self.refresh else "rebuild"

    @property
    def answer(self) -> str:
        """What to do with an index of this model's vectors."""
        if not self.classes:
            return "Nothing is left to measure: every class has been forgotten."
        if self.action == "unknown":
            return "Not measured: too few held-back samples (of a class of n samples, held_back * n are)."
        found = f"a search finds {_percent(self.recall)}, in a rebuilt index {_percent(self.recall_refreshed)}"
        advice = {
            "keep": f"Keep the index: {found}.",
            "refresh": f"Refresh these classes: {', '.join(map(str, self.refresh))} ({found}).",
            "rebuild": f"Rebuild the index, whatever was stored before this batch: {found}.",
        }[self.action]
        return " ".join([advice, *self.doubts])

    @property
    def doubts(self) -> list[str]:
        """What the answer does not rest on, a sentence each."""
        samples, without = sum(c.samples for c in self.classes), [str(c.label) for c in self.classes if not c.samples]
        thin = f"That is of {samples} held-back samples, too few to be sure of."
        blind = f"Of {_some(without)} there are none, so nothing is known of {'it' if len(without) == 1 else 'them'}."
        return [*([thin] if samples < FEW else []), *([blind] if without else [])]

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
        before, stored, fresh = (values[name] for name in ("recall_before", "recall", "recall_refreshed"))
        angles = [angle for row in rows for angle in (row.moved, row.moved_since_learned)]
        shares = [before, stored, fresh, *(share for row in rows for share in (row.recall, row.recall_refreshed))]
        if not all(_is_number(angle, 180.1) for angle in angles) or not all(_is_number(share, 1) for share in shares):
            raise ValueError("its stability holds what was never measured")
        if not all(type(row.samples) is int for row in rows):
            raise ValueError("its stability counts what cannot be counted")
        return cls(rows, before, stored, fresh, tuple(values["refresh"]) if values["action"] == "refresh" else ())


def measure(before: Model | None, after: Model) -> Stability:
    """Compare two models, one batch apart, on the samples that `after` holds back."""
    held = after.held
    images, slots = held.images[: len(held)], held.slots[: len(held)]
    if not len(held):
        unknown = [ClassStability(label, 0, None, None, None, None) for label in after.labels.slots]
        return Stability(tuple(unknown), None, None, None)
    stored = _as_stored(held.notes["stored"][: len(held)])  # (n, dim)
    now = F.normalize(after.embed(images), dim=1)
    old = held.tasks[: len(held)] < after.taught - 1  # known before this batch
    kept, refreshed, kept_slots, kept_old = _remembered(after)
    all_slots, known = torch.cat([slots, kept_slots]), torch.cat([old, kept_old])
    all_stored, all_fresh = torch.cat([stored, kept]), torch.cat([_as_stored(now), refreshed])
    hits = nearest_is_right(now, all_stored, slots, all_slots)
    fresh = nearest_is_right(now, all_fresh, slots, all_slots)
    counts = torch.bincount(all_slots, minlength=after.labels.capacity)
    several = counts[slots] > 1  # a class of one sample has nothing of its own to find
    then, earlier = None, None
    if before is not None and bool(old.any()):
        then = F.normalize(before.embed(images), dim=1)
        earlier = _share(nearest_is_right(then[old], all_stored[known], slots[old], all_slots[known]))
    rows = []
    for label, slot in after.labels.slots.items():
        mine = slots == slot
        rows.append(ClassStability(
            label, int(mine.sum()), None if then is None else _turned(then, now, mine & old),
            _turned(stored, now, mine), _share(hits[mine & several]), _share(fresh[mine & several]),
        ))
    found = Stability(tuple(rows), earlier, _share(hits[several]), _share(fresh[several]))
    if found.action != "rebuild":
        return found
    stale = all_slots[known].unique()
    trial = Refreshing(now[several], all_stored, all_fresh, slots[several], all_slots, several.nonzero().squeeze(1))
    chosen = trial.fewest(stale.tolist(), float(fresh[several].double().mean()) - TOLERANCE, len(stale) // 2)
    names = after.labels.of_slot()
    return replace(found, refresh=tuple(names[slot] for slot in sorted(chosen)))


def measure_again(report: Stability, after: Model) -> Stability:
    """The report of the last batch for what is left when a class has been forgotten since, and taken from the index."""
    moved = {c.label: c.moved for c in report.classes}
    found = measure(None, after)
    return replace(found, classes=tuple(replace(c, moved=moved.get(c.label)) for c in found.classes))


def _remembered(model: Model) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the memory: the vectors as stored, as they are now, their slots, and which came before the last batch."""
    memory, dim = model.memory, model.held.notes["stored"].shape[1]
    count = len(memory) if "stored" in memory.notes else 0  # of a head too wide they are not kept
    now = _as_stored(model.embed(memory.images[:count]))
    stored = _as_stored(memory.notes["stored"][:count]) if count else now.new_zeros(0, dim)
    return stored, now.view(-1, dim), memory.slots[:count], memory.tasks[:count] < model.taught - 1


def _as_stored(vectors: Tensor) -> Tensor:
    """Of length one and rounded as the memory keeps them, so that a vector that has not moved is the same vector."""
    if vectors.dtype != torch.half:
        vectors = F.normalize(vectors, dim=1).half()
    return vectors.float()


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


def _is_number(value: Any, most: float) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value <= most)


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _angle(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}°"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
