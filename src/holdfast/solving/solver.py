"""Exact class-incremental learning on frozen features: accumulate sums, solve, done."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput
from .calibration import FEWEST, Calibration, left_out_novelty, left_out_scores
from .checks import as_features, as_slots, check_scale
from .gaussian import Novelty
from .held import HeldSamples
from .options import SolverOptions
from .random_features import RandomFeatures, choose_map, widest_in_budget
from .ridge import Choice
from .solution import Solution
from .sums import Sums

FORMAT = 1
CHUNK = 4096  # samples expanded at once; bounds the memory of one call


class Solver:
    """Learn classes in any order and any portions; the sums decide the answers.

    No sample is kept except `options.held` random ones, which serve calibration only.
    """

    def __init__(self, options: SolverOptions | None = None) -> None:
        self.options = options or SolverOptions()
        self.held = HeldSamples(0, 0)
        self.residue: list[int] = []  # slots whose scatter could not be removed by forget
        self._map: RandomFeatures | None = None
        self._sums: Sums | None = None
        self._solution: Solution | None = None  # the rest follows from the sums and is computed when asked for
        self._coefficients: tuple[Tensor, Tensor] | None = None
        self._novelty: Novelty | None = None
        self._calibration: Calibration | None = None

    @property
    def sums(self) -> Sums:
        if self._sums is None:
            raise BadInput("nothing was learned yet; call learn(features, slots) first")
        return self._sums

    @property
    def map(self) -> RandomFeatures:
        if self._map is None:
            raise BadInput("nothing was learned yet; call learn(features, slots) first")
        return self._map

    @property
    def learned(self) -> int:
        """Return how many samples were learned."""
        return self._sums.n if self._sums else 0

    @property
    def slots(self) -> Tensor:
        """Return the learned slots, ascending; columns of scores follow them.  # (classes,)"""
        return torch.tensor(sorted(self._sums.row_of) if self._sums else [], dtype=torch.int64)

    @property
    def choice(self) -> Choice:
        """Return the number of features in use, the penalty and its criterion."""
        return self._solved().choice

    def learn(self, features: Any, slots: Any) -> Solver:
        """Add samples of new or known classes."""
        data = as_features(features, self._map.dim if self._map else None)
        targets = as_slots(slots, len(data))
        if self._map is None and len(data):
            self.begin(data.shape[1])
        if self._sums is not None:
            dim = self.map.dim
            check_scale(data, self.sums.sums[:, :dim], self.sums.counts, self.sums.within[:dim, :dim])
        for start in range(0, len(data), CHUNK):
            self._add(self.map(data[start : start + CHUNK]), targets[start : start + CHUNK])
            self.held.add(data[start : start + CHUNK], targets[start : start + CHUNK])
        return self

    def scores(self, features: Any) -> Tensor:
        """Return the discriminant of each class in `slots`; the largest is the answer.  # (batch, classes)"""
        weights, intercepts = self.coefficients()
        width = weights.shape[1] - self.map.dim
        parts = torch.split(as_features(features, self.map.dim), CHUNK)
        return torch.cat([torch.addmm(intercepts, self.map(part, width), weights.T) for part in parts])

    def predict(self, features: Any) -> Tensor:
        """Return the slot with the largest score.  # (batch,)"""
        return self.slots[self.scores(features).argmax(1)]

    def probabilities(self, features: Any) -> Tensor:
        """Return class probabilities.  # (batch, classes)

        They are overconfident where `calibration().samples` is 0.
        """
        return torch.softmax(self.scores(features) / self.calibration().temperature, 1)

    def novelty(self, features: Any) -> Tensor:
        """Return the relative Mahalanobis distance; larger is stranger.  # (batch,)"""
        parts = torch.split(as_features(features, self.map.dim), CHUNK)
        return torch.cat([self._strangeness()(part) for part in parts])

    def rejects(self, features: Any, reject: float = 0.05) -> Tensor:
        """Return True for samples of none of the classes, at the cost of this share of known ones.  # (batch,)"""
        fitted = self.calibration()
        if fitted.samples == 0:
            raise BadInput(
                f"fewer than {FEWEST} held samples have another sample of their class; learn more samples, raise the "
                f"option held (now {self.options.held}), or call calibrate(features, slots) with samples not learned"
            )
        return self.novelty(features) > fitted.threshold(reject)

    def calibrate(self, features: Any, slots: Any) -> Calibration:
        """Calibrate on samples that were not learned, instead of the held ones. Valid until the solver changes."""
        targets = as_slots(slots, len(features))
        known = torch.isin(targets, self.slots)
        if not bool(known.all()):
            raise BadInput(f"slot {int(targets[~known][0])} was never learned; calibrate on samples of learned classes")
        columns = torch.searchsorted(self.slots, targets)
        self._calibration = Calibration.fit(self.scores(features), columns, self.novelty(features))
        return self._calibration

    def calibration(self) -> Calibration:
        """Return the temperature and the novelty quantiles, fitted to the held samples with each left out."""
        if self._calibration is None:
            rows, raw, scores = self._left_out()
            if len(rows) < FEWEST:
                self._calibration = Calibration.missing()
            else:
                strange = left_out_novelty(self._strangeness(), self.sums, raw, rows)
                self._calibration = Calibration.fit(scores, rows, strange)
        return self._calibration

    def left_out(self) -> tuple[Tensor, Tensor]:
        """Return slots and probabilities of held samples as if each had not been learned.  # (n,), (n, classes)"""
        rows, _, scores = self._left_out()
        order, slots = self.sums.rows(self.slots.tolist()), torch.tensor(self.sums.slots)
        return slots[rows], torch.softmax(scores[:, order] / self.calibration().temperature, 1)

    def _left_out(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return class rows, features and left-out scores of the held samples whose class has another sample."""
        solution, sums = self._solved(), self.sums
        rows = sums.rows(self.held.slots.tolist())
        usable = sums.counts[rows] > 1
        rows, raw = rows[usable], self.held.features[usable]
        expanded = self.map(raw, solution.size - self.map.dim)
        return rows, raw, left_out_scores(solution, sums, self.options.priors, expanded, rows)

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Return weights and intercepts on the expanded features, rows in the order of `slots`."""
        if self._coefficients is None:
            weights, intercepts = self._solved().coefficients(self.sums, self.options.priors)
            order = self.sums.rows(self.slots.tolist())
            self._coefficients = weights[order], intercepts[order]
        return self._coefficients

    def settle(self) -> Solver:
        """Choose map and penalty anew. Small batches keep the last choice until the samples grew by a tenth."""
        self._clear()
        self._solved()
        return self

    def forget(self, slot: int, features: Any = None) -> bool:
        """Remove a class. Return True if the result equals never having seen it.

        Exact with the option keep_scatter or with all samples of the class given again. Otherwise the class leaves
        the answers, but the covariance still contains its scatter; `residue` then lists the slot.
        """
        given = None if features is None else self.map(as_features(features, self.map.dim))
        exact = self.sums.forget(int(slot), given)
        self.held.forget(int(slot))
        if not exact:
            self.residue.append(int(slot))
        self._clear()
        return exact

    def relabelled(self, new: dict[int, int]) -> Solver:
        """Return a copy whose slots have these new numbers."""
        made = copy.deepcopy(self)
        if made._sums is not None:
            made._sums.relabel(new)
        made.held.slots = torch.tensor([new[slot] for slot in made.held.slots.tolist()], dtype=torch.int64)
        made.residue = [new.get(slot, slot) for slot in made.residue]
        made._clear()
        return made

    def merge(self, other: Solver) -> Solver:
        """Add what another solver learned, exactly as if this one had learned it."""
        if other._sums is None:
            return self
        if other.options != self.options:
            raise BadInput(
                f"options differ: {other.options} and {self.options}; teach both solvers with the same options"
            )
        if self._map is None:
            self.begin(other.map.dim)
        if other.map.dim != self.map.dim:
            raise BadInput(f"cannot merge {other.map.dim} features into {self.map.dim}; use the same embedder for both")
        self.sums.merge(other.sums)
        self.held.merge(other.held)
        self.residue += other.residue
        self._clear()
        return self

    def state(self, single: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors for safetensors and plain values for JSON; `single` stores float32."""
        tensors, plain = self.sums.state(single)
        held = self.held
        tensors.update(
            held=held.features.to(tensors["sums"].dtype), held_slots=held.slots, held_keys=held.keys_and_bound()
        )
        plain.update(format=FORMAT, features=self.map.dim, options=asdict(self.options), residue=list(self.residue))
        return tensors, plain

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], plain: dict[str, Any]) -> Solver:
        """Rebuild a solver from `state()`."""
        if plain.get("format") != FORMAT:
            raise BadInput(f"the stored format is {plain.get('format')!r}, this version reads {FORMAT}; upgrade")
        self = cls(SolverOptions(**plain["options"]))
        self.begin(int(plain["features"]))
        self._sums = Sums.from_state(tensors, plain)
        self.held.restore(tensors["held"].to(torch.float64), tensors["held_slots"], tensors["held_keys"])
        self.residue = [int(slot) for slot in plain["residue"]]
        if self._sums.dim != self.map.size:
            raise BadInput(
                f"the stored sums have {self._sums.dim} features, the options give {self.map.size}; damaged file"
            )
        return self

    def begin(self, dim: int) -> None:
        """Prepare for features of this dimension; `learn` does it by itself."""
        o = self.options
        width = widest_in_budget(dim, o.memory_mb, o.seconds) if o.width is None else o.width
        self._map = RandomFeatures(dim, width, o.seed)
        self._sums = Sums(self._map.size, o.keep_scatter)
        self.held = HeldSamples(dim, o.held)

    def _add(self, rows: Tensor, targets: Tensor) -> None:
        sums, solution = self.sums, self._solution
        if solution is None or not solution.can_grow(sums, len(rows)):
            sums.add(rows, targets)
            self._clear()
            return
        growth = total_rows(sums, rows) if solution.rule == "ridge" else None
        within = sums.add(rows, targets)
        solution.grow(sums, within if growth is None else growth, sums.rows(sorted(set(targets.tolist()))))
        self._clear(solution)

    def _clear(self, solution: Solution | None = None) -> None:
        self._solution = solution
        self._coefficients = None
        self._novelty = None
        self._calibration = None

    def _solved(self) -> Solution:
        if self._solution is None:
            sums, o = self.sums, self.options
            if sums.n_classes < 2:
                raise BadInput(f"only {sums.n_classes} class was learned; learn at least two before asking for scores")
            choice = choose_map(sums, self.map.dim, self.map.width, o.width is None, self.held.distinct())
            if o.penalty is not None:
                choice = replace(choice, penalty=o.penalty)
            self._solution = Solution(sums, choice, o.rule)
        return self._solution

    def _strangeness(self) -> Novelty:
        if self._novelty is None:
            self._novelty = Novelty(self.sums, self.map.dim, self.options.shrinkage)
        return self._novelty


def total_rows(sums: Sums, rows: Tensor) -> Tensor:
    """Return the root of the growth of the total scatter when `rows` join.  # (batch + 1, size)"""
    mean, n, count = rows.mean(0), sums.n, len(rows)
    return torch.cat([rows - mean, ((mean - sums.mean()) * (n * count / (n + count)) ** 0.5)[None]])
