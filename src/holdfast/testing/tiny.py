"""Whole runs that take milliseconds: a small separable stream, a trainer on it, and all that the run leaves behind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..learning.streams import Samples, Stream, Task
from ..learning.training import Trainer, Watcher
from ..runs import build
from ..runs.benchmarks import Benchmark
from ..runs.config import Config

TINY = Benchmark("tiny", "digits", "split", 3, 2, "lenet", epochs=2, options={"memory": 12})
SIZES: dict[str, Any] = {"slots": 10, "batch": 8}  # more slots than classes


def make_tiny_stream(
    classes: int = 6, classes_per_task: int = 2, per_class: int = 6, tests: int = 4, size: int = 8, seed: int = 0
) -> Stream:
    """Return a stream in which each class is one random image plus a little noise, so that anything separates them."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randint(40, 216, (classes, 1, size, size), generator=generator)

    def samples(count: int) -> tuple[Tensor, Tensor]:
        slots = torch.arange(classes).repeat(count)
        noise = torch.randint(-20, 21, (len(slots), 1, size, size), generator=generator)
        return (centres[slots] + noise).to(torch.uint8), slots

    (train_images, train_slots), (test_images, test_slots) = samples(per_class), samples(tests)
    tasks = []
    for index, slots in enumerate(torch.arange(classes).split(classes_per_task)):
        train = torch.isin(train_slots, slots).nonzero().squeeze(1)
        test = torch.isin(test_slots, slots).nonzero().squeeze(1)
        tasks.append(
            Task(
                index,
                tuple(slots.tolist()),
                Samples(train_images, train, train_slots[train]),
                Samples(test_images, test, test_slots[test]),
            )
        )
    return Stream("tiny", tuple(tasks), tuple(f"class {c}" for c in range(classes)), (0.5,), (0.2,))


def make_tiny_config(**changes: Any) -> Config:
    """Return a config for `make_tiny_trainer`; the benchmark need not be registered."""
    config = Config("tiny", **{**SIZES, **changes})
    config.__dict__["protocol"] = TINY
    return config.resolved()


def make_tiny_trainer(stream: Stream | None = None, watcher: Watcher | None = None, **changes: Any) -> Trainer:
    """Return a whole run on a tiny stream, ready to start."""
    config = make_tiny_config(**changes)
    return build.make_trainer(config, stream or make_tiny_stream(), torch.device("cpu"), watcher)


def bits(trainer: Trainer) -> dict[str, Any]:
    """Return everything a run leaves behind, except for the time it took."""
    tensors, plain = trainer.state()
    records = [{k: v for k, v in record.items() if k != "seconds"} for record in plain["records"]]
    return {**{k: v.clone() for k, v in tensors.items()}, **plain, "records": records, "seconds": None}


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names of the entries that are missing in one of them or differ in any bit."""
    return [name for name in sorted({*one, *other})
            if name not in one or name not in other or not _same(one[name], other[name])]


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    if one.is_floating_point():  # a NaN marks a slot without a logit
        return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(0), other.nan_to_num(0))
    return torch.equal(one, other)
