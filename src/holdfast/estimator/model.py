"""The trained model of an IncrementalClassifier: learner, method, memory, labels and held-back samples."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import backbones, heads, randomness
from ..errors import BadConfig, BadInput, LossNotFinite
from ..heads.fixed import FixedHead
from ..heads.trainable import TrainableHead
from ..learning.learner import Learner
from ..learning.memory import Memory
from ..learning.method import Method
from ..learning.optimizers import make_optimizer
from ..learning.streams import Samples, Stream, Task
from ..learning.training import Trainer, Watcher
from ..methods.replay import Replay
from ..quantities import byte_size
from . import stability
from .labels import Labels, without
from .progress import Progress
from .settings import MOST_BYTES, PER_CLASS, USUAL_MEMORY, Settings, rows_held
from .stability import Stability

PART = 500  # samples per forward pass at prediction
UPDATES = 150  # target for automatic epochs, so that a small batch gets enough updates
MOST_STORED = 1 << 26  # limit on the size of the vectors stored with the memory, in numbers; above it none are stored
FEWEST_EPOCHS, MOST_EPOCHS = 5, 100


@dataclass
class Model:
    """Everything that `partial_fit` changes. It works on a copy, so that an error leaves the model unchanged."""

    settings: Settings
    learner: Learner
    method: Method
    generator: torch.Generator
    labels: Labels
    held: Memory  # samples never trained on, to measure stability and calibrate novelty
    taught: int = 0  # batches so far
    embedder: str | None = None  # the fingerprint of the embedder that made its vectors, if one did
    given: dict[str, Any] = field(default_factory=dict)  # the estimator's parameters at the first batch
    history: list[dict[str, Any]] = field(default_factory=list)  # one record per batch

    @property
    def device(self) -> torch.device:
        return self.learner.shift.device

    @property
    def shape(self) -> tuple[int, ...]:
        return self.learner.shape

    @property
    def memory(self) -> Memory:
        assert self.method.memory is not None
        return self.method.memory

    def copy(self) -> Model:
        return copy.deepcopy(self)

    def teach(
        self, data: Tensor, labels: list[Any], watcher: Watcher | None = None, progress: Progress | None = None
    ) -> None:
        """Learn a batch of any classes as one task: hold back a part, train on the rest, update the memory."""
        began = time.perf_counter()
        slots = torch.tensor(self.labels.take(labels))
        self._grow()
        self._check_room()
        held, train = self._hold_back(slots)
        every = Samples(data, torch.arange(len(data)), slots).to(self.device)
        brings = tuple(slots.unique().tolist())
        if len(held):
            self.held.remember(Task(self.taught, brings, every.only(held), every.only(held[:0])), self._draws("held"))
        known = Samples(self.held.images, torch.arange(len(self.held)), self.held.slots[: len(self.held)])
        task = Task(self.taught, brings, every.only(train), known.to(self.device))
        trainer = self.trainer((task,), len(train), watcher)
        if progress is not None:
            progress.attach(trainer, self.settings, data, labels)
        try:
            trainer.run()
        except LossNotFinite as error:
            what = str(error).partition(" The last good")[0]
            raise LossNotFinite(f"{what} The model is as it was before; try a lower lr.") from error
        rows = self.held.of_task(self.taught)
        self.held.note("stored", rows, self.embed(self.held.images[rows]))
        if self.memory.capacity * self.learner.head.dim <= MOST_STORED:
            rows = self.memory.of_task(self.taught)
            self.memory.note("stored", rows, F.normalize(self.embed(self.memory.images[rows]), dim=1).half())
        self.taught += 1
        accuracy = self._held_accuracy()
        self.history.append({
            "classes": sorted({*labels}), "samples": len(data), "epochs": trainer.epochs,
            "seconds": round(time.perf_counter() - began, 3), "held_back": len(self.held),
            "accuracy": accuracy,
        })

    def held_answers(self) -> tuple[Tensor, Tensor]:
        """Return slots and class probabilities of the held-back samples, which are never trained on."""
        held = self.held.images[: len(self.held)]
        return self.held.slots[: len(self.held)].cpu(), self.chances(self.embed(held)).cpu()

    def _held_accuracy(self) -> float | None:
        """Return the percentage of held-back samples that are right among the known classes, as `predict` counts."""
        if not len(self.held):
            return None
        found = self.logits(self.embed(self.held.images[: len(self.held)])).argmax(1)
        slots = torch.tensor(self.labels.slots_of_classes(), device=self.device)
        return 100 * float((slots[found] == self.held.slots[: len(self.held)]).double().mean())

    def retune(self, *, lr: float, epochs: int | None, batch: int) -> None:
        """Change these settings from the next batch on."""
        self.settings = replace(self.settings, lr=lr, epochs=epochs, batch=batch)
        self.method.batch = batch
        for group in self.method.optimizer.param_groups:
            group["lr"] = lr

    def trainer(self, tasks: tuple[Task, ...] = (), size: int = 0, watcher: Watcher | None = None) -> Trainer:
        """Return a trainer over these tasks; without tasks it serves to save and load."""
        epochs = self.settings.epochs or automatic_epochs(size, self.settings.batch, first=not len(self.memory))
        names = tuple(str(slot) for slot in range(self.labels.used))
        return Trainer(
            self.learner, self.method, Stream("own data", tasks, names, (), ()), epochs=epochs,
            generator=self.generator, watcher=watcher,
        )

    def stability(self, before: Model | None) -> Stability:
        """Measure how far this batch moved the vectors."""
        return stability.measure(before, self)

    def stability_without(self, last: Stability) -> Stability:
        """Measure the last batch's stability again, after a class was forgotten."""
        return stability.measure_again(last, self)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything learned, as tensors and JSON."""
        tensors, position = self.trainer().state()
        tensors |= {f"held.{k}": v for k, v in self.held.state().items()}
        return tensors, position

    def load(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        held = {k.removeprefix("held."): v for k, v in tensors.items() if k.startswith("held.")}
        self._grow()
        self.held.load(held)
        self.trainer().load(tensors, plain)

    def kept(self) -> dict[int, tuple[int, int]]:
        """Return (samples in memory, samples held back) per slot."""
        found = [torch.bincount(m.slots[: len(m)], minlength=self.labels.capacity) for m in (self.memory, self.held)]
        return {slot: (int(found[0][slot]), int(found[1][slot])) for slot in self.labels.slots.values()}

    def describe(self) -> str:
        """Return one sentence about what the model stores and its network."""
        chosen = self.settings.backbone
        network = chosen if isinstance(chosen, str) else type(chosen).__name__
        parameters = sum(p.numel() for p in self.learner.parameters())
        return (
            f"{len(self.memory)} of {self.memory.capacity} samples remembered, {len(self.held)} held back "
            f"({byte_size(self.memory.bytes + self.held.bytes)}); {network} for {' x '.join(map(str, self.shape))} "
            f"inputs, {parameters:,} parameters; learned in {self.taught} batch{'es' * (self.taught != 1)}."
        )

    def forget(self, label: Any) -> None:
        """Free the label's slot and delete its samples from memory."""
        slot, head = self.labels.give_back(label), self.learner.head
        self.history = without(self.history, label)
        head.close(slot)
        for memory in (self.memory, self.held):
            memory.forget(slot)
        if "logits" in self.memory.notes:
            self.memory.notes["logits"][:, slot] = torch.nan  # exclude the slot from distillation
        if isinstance(head, TrainableHead):
            with torch.no_grad():
                head.rows.weight[slot] = 0.0
                head.rows.bias[slot] = 0.0

    @torch.no_grad()
    def embed(self, data: Tensor) -> Tensor:
        """Return the vectors (n, head.dim) of samples (n, ...), on the model's device."""
        parts = [self.learner.embed_frozen(part.to(self.device)) for part in data.split(PART)]
        return torch.cat(parts) if parts else torch.zeros(0, self.learner.head.dim, device=self.device)

    @torch.no_grad()
    def logits(self, embedded: Tensor) -> Tensor:
        """Return the logits (n, classes) of the known classes, in the order of `labels.classes`."""
        slots = torch.tensor(self.labels.slots_of_classes(), device=self.device)
        return self.learner.head.outputs(embedded, slots)

    def chances(self, embedded: Tensor) -> Tensor:
        """Return the probabilities (n, classes) of the known classes."""
        return self.logits(embedded).double().softmax(1)

    @torch.no_grad()
    def novelty(self, embedded: Tensor) -> Tensor:
        """Return a score (n,) in 0..1; larger means less like any known class.

        It is the softmax probability of the empty slots, which were negatives for every sample so far. A head
        without empty slots uses one minus its largest probability.
        """
        head, exact = self.learner.head, embedded.double()
        known = self.logits(exact) if isinstance(head, FixedHead) else self.logits(embedded).double()
        if head.softmax_over == "seen" or not self.labels.free:
            return 1 - known.softmax(1).amax(1)
        every = head.polytope.logsumexp(exact) if isinstance(head, FixedHead) else head.outputs(embedded).logsumexp(1)
        return (-torch.expm1(known.logsumexp(1) - every)).clamp(0, 1)

    def threshold(self, reject: float) -> float:
        """Return the novelty that a share `reject` of the held-back samples of known classes exceeds."""
        if not 0 < reject < 1:
            raise BadConfig(f"reject is {reject}; it is the share of known samples that may be rejected, such as 0.05.")
        if len(self.held) * reject < 1:
            raise BadInput(
                f"{len(self.held)} held-back samples are too few to calibrate reject={reject}: at least "
                f"{math.ceil(1 / reject)} are needed. Teach more samples, or start anew with more memory or held_back."
            )
        scores = self.novelty(self.embed(self.held.images[: len(self.held)]))
        return float(scores.quantile(1 - reject))

    def _hold_back(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Split the rows into (held back, to train on): a share of each class, limited by the held-back memory."""
        quota = self.held.capacity // max(1, len(self.labels.slots))
        draws, held = self._draws("hold back"), torch.zeros(len(slots), dtype=torch.bool)
        for slot in slots.unique().tolist():
            members = (slots == slot).nonzero().squeeze(1)
            count = min(quota, int(self.settings.held_back * len(members)))
            held[members[torch.randperm(len(members), generator=draws)[:count]]] = True
        return held.nonzero().squeeze(1), held.logical_not().nonzero().squeeze(1)

    def _draws(self, purpose: str) -> torch.Generator:
        """Return a generator separate from training's, so that holding back does not change training's draws."""
        return randomness.generator(self.settings.seed, f"{purpose}/{self.taught}", self.held.images.device)

    def _grow(self) -> None:
        """Make room for PER_CLASS samples of each class so far, if the memory may grow."""
        if not self.settings.grows:
            return
        images = self.memory.images
        most = MOST_BYTES // (math.prod(images.shape[1:]) * images.element_size())
        total = max(USUAL_MEMORY, min(most, PER_CLASS * self.labels.used))
        self.held.capacity = rows_held(total, self.settings.held_back)
        self.memory.capacity = total - self.held.capacity

    def room_per_class(self) -> int:
        """Return how many samples of each class the memory can keep, those that are held back among them."""
        return (self.memory.capacity + self.held.capacity) // max(1, len(self.labels.slots))

    def _check_room(self) -> None:
        classes, room = len(self.labels.slots), self.memory.capacity
        if 0 < room < classes:
            raise BadInput(
                f"A memory of {room} training samples cannot hold {classes} classes: start a model with more memory, "
                f"or with none (memory=0), or forget some labels."
            )


def updates(size: int, batch: int, *, first: bool) -> int:
    """Return the updates per pass over `size` new samples; after the first batch half of each update is memory."""
    return max(1, -(-size // (batch if first else batch - batch // 2)))


def automatic_epochs(size: int, batch: int, *, first: bool) -> int:
    """Return the passes over `size` new samples that make about UPDATES updates."""
    return min(max(-(-UPDATES // updates(size, batch, first=first)), FEWEST_EPOCHS), MOST_EPOCHS)


def assemble(
    settings: Settings, shape: tuple[int, ...], mean: list[float], std: list[float], *, device: torch.device
) -> Model:
    """Build an untaught model, initialised exactly as a run is."""
    with randomness.initialising(settings.seed, "weights"):
        network = backbones.build(copy.deepcopy(settings.backbone), shape)
        width = int(network.out_features)  # type: ignore[arg-type]
        sphere = {} if settings.vertex_probability is None else {"vertex_probability": settings.vertex_probability}
        head = heads.build(settings.head, width, settings.slots, **sphere)
    learner = Learner(network, head, shape, mean, std)
    learner.use(device, torch.channels_last if len(shape) == 3 else torch.contiguous_format)
    generator = randomness.generator(settings.seed, "training", device)
    optimizer = make_optimizer(settings.optimizer, settings.lr, learner)
    method = Replay(learner, optimizer, settings.replay, generator, batch=settings.batch, augment=settings.augment)
    held = Memory(settings.held_rows, shape, "class", device)
    return Model(settings, learner, method, generator, Labels(settings.slots), held)
