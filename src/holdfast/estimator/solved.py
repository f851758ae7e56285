"""The model of an IncrementalClassifier with the method `solved`: sums over frozen features, and labels."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import backbones, randomness
from ..backbones.patches import PatchFeatures
from ..errors import BadConfig, BadInput
from ..learning.learner import Normalised
from ..learning.training import Watcher
from ..quantities import byte_size
from ..solving import Solver, SolverOptions
from .labels import Labels, without
from .progress import Progress
from .settings import Settings
from .stability import ClassStability, Stability, nearest_is_right

PART = 500  # samples per pass through the backbone
MOST_IMAGES = 2000  # images from which patch features are taken
PER_CLASS = 10  # minimum of held samples per class to measure the recall of a search


class Frozen(Normalised):
    """Maps inputs to frozen features: vectors unchanged, images through a backbone in evaluation mode."""

    def __init__(self, backbone: nn.Module | None, shape: tuple[int, ...], mean: list[float], std: list[float]) -> None:
        super().__init__(shape, mean, std)
        self.backbone = backbone

    def forward(self, data: Tensor) -> Tensor:
        if self.backbone is None:
            return data.float()
        return self.backbone(self.normalise(data))


@dataclass
class SolvedModel:
    """Everything that `partial_fit` changes. It works on a copy, so that an error leaves the model unchanged."""

    settings: Settings
    frozen: Frozen
    solver: Solver
    labels: Labels
    device: torch.device
    taught: int = 0  # batches so far
    embedder: str | None = None  # the fingerprint of the embedder that made its vectors, if one did
    given: dict[str, Any] = field(default_factory=dict)  # the estimator's parameters at the first batch
    history: list[dict[str, Any]] = field(default_factory=list)  # one record per batch
    counts: dict[int, int] = field(default_factory=dict)  # samples learned per slot

    @property
    def shape(self) -> tuple[int, ...]:
        return self.frozen.shape

    def begin(self, data: Tensor) -> None:
        """Take the filters of patch features from the first batch."""
        if isinstance(self.frozen.backbone, PatchFeatures):
            generator = randomness.generator(self.settings.seed, "patches", torch.device("cpu"))
            some = data[torch.randperm(len(data), generator=generator)[:MOST_IMAGES]]
            self.frozen.backbone.fit(self.frozen.normalise(some.to(self.device)), generator)

    def copy(self) -> SolvedModel:
        """Copy what learning changes; the frozen backbone is shared."""
        return copy.deepcopy(self, {id(self.frozen): self.frozen})

    def teach(
        self, data: Tensor, labels: list[Any], watcher: Watcher | None = None, progress: Progress | None = None
    ) -> None:
        """Add a batch of any classes to the sums. It is one step, so there is no progress to keep."""
        began = time.perf_counter()
        slots = torch.tensor(self.labels.take(labels))
        self.solver.learn(self.embed(data).cpu(), slots)
        for slot, count in zip(*(part.tolist() for part in slots.unique(return_counts=True))):
            self.counts[slot] = self.counts.get(slot, 0) + count
        self.taught += 1
        self.history.append({
            "classes": sorted({*labels}), "samples": len(data), "epochs": 1, "held_back": len(self.solver.held.slots),
            "seconds": round(time.perf_counter() - began, 3), "accuracy": None,
        })

    def retune(self, **changes: Any) -> None:
        """Do nothing: a closed-form solution has no learning rate, epochs or batch size."""

    def merge(self, other: SolvedModel) -> None:
        """Add what another model learned, exactly as if this one had learned it."""
        for name, value in self.frozen.state_dict().items():
            if not torch.equal(value, other.frozen.state_dict()[name]):
                raise BadConfig(
                    "The models have different features, which cannot be merged: patch features come from a model's "
                    "first batch. Start both with the same embedder, or with the same module as backbone."
                )
        names = list(other.labels.slots)
        slots = dict(zip(other.labels.slots.values(), self.labels.take(names)))
        self.solver.merge(other.solver.relabelled(slots))
        for slot, count in other.counts.items():
            self.counts[slots[slot]] = self.counts.get(slots[slot], 0) + count
        self.taught += other.taught
        self.history += other.history

    def forget(self, label: Any, features: Tensor | None = None) -> None:
        """Remove a class from the sums; exact if the scatter of each class is kept, or with all its features given."""
        slot = self.labels.give_back(label)
        self.solver.forget(slot, None if features is None else features.cpu())
        self.counts.pop(slot, None)
        self.history = without(self.history, label)

    @torch.no_grad()
    def embed(self, data: Tensor) -> Tensor:
        """Return the frozen features, (n, dim)."""
        parts = [self.frozen(part.to(self.device)) for part in data.split(PART)]
        return torch.cat(parts) if parts else torch.zeros(0, self.solver.map.dim)

    def logits(self, embedded: Tensor) -> Tensor:
        """Return the scores of the known classes, (n, classes), in the order of `labels.classes`."""
        slots = self.labels.slots_of_classes()
        if len(slots) == 1:
            return torch.zeros(len(embedded), 1, dtype=torch.float64)
        return self.solver.scores(embedded.cpu())[:, self._columns(slots)]

    def chances(self, embedded: Tensor) -> Tensor:
        """Return calibrated probabilities of the known classes, (n, classes)."""
        slots = self.labels.slots_of_classes()
        if len(slots) == 1:
            return torch.ones(len(embedded), 1, dtype=torch.float64)
        return self.solver.probabilities(embedded.cpu())[:, self._columns(slots)]

    def _columns(self, slots: list[int]) -> Tensor:
        return torch.searchsorted(self.solver.slots, torch.tensor(slots))

    def novelty(self, embedded: Tensor) -> Tensor:
        """Return the relative Mahalanobis distance, (n,): larger is stranger."""
        return self.solver.novelty(embedded.cpu())

    def threshold(self, reject: float) -> float:
        """Return the novelty that a share `reject` of the samples of known classes exceeds."""
        fitted = self.solver.calibration()
        limit = fitted.threshold(reject)  # raises if `reject` is not between 0 and 1
        if fitted.samples == 0:
            raise BadInput(
                f"There are too few samples to calibrate reject={reject}: teach more samples per class, or start a new "
                f"model with a larger memory."
            )
        return limit

    def stability(self, before: Any = None) -> Stability:
        """Report that an index of the frozen features stays valid, with the recall of a search in the held samples."""
        held = self.solver.held
        vectors = nn.functional.normalize(held.features.float(), dim=1)
        # With fewer held samples per class, a search looks worse than it is.
        enough = len(vectors) >= PER_CLASS * max(1, len(self.labels.slots))
        hits = nearest_is_right(vectors, vectors, held.slots, held.slots) if enough else torch.zeros(0)
        of_slot, rows = self.labels.of_slot(), []
        for slot in sorted(of_slot):
            mine = held.slots == slot
            recall = float(hits[mine].double().mean()) if len(hits) and bool(mine.any()) else None
            rows.append(ClassStability(of_slot[slot], int(mine.sum()), 0.0, 0.0, recall, recall))
        recall = float(hits.double().mean()) if len(hits) else None
        return Stability(tuple(rows), recall, recall, recall, frozen=True)


    def stability_without(self, last: Stability) -> Stability:
        return self.stability()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything learned, as tensors and JSON."""
        tensors, plain = self.solver.state()
        tensors = {f"solver.{k}": v for k, v in tensors.items()}
        if self.frozen.backbone is not None:
            tensors |= {f"learner.backbone.{k}": v for k, v in self.frozen.backbone.state_dict().items()}
        return tensors, {"solver": plain, "counts": [[slot, count] for slot, count in self.counts.items()]}

    def load(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        sums = {k.removeprefix("solver."): v for k, v in tensors.items() if k.startswith("solver.")}
        self.solver = Solver.from_state(sums, plain["solver"])
        self.counts = {slot: count for slot, count in plain["counts"]}
        if self.frozen.backbone is not None:
            prefix = "learner.backbone."
            weights = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            self.frozen.backbone.load_state_dict(weights)

    def held_answers(self) -> tuple[Tensor, Tensor]:
        """Return slots and class probabilities of the held samples, each judged as if it had not been learned."""
        slots, chances = self.solver.left_out()
        return slots, chances[:, self._columns(self.labels.slots_of_classes())]

    def kept(self) -> dict[int, tuple[int, int]]:
        """Return (samples learned, samples held for calibration) per slot."""
        held = self.solver.held.slots
        return {slot: (count, int((held == slot).sum())) for slot, count in self.counts.items()}

    def describe(self) -> str:
        """Return one sentence about what the model stores."""
        bytes_kept = sum(value.numel() * value.element_size() for value in self.solver.state()[0].values())
        width = self.solver.choice.size - self.solver.map.dim if len(self.labels.slots) > 1 else 0
        return (
            f"Solved from sums over {sum(self.counts.values()):,} samples ({byte_size(bytes_kept)}), "
            f"{self.solver.map.dim} features and {width} random ones; {len(self.solver.held.slots)} samples held for "
            f"calibration; learned in {self.taught} batch{'es' * (self.taught != 1)}."
        )


def assemble(
    settings: Settings, shape: tuple[int, ...], mean: list[float], std: list[float], *, device: torch.device
) -> SolvedModel:
    """Build an untaught model."""
    backbone: nn.Module | None = None
    if isinstance(settings.backbone, nn.Module):
        backbone = backbones.build(copy.deepcopy(settings.backbone), shape)
    elif len(shape) == 3:
        backbone = PatchFeatures(shape)
    frozen = Frozen(backbone, shape, mean, std).to(device).eval().requires_grad_(False)
    options = SolverOptions(**vars(settings.solved), seed=settings.seed)
    return SolvedModel(settings, frozen, Solver(options), Labels(settings.slots), device)
