"""The gate before a new model replaces the old one: both are measured on held-back samples.

A trained model holds samples back and never trains on them. A solved model scores the samples that it keeps for
calibration as if each had not been learned, which has a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BadConfig
from . import explain, versions
from .model import Model
from .solved import SolvedModel
from .versions import Version

if TYPE_CHECKING:
    from .classifier import IncrementalClassifier

FEWEST = 20  # held-back samples below which nothing is judged
REMEDY = "Teach more samples, or leave the gate out."


@dataclass(frozen=True)
class Gate:
    """What a new model must reach. Shares are 0..1; None asks for nothing."""

    better_than: float | None = None  # accuracy on the held-back samples of all classes
    no_worse_by: float | None = None  # loss of accuracy on the classes that were known before

    def __post_init__(self) -> None:
        for name, value in (("keep-if-better-than", self.better_than), ("no-worse-by", self.no_worse_by)):
            if value is not None and not 0 <= value < 1:
                raise BadConfig(f"{name} is {value}; it is a share of held-back samples, such as 0.9 or 0.02.")


    @property
    def asked(self) -> bool:
        return self.better_than is not None or self.no_worse_by is not None


@dataclass(frozen=True)
class Verdict:
    """What the gate measured; `passed` says whether the new model may replace the old one."""

    passed: bool
    reason: str
    accuracy: float | None = None  # of the new model, all classes
    before: float | None = None  # of the old model, on its classes
    after: float | None = None  # of the new model, on the same classes


def admit(
    gate: Gate, before: Model | SolvedModel | None, estimator: IncrementalClassifier, folder: Path
) -> tuple[Version, Verdict]:
    """Judge a newly taught estimator, then write it as the version in use, or aside if it was rejected.

    Its accuracy on held-back samples is part of its history, with a gate or without."""
    verdict, last = judge(gate, before, estimator.model_), estimator.model_.history[-1:]
    accuracy = verdict.accuracy
    if accuracy is None and last and last[0]["accuracy"] is None:  # replay measures it while it learns
        accuracy = held_accuracy(estimator.model_)[0]
    if accuracy is not None and last:
        last[0]["accuracy"] = 100 * accuracy
    return versions.keep(estimator, folder, rejected=not verdict.passed), verdict


def judge(gate: Gate, before: Model | SolvedModel | None, after: Model | SolvedModel) -> Verdict:
    """Measure both models on held-back samples and decide."""
    if not gate.asked:
        return Verdict(True, "No gate was asked for.")
    held = explain.held_guesses(after)
    accuracy, count = _share(*held)
    if accuracy is None or count < FEWEST:
        told = f"It cannot be judged: there are {count} held-back samples, and {FEWEST} are needed."
        return Verdict(before is None and gate.better_than is None, f"{told} {REMEDY}", accuracy)
    if gate.better_than is not None and accuracy < gate.better_than:
        return Verdict(
            False, f"It is {accuracy:.1%} right on {count} held-back samples; {gate.better_than:.1%} was asked for.",
            accuracy,
        )
    if gate.no_worse_by is None or before is None or not before.labels.slots:
        return Verdict(True, f"It is {accuracy:.1%} right on {count} held-back samples.", accuracy)
    then, seen = held_accuracy(before)
    slots = after.labels.slots
    known = [at for at, label in enumerate(after.labels.classes().tolist())
             if before.labels.slots.get(label) == slots[label]]
    mine = np.isin(held[0], known)
    now, again = _share(held[0][mine], held[1][mine])
    if then is None or now is None or min(seen, again) < FEWEST:
        told = f"It cannot be judged: {min(seen, again)} held-back samples of the old classes, and {FEWEST} are needed."
        return Verdict(False, f"{told} {REMEDY}", accuracy, then, now)
    told = f"On the classes known before it is {now:.1%} right, the old model {then:.1%}"
    if then - now > gate.no_worse_by + 1e-9:
        return Verdict(False, f"{told}; a loss of {gate.no_worse_by:.1%} was allowed.", accuracy, then, now)
    return Verdict(True, f"{told}.", accuracy, then, now)


def held_accuracy(model: Model | SolvedModel) -> tuple[float | None, int]:
    """Return the share of held-back samples that are right, and how many there are."""
    return _share(*explain.held_guesses(model))


def _share(truth: np.ndarray, guess: np.ndarray) -> tuple[float | None, int]:
    """Return the share of guesses that are right, and how many there are."""
    return (float(np.mean(truth == guess)) if len(truth) else None), len(truth)
