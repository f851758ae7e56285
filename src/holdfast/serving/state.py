"""The model that is served: one reference, changed only by the teacher, after the new model is on disk."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..data import inputs
from ..errors import BadInput
from ..estimator import IncrementalClassifier, versions
from ..estimator.gate import Gate, Verdict, admit
from ..estimator.model_files import NAME
from ..learning.training import Watcher
from ..quantities import some
from .atlas import Atlas
from .metrics import Metrics

REJECT = 0.05  # the share by which /model says whether strangers can be refused
THRESHOLDS = 100  # that a model remembers
Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class Answer:
    """What the model says about one sample."""

    served: Served
    chances: np.ndarray  # (classes,), in the order of `labels`
    labels: list[Any]
    novelty: float | None  # None if the model cannot tell yet
    vector: np.ndarray
    place: tuple[float, float]  # on the map


@dataclass(frozen=True)
class Served:
    """A model and its number. It never changes; a new one replaces it."""

    number: int  # 0 before the first batch
    clf: IncrementalClassifier
    thresholds: dict[float, float | BadInput] = field(default_factory=dict)  # of novelty, by `reject`

    @cached_property
    def atlas(self) -> Atlas:
        """Return the map of the model."""
        return Atlas(getattr(self.clf, "model_", None), self.slots)

    @property
    def slots(self) -> int:
        return self.clf.model_.labels.capacity if hasattr(self.clf, "model_") else self.clf.slots

    @property
    def taught(self) -> bool:
        return hasattr(self.clf, "model_") and len(self.clf.classes_) > 0

    def answer(self, samples: Sequence[Any]) -> list[Answer]:
        """Predict samples; raise Untaught if there is no class yet."""
        if not self.taught:
            raise Untaught("The model knows no class yet: teach it one first.")
        model, embedded = self.clf.model_, self.clf.embed_tensor(_as_given(self.clf, samples))
        chances = model.chances(embedded).cpu().numpy()
        novelty = model.novelty(embedded).cpu().tolist()
        labels, vectors = self.clf.classes_.tolist(), embedded.cpu().numpy()
        places = self.atlas.samples(embedded, chances, model.labels.slots_of_classes()).tolist()
        return [Answer(self, row, labels, score if math.isfinite(score) else None, vector, (x, y))
                for row, score, vector, (x, y) in zip(chances, novelty, vectors, places)]

    def threshold(self, reject: float) -> float:
        """Return the novelty above which a sample is none of the classes; raise BadInput if it is not known yet."""
        found = self.thresholds.get(reject)
        if found is None:
            try:
                found = self.clf.model_.threshold(reject)
            except BadInput as error:
                found = error
            if len(self.thresholds) >= THRESHOLDS:  # callers choose `reject`, so they could fill the memory
                self.thresholds.clear()
            self.thresholds[reject] = found
        if isinstance(found, BadInput):
            raise found
        return found

    def can_reject(self) -> bool:
        try:
            return self.taught and math.isfinite(self.threshold(REJECT))
        except BadInput:
            return False


class Untaught(BadInput):
    """The model knows no class."""


class Keeper:
    """Holds the served model. `teach`, `forget` and `rollback` are called by the one teacher thread only."""

    def __init__(self, folder: Path, clf: IncrementalClassifier, gate: Gate, takes: str, metrics: Metrics) -> None:
        self.folder = folder.absolute()  # so that errors name it as one path, which no answer shows
        self.gate, self.takes, self.metrics = gate, takes, metrics
        self._exporting = threading.Lock()
        number = 0
        if (folder / NAME).exists():
            number = next(version.number for version in versions.history(folder) if version.current)
        self._serve(Served(number, clf))

    def teach(self, samples: Sequence[Any], labels: list[Any], progress: Progress) -> tuple[Served, int, Verdict]:
        """Learn a batch on a copy, write it to disk, then serve it; return (served, its number, the gate's verdict).

        If the gate rejects it, the old model stays, and the number is that of the model kept aside."""
        before = self.served
        clf = copy.copy(before.clf)  # partial_fit replaces the model and changes nothing in place
        embedded = 0

        def watch(count: int) -> None:
            nonlocal embedded
            embedded += count
            progress(embedded, len(labels), "samples embedded")

        clf.watch = watch
        watcher = Watcher(epoch=lambda record: progress(record["epoch"], None, "epochs"))
        clf.partial_fit(_as_given(clf, samples), labels, watcher=watcher)
        clf.watch = None
        version, verdict = admit(self.gate, getattr(before.clf, "model_", None), clf, self.folder)
        if verdict.passed:
            self._serve(Served(version.number, clf))
            self.metrics.taught.inc()
        else:
            self.metrics.rejected.inc()
        return self.served, version.number, verdict

    def forget(self, text: str) -> Served:
        """Remove a class, write the model to disk, then serve it."""
        clf = copy.copy(self.served.clf)
        if not self.served.taught:
            raise Untaught(f"The model knows no class yet, so there is no label {text!r} to forget.")
        clf.forget(self.label(text))
        self._serve(Served(versions.keep(clf, self.folder).number, clf))
        return self.served

    def rollback(self, number: int | None) -> Served:
        """Serve an older version."""
        if not (self.folder / NAME).exists():
            raise Untaught("There is no version to go back to: nothing was taught yet.")
        chosen = versions.rollback(self.folder, number)
        old = self.served.clf
        clf = IncrementalClassifier.load(self.folder, device=old.device, offline=old.offline)
        clf.share_embedder(old)
        self._serve(Served(chosen.number, clf))
        return self.served

    def label(self, text: str) -> Any:
        """Return the known label that is written like `text`; whole numbers stay whole numbers."""
        known = self.served.clf.classes_.tolist() if hasattr(self.served.clf, "model_") else []
        for label in known:
            if str(label) == text:
                return label
        numbers = bool(known) and all(isinstance(label, int) and not isinstance(label, bool) for label in known)
        return int(text) if numbers and text.lstrip("-").isdecimal() else text

    def image_size(self) -> tuple[int, int] | None:
        """Return the (height, width) to which the model scales every image, or None if it is not known yet.

        An embedder scales images in its own way."""
        clf = self.served.clf
        if clf.embedder is not None:
            return None
        if hasattr(clf, "model_"):
            return clf.model_.shape[1:] if len(clf.model_.shape) == 3 else None
        return None if clf.image_size is None else inputs.pair(clf.image_size)

    def export(self, served: Served, path: Path) -> None:
        """Write a served model to `path`: its own file, or an ONNX graph if the path ends so."""
        with self._exporting:  # one at a time: a graph needs a multiple of the model's memory
            if path.suffix == ".onnx":
                served.clf.export(path)
            else:
                served.clf.save(path.parent)

    def _serve(self, served: Served) -> None:
        if served.taught:  # solve and calibrate before anybody waits for it
            model = served.clf.model_
            model.chances(model.embed(_blank(served.clf)))
            served.can_reject()
        self.served = served
        self.metrics.classes.set(len(served.clf.classes_) if served.taught else 0)
        self.metrics.version.set(served.number)


def kind_of(clf: IncrementalClassifier, asked: str | None) -> str:
    """Return what a model takes: "images", "texts" or "vectors"; open its embedder, which must be the right one."""
    if clf.embedder is not None:
        return {"text": "texts", "images": "images"}.get(clf.check_embedder().takes, "vectors")
    if hasattr(clf, "model_"):
        return "images" if len(clf.model_.shape) == 3 else "vectors"
    return asked or "vectors"


def _as_given(clf: IncrementalClassifier, samples: Sequence[Any]) -> Any:
    """Return samples as the estimator takes them: vectors as one array, anything else as a list."""
    if samples and not isinstance(samples[0], list | tuple | np.ndarray):
        return list(samples)
    lengths = {len(sample) for sample in samples}
    if len(lengths) > 1:
        raise BadInput(f"The vectors have {some(sorted(lengths))} numbers; give all of them the same length.")
    learned = clf.model_.shape if hasattr(clf, "model_") and clf.embedder is None else ()
    if len(learned) == 1 and lengths != {*learned}:
        raise BadInput(f"The vectors have {lengths.pop()} numbers, but the model learned {learned[0]} features.")
    with np.errstate(over="ignore"):  # a number beyond float32 becomes infinity, which is refused by its row
        return np.asarray(samples, dtype=np.float32)


def _blank(clf: IncrementalClassifier) -> Any:
    """Return one empty sample of the model's shape."""
    import torch

    shape = clf.model_.shape
    return torch.zeros(1, *shape, dtype=torch.uint8 if len(shape) == 3 else torch.float32)
