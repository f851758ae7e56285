"""Explain a model: which classes it confuses, which have too few samples, which samples are doubtful.

What the model says of itself comes from its held samples: replay never trains on them, and solved leaves each out of
the sums when it is judged. Doubtful samples are found among samples that the caller gives, because a model keeps no
names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .labels import Label

if TYPE_CHECKING:
    from .model import Model
    from .solved import SolvedModel

FEW = 5  # samples below which a class is named
CERTAIN = 0.001  # probability below which a class is out of the question
UNLIKELY = 0.05  # probability of a sample's own label below which the label is suspicious


@dataclass(frozen=True)
class Confusion:
    """How often samples of two classes are taken for each other."""

    first: Label
    second: Label
    times: int
    samples: int  # of both classes


@dataclass(frozen=True)
class Doubt:
    """A sample whose class is uncertain."""

    row: int
    label: Label
    rival: Label  # the most likely other class
    probability: float  # of the label
    rival_probability: float


def held_guesses(model: Model | SolvedModel) -> tuple[np.ndarray, np.ndarray]:
    """Return truth and guess of the held samples, as indices of the classes in order; none with fewer than two."""
    if len(model.labels.slots) < 2:
        return np.zeros(0, dtype=int), np.zeros(0, dtype=int)
    slots, chances = model.held_answers()
    column = {slot: at for at, slot in enumerate(model.labels.slots_of_classes())}
    return np.array([column[slot] for slot in slots.tolist()], dtype=int), chances.argmax(1).numpy()


def confusions(
    classes: Sequence[Label], truth: np.ndarray, guess: np.ndarray, *, ordered: bool = False
) -> list[Confusion]:
    """Return the pairs of classes that are confused, most often first; `truth` and `guess` index `classes`.

    `ordered` counts each direction by itself: samples of the first class that are taken for the second."""
    wrong = Counter(
        pair if ordered else (min(pair), max(pair)) for pair in zip(truth.tolist(), guess.tolist())
        if pair[0] != pair[1]
    )
    counts = Counter(truth.tolist())
    return [
        Confusion(classes[a], classes[b], times, counts[a] + counts[b])
        for (a, b), times in sorted(wrong.items(), key=lambda item: (-item[1], item[0]))
    ]


def border(classes: Sequence[Label], chances: np.ndarray, truth: np.ndarray, most: int) -> list[Doubt]:
    """Return the samples whose label and best rival are most nearly equally likely; none that are certain."""
    found = [_doubt(classes, chances, truth, row) for row in range(len(truth))]
    open_ = [each for each in found if min(each.probability, each.rival_probability) >= CERTAIN]
    return sorted(open_, key=lambda each: (abs(math.log(each.probability / each.rival_probability)), each.row))[:most]


def suspicious(classes: Sequence[Label], chances: np.ndarray, truth: np.ndarray, most: int) -> list[Doubt]:
    """Return the samples whose own label is very unlikely, the least likely first."""
    unlikely = np.flatnonzero(chances[range(len(truth)), truth] < UNLIKELY)
    found = [_doubt(classes, chances, truth, row) for row in unlikely.tolist()]
    return sorted(found, key=lambda each: (each.probability, each.row))[:most]


def _doubt(classes: Sequence[Label], chances: np.ndarray, truth: np.ndarray, row: int) -> Doubt:
    others = chances[row].copy()
    others[truth[row]] = -1.0
    rival = int(others.argmax())
    return Doubt(row, classes[truth[row]], classes[rival], float(chances[row, truth[row]]), float(others[rival]))
