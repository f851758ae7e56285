"""Measure how far a model's vectors moved with the last batch, and whether a search index of them is still valid.

The queries are held-back samples, which are never trained on. The index contains these and the samples in memory.
Each has the vector that the model computed when its batch was learned, as in an index that is never refreshed. A
search compares one sample with all others by cosine similarity:

- recall before: queries from the previous model, in the vectors stored before this batch;
- recall: queries from the new model in the stored vectors: a search in the old index;
- recall refreshed: queries from the new model in vectors from the new model: a search in a rebuilt index.

This index has a few thousand samples at most; a larger one has a slightly lower recall. The classes to refresh are
found by trying them out on one half of the queries, one by one, until the recall suffices. The other half judges them.
Few queries tell little. So one standard error is added to every loss before it is judged, and where the queries cannot
tell, the advice is a fresh index.
If the inputs are vectors, a search among these is measured too: they never move, and may be the better index.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..learning.metrics import degrees
from ..markup import table
from ..quantities import some
from .labels import Label
from .refreshing import Refreshing

if TYPE_CHECKING:
    from .model import Model

HEAD = ("class", "samples", "moved", "since learned", "recall", "refreshed")
TOLERANCE = 0.02  # loss of recall up to which the index is kept
FEW = round(1 / TOLERANCE)  # held-back samples below which a single one exceeds the tolerance


@dataclass(frozen=True)
class ClassStability:
    """The measurements of one class; None where there are no held-back samples."""

    label: Label
    samples: int  # held back
    moved: float | None  # degrees that its mean direction turned in this partial_fit
    moved_since_learned: float | None  # degrees since its vectors were stored
    recall: float | None  # of its queries in the stored index
    recall_refreshed: float | None  # of its queries in a refreshed index


@dataclass(frozen=True)
class Stability:
    """The report after one partial_fit; `str` of it is a table and a recommendation."""

    classes: tuple[ClassStability, ...]
    recall_before: float | None  # queries from the previous model, in the vectors stored before
    recall: float | None
    recall_refreshed: float | None
    refresh: tuple[Label, ...] = ()  # few classes whose refresh is nearly as good as rebuilding, if they exist

    frozen: bool = False  # the vectors are frozen features, which never move
    recall_inputs: float | None = None  # of a search among the input vectors, if the inputs are vectors
    error: float = 0.0  # standard error of recall_refreshed - recall over the queries

    @property
    def action(self) -> str:
        """Return `unknown`, `keep`, `refresh` (the classes in `refresh`), `rebuild`, or `inputs` (index the inputs)."""
        if self.frozen:
            return "keep"
        if self.recall is None or self.recall_refreshed is None:
            return "unknown"
        if self.inputs_are_better and self.recall_refreshed - (self.recall_inputs or 0) <= TOLERANCE + 1e-9:
            return "inputs"
        if self.recall_refreshed - self.recall + self.error <= TOLERANCE + 1e-9:  # exactly TOLERANCE still counts
            return "keep"
        return "refresh" if self.refresh else "rebuild"

    @property
    def inputs_are_better(self) -> bool:
        """Return True if a search among the input vectors finds more than one in the kept index."""
        if self.recall_inputs is None or self.recall is None:
            return False
        return self.recall_inputs - self.recall > TOLERANCE + 1e-9

    @property
    def answer(self) -> str:
        """Return one recommendation for an index of this model's vectors."""
        if not self.classes:
            return "Nothing is left to measure: every class has been forgotten."
        if self.frozen:
            found = "" if self.recall is None else f" A search in the held samples finds {_percent(self.recall)}."
            return f"Keep the index: its vectors are frozen features, which never move.{found}"
        if self.action == "unknown":
            return "Not measured: too few held-back samples (a class of n samples gives held_back * n)."
        found = f"a search finds {_percent(self.recall)}, in a rebuilt index {_percent(self.recall_refreshed)}"
        advice = {
            "inputs": f"Index the input vectors instead: a search among them finds {_percent(self.recall_inputs)}, and "
                      f"they never move. Among the model's vectors {found}.",
            "keep": f"Keep the index: {found}.",
            "refresh": f"Refresh these classes: {', '.join(map(str, self.refresh))} ({found}).",
            "rebuild": f"Rebuild the index, all vectors stored before this batch: {found}.",
        }[self.action]
        if self.inputs_are_better and self.action != "inputs":
            advice += f" A search among the input vectors, which never move, finds {_percent(self.recall_inputs)}."
        return " ".join([advice, *self.doubts])

    @property
    def doubts(self) -> list[str]:
        """Return the caveats of the answer, one sentence each."""
        samples, without = sum(c.samples for c in self.classes), [str(c.label) for c in self.classes if not c.samples]
        lost = None if self.recall is None or self.recall_refreshed is None else self.recall_refreshed - self.recall
        close = (f"It may have lost up to {_percent((lost or 0) + self.error)}, more than {_percent(TOLERANCE)}: "
                 f"{samples} held-back samples cannot tell.")
        thin = f"This is uncertain: it rests on {samples} held-back samples."
        lone = [str(c.label) for c in self.classes if c.samples == 1]
        single = f"With one held-back sample each, these cannot be judged by themselves: {some(lone)}."
        blind = f"Not measured, because there are no held-back samples: {some(without)}."
        unsure = lost is not None and self.action in ("refresh", "rebuild") and lost <= TOLERANCE + 1e-9
        return [*([close] if unsure else [thin] if samples < FEW else []),
                *([single] if lone else []), *([blind] if without else [])]

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[i]) for row in [HEAD, *rows]) for i in range(len(HEAD))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in [HEAD, *rows]]
        return "\n".join([*lines, self.answer])

    def _repr_html_(self) -> str:
        return table(HEAD, self._rows(), "Stability of the vectors", self.answer)

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [
            (str(c.label), str(c.samples), _angle(c.moved), _angle(c.moved_since_learned), _percent(c.recall),
             _percent(c.recall_refreshed))
            for c in self.classes
        ]
        rows.append(("all", str(sum(c.samples for c in self.classes)), "", "", _percent(self.recall),
                     _percent(self.recall_refreshed)))
        return rows

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "action": self.action, "refresh": list(self.refresh)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Stability:
        """Rebuild the report from `to_json`."""
        rows = tuple(ClassStability(**row) for row in values["classes"])
        before, stored, fresh = (values[name] for name in ("recall_before", "recall", "recall_refreshed"))
        return cls(rows, before, stored, fresh, tuple(values["refresh"]), bool(values.get("frozen", False)),
                   values.get("recall_inputs"), float(values.get("error", 0.0)))


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
    several = counts[slots] > 1  # a class of one sample has no neighbour to find
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
    found = Stability(tuple(rows), earlier, _share(hits[several]), _share(fresh[several]),
                      error=standard_error(fresh[several], hits[several]))
    if len(after.shape) == 1:
        found = replace(found, recall_inputs=_among_inputs(after, images, slots, several))
    if found.action != "rebuild":
        return found
    stale = all_slots[known].unique()
    # Sorted by class, so that both halves have samples of every class.
    rows_of = several.nonzero().squeeze(1)
    rows_of = rows_of[slots[rows_of].sort(stable=True).indices]
    choose, judge = (
        Refreshing(now[half], all_stored, all_fresh, slots[half], all_slots, half)
        for half in (rows_of[::2], rows_of[1::2])
    )
    if not len(judge.right) or bool((torch.bincount(slots, minlength=int(stale.max()) + 1)[stale] < 2).any()):
        return found  # too few samples per class to choose some classes and to judge the choice
    chosen = choose.fewest(stale.tolist(), choose.recall({*stale.tolist()}) - TOLERANCE, len(stale) // 2)
    rebuilt, refreshed_some = judge.hits({*stale.tolist()}), judge.hits({*chosen})
    lost = float((rebuilt.double() - refreshed_some.double()).mean())
    if lost + standard_error(rebuilt, refreshed_some) > TOLERANCE + 1e-9:
        return found
    names = after.labels.of_slot()
    return replace(found, refresh=tuple(names[slot] for slot in sorted(chosen)))


def _among_inputs(model: Model, queries: Tensor, slots: Tensor, several: Tensor) -> float | None:
    """Return the recall of a search among the input vectors themselves."""
    memory, count = model.memory, len(model.memory)
    gallery = F.normalize(torch.cat([queries, memory.images[:count]]), dim=1)
    hits = nearest_is_right(gallery[: len(queries)], gallery, slots, torch.cat([slots, memory.slots[:count]]))
    return _share(hits[several])


def measure_again(report: Stability, after: Model) -> Stability:
    """Measure the last batch's report again after a class was forgotten and removed from the index."""
    moved = {c.label: c.moved for c in report.classes}
    found = measure(None, after)
    return replace(found, classes=tuple(replace(c, moved=moved.get(c.label)) for c in found.classes))


def _remembered(model: Model) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the memory's stored vectors, current vectors, slots, and a mask of those older than the last batch."""
    memory, dim = model.memory, model.held.notes["stored"].shape[1]
    count = len(memory) if "stored" in memory.notes else 0  # not stored for very wide heads
    now = _as_stored(model.embed(memory.images[:count]))
    stored = _as_stored(memory.notes["stored"][:count]) if count else now.new_zeros(0, dim)
    return stored, now.view(-1, dim), memory.slots[:count], memory.tasks[:count] < model.taught - 1


def _as_stored(vectors: Tensor) -> Tensor:
    """Normalise and round vectors as the memory stores them, so that an unmoved vector compares equal."""
    if vectors.dtype != torch.half:
        vectors = F.normalize(vectors, dim=1).half()
    return vectors.float()


def nearest_is_right(queries: Tensor, gallery: Tensor, slots: Tensor, gallery_slots: Tensor) -> Tensor:
    """Return (n,) True where the nearest other gallery vector has the query's class; query i is gallery row i."""
    similar = queries @ gallery.T  # (n, gallery)
    similar.fill_diagonal_(-2)  # exclude the query itself
    return gallery_slots[similar.argmax(1)] == slots


def standard_error(a: Tensor, b: Tensor) -> float:
    """Return the standard error of the mean of a - b, the hits (n,) of two searches; 0 for fewer than two queries."""
    difference = a.double() - b.double()
    return float(difference.std() / len(difference) ** 0.5) if len(difference) > 1 else 0.0


def _turned(a: Tensor, b: Tensor, rows: Tensor) -> float | None:
    """Return the angle in degrees between the mean directions of some rows, or None without rows."""
    if not bool(rows.any()):
        return None
    return float(degrees(F.normalize(a[rows].mean(0), dim=0), F.normalize(b[rows].mean(0), dim=0)))


def _share(hits: Tensor) -> float | None:
    return float(hits.double().mean()) if len(hits) else None


def _angle(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}°"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
