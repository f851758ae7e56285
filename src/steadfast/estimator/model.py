"""What an IncrementalClassifier has learned: a learner, its method and memory, labels, held-back samples."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import backbones, experiment, heads, randomness
from ..config import Config
from ..errors import BadConfig, BadInput, LossNotFinite
from ..heads import FixedHead
from ..learner import Learner
from ..memory import Memory
from ..methods import Method
from ..streams import Samples, Stream, Task
from ..training import Trainer, Watcher
from .labels import Labels

PART = 500  # samples a forward pass when nothing is learned
UPDATES = 150  # that automatic epochs come to, so that a small batch is learned as well
MOST_STORED = 1 << 26  # numbers that the vectors stored with the memory may come to; beyond, they are not kept
FEWEST_EPOCHS, MOST_EPOCHS = 5, 100


@dataclass
class Model:
    """Everything that `partial_fit` changes. It is changed on a copy, so that an error leaves no trace."""

    config: Config  # as for a run, every field given
    learner: Learner
    method: Method
    generator: torch.Generator
    labels: Labels
    held: Memory  # never trained on: what stability and novelty are measured with
    share: float  # of a class's new samples that may be held back
    epochs: int | None = None  # a batch; None for as many as make UPDATES
    taught: int = 0  # batches so far
    given: dict[str, Any] = field(default_factory=dict)  # the estimator's parameters that it was begun with
    history: list[dict[str, Any]] = field(default_factory=list)  # one record a batch

    @property
    def device(self) -> torch.device:
        return self.learner.shift.device

    @property
    def memory(self) -> Memory:
        assert self.method.memory is not None
        return self.method.memory

    def copy(self) -> Model:
        return copy.deepcopy(self)

    def teach(self, data: Tensor, labels: list[Any], watcher: Watcher | None = None) -> None:
        """One batch of any classes is one task: learned, remembered, a part of it held back."""
        began = time.perf_counter()
        slots = torch.tensor(self.labels.take(labels))
        self._check_room()
        held, train = self._hold_back(slots)
        every = Samples(data, torch.arange(len(data)), slots).to(self.device)
        brings = tuple(slots.unique().tolist())
        if len(held):
            self.held.remember(Task(self.taught, brings, every.only(held), every.only(held[:0])), self._draws("held"))
        known = Samples(self.held.images, torch.arange(len(self.held)), self.held.slots[: len(self.held)])
        task = Task(self.taught, brings, every.only(train), known.to(self.device))
        trainer = self.trainer((task,), len(train), watcher)
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
        accuracy = trainer.at.accuracies[-1][0]
        self.history.append({
            "classes": sorted({*labels}), "samples": len(data), "epochs": trainer.epochs,
            "seconds": round(time.perf_counter() - began, 3), "held_back": len(self.held),
            "accuracy": None if math.isnan(accuracy) else accuracy,
        })

    def retune(self, config: Config, epochs: int | None) -> None:
        """From the next batch on with this config, which differs in no more than lr, epochs and batch."""
        self.config = self.method.config = config
        self.epochs = epochs
        for group in self.method.optimizer.param_groups:
            group["lr"] = config.lr

    def trainer(self, tasks: tuple[Task, ...] = (), size: int = 0, watcher: Watcher | None = None) -> Trainer:
        """The loop of a run, over these tasks; without any it is what saves and loads."""
        epochs = self.epochs or automatic_epochs(size, self.config.batch, first=not len(self.memory))
        names = tuple(str(slot) for slot in range(self.labels.used))
        return Trainer(
            self.learner, self.method, Stream("own data", tasks, names, (), ()), epochs=epochs,
            batch=self.config.batch, generator=self.generator, watcher=watcher,
        )

    def forget(self, label: Any) -> None:
        """The label's slot is free again, and nothing of it is remembered."""
        slot, head = self.labels.give_back(label), self.learner.head
        head.close(slot)
        for memory in (self.memory, self.held):
            memory.forget(slot)
        if "logits" in self.memory.notes:
            self.memory.notes["logits"][:, slot] = torch.nan  # no slot of what is distilled any more
        if isinstance(head, heads.TrainableHead):
            with torch.no_grad():
                head.rows.weight[slot] = 0.0
                head.rows.bias[slot] = 0.0

    @torch.no_grad()
    def embed(self, data: Tensor) -> Tensor:
        """(n, ...) to (n, head.dim) on the model's device."""
        parts = [self.learner.embed_frozen(part.to(self.device)) for part in data.split(PART)]
        return torch.cat(parts) if parts else torch.zeros(0, self.learner.head.dim, device=self.device)

    @torch.no_grad()
    def logits(self, embedded: Tensor) -> Tensor:
        """(n, dim) to the logits of the known classes, in the order of `labels.classes`."""
        slots = torch.tensor(self.labels.slots_of_classes(), device=self.device)
        return self.learner.head.outputs(embedded, slots)

    def chances(self, embedded: Tensor) -> Tensor:
        """(n, dim) to the probabilities of the known classes, (n, classes)."""
        return self.logits(embedded).double().softmax(1)

    @torch.no_grad()
    def novelty(self, embedded: Tensor) -> Tensor:
        """(n, dim) to how little each is any of the known classes, (n,) in 0..1.

        The share of the softmax that goes to the empty slots: they have been negatives of every sample so far.
        A head without empty slots has only its largest probability to go by.
        """
        head, exact = self.learner.head, embedded.double()
        known = self.logits(exact) if isinstance(head, FixedHead) else self.logits(embedded).double()
        if head.over == "seen" or not self.labels.free:
            return 1 - known.softmax(1).amax(1)
        every = head.polytope.logsumexp(exact) if isinstance(head, FixedHead) else head.outputs(embedded).logsumexp(1)
        return (-torch.expm1(known.logsumexp(1) - every)).clamp(0, 1)

    def threshold(self, reject: float) -> float:
        """The novelty that all but a share `reject` of the known, held-back samples stay below."""
        if not 0 < reject < 1:
            raise BadConfig(f"reject is {reject}; it is the share of known samples that may be refused, 0.05 say.")
        if len(self.held) * reject < 1:
            raise BadInput(
                f"{len(self.held)} held-back samples are too few to calibrate reject={reject}: at least "
                f"{math.ceil(1 / reject)} are needed. Teach more samples, or begin anew with more memory or held_back."
            )
        scores = self.novelty(self.embed(self.held.images[: len(self.held)]))
        return float(scores.quantile(1 - reject))

    def _hold_back(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (held back), (to train on): of each class a share, up to what the held-back memory has room for."""
        quota = self.held.capacity // max(1, len(self.labels.slots))
        draws, held = self._draws("hold back"), torch.zeros(len(slots), dtype=torch.bool)
        for slot in slots.unique().tolist():
            members = (slots == slot).nonzero().squeeze(1)
            count = min(quota, int(self.share * len(members)))
            held[members[torch.randperm(len(members), generator=draws)[:count]]] = True
        return held.nonzero().squeeze(1), held.logical_not().nonzero().squeeze(1)

    def _draws(self, purpose: str) -> torch.Generator:
        """Apart from the training's, so that what is held back does not change what a run would draw."""
        return randomness.generator(self.config.seed, f"{purpose}/{self.taught}", self.held.images.device)

    def _check_room(self) -> None:
        classes, room = len(self.labels.slots), self.memory.capacity
        if 0 < room < classes:
            raise BadInput(
                f"A memory of {room} training samples cannot hold {classes} classes: start a model with more memory, "
                f"or with none (memory=0), or forget some labels."
            )


def updates(size: int, batch: int, *, first: bool) -> int:
    """In a pass over `size` new samples; but for the first batch, half of each update is remembered ones."""
    return max(1, -(-size // (batch if first else batch - batch // 2)))


def automatic_epochs(size: int, batch: int, *, first: bool) -> int:
    """As many passes over `size` new samples as make UPDATES."""
    return min(max(-(-UPDATES // updates(size, batch, first=first)), FEWEST_EPOCHS), MOST_EPOCHS)


def assemble(
    config: Config, backbone: str | nn.Module, shape: tuple[int, ...], mean: list[float], std: list[float], *,
    held: int, share: float, epochs: int | None, device: torch.device,
) -> Model:
    """A model that knows nothing yet: backbone, head, method and memories, from the config's seed as a run's are."""
    assert config.head and config.slots and config.memory is not None
    with randomness.initialising(config.seed, "weights"):
        network = backbones.build(copy.deepcopy(backbone), shape)
        width = int(network.out_features)  # type: ignore[arg-type]
        head = heads.build(config.head, width, config.slots, over=config.over, embedding=config.embedding)
    learner = Learner(network, head, shape, mean, std)
    learner.use(device, torch.channels_last if len(shape) == 3 else torch.contiguous_format)
    generator = randomness.generator(config.seed, "training", device)
    method = experiment.make_method(config, learner, generator)
    apart = Memory(held, shape, "class", device)
    return Model(config, learner, method, generator, Labels(config.slots), apart, share, epochs)
