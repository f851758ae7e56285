"""What the tests share: one thread, small separable streams, and runs on them that take milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.hardware import Machine
from holdfast.learning.streams import Samples, Stream, Task
from holdfast.learning.training import Trainer, Watcher
from holdfast.methods import METHODS
from holdfast.options import declared
from holdfast.runs import build, experiment
from holdfast.runs.benchmarks import Benchmark, register
from holdfast.runs.config import Config

torch.set_num_threads(1)  # the same bits on every machine, and no fight over cores

MACHINE = ("data", "threads", "compile", "memory_on_disk")
TINY: dict[str, Any] = {"slots": 10, "batch": 8}
register(
    Benchmark("tiny", "digits", "split", 3, 2, "lenet", epochs=2, options={"memory": 12}),
    "six random images under noise, 3 tasks of 2 classes; only in the tests",
)


def make_tiny_stream(
    classes: int = 6, classes_per_task: int = 2, per_class: int = 6, tests: int = 4, size: int = 8, seed: int = 0
) -> Stream:
    """Each class is one random image of its own plus a little noise, so that anything can tell them apart."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randint(40, 216, (classes, 1, size, size), generator=generator)

    def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
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
    """A configuration that `make_tiny_trainer` takes: a tiny stream's sizes, and more slots than it has classes."""
    return Config("tiny", **{**TINY, **changes}).resolved()


def make_tiny_trainer(stream: Stream | None = None, watcher: Watcher | None = None, **changes: Any) -> Trainer:
    """A whole run on a tiny stream, ready to go."""
    config = make_tiny_config(**changes)
    return build.make_trainer(config, stream or make_tiny_stream(), torch.device("cpu"), watcher)


def needed(method: str) -> dict[str, Any]:
    """Return the options that a method needs on a benchmark without a default for them."""
    return {"strength": 1.0} if "strength" in {each.name for each in declared(METHODS.options(method))} else {}


def bits(trainer: Trainer) -> dict[str, Any]:
    """Everything a run leaves behind, but for the time it took."""
    tensors, plain = trainer.state()
    records = [{k: v for k, v in record.items() if k != "seconds"} for record in plain["records"]]
    return {**{k: v.clone() for k, v in tensors.items()}, **plain, "records": records, "seconds": None}


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Every entry equal, tensors to the last bit."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():  # a NaN marks a slot without a logit
            same = torch.equal(value.isnan(), other[name].isnan())
            same = same and torch.equal(value.nan_to_num(0), other[name].nan_to_num(0))
        else:
            same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        assert same, f"{name} differs"


@pytest.fixture
def tiny_stream() -> Callable[..., Stream]:
    """A factory of small streams: `tiny_stream(classes=6, classes_per_task=2, ...)`."""
    return make_tiny_stream


@pytest.fixture
def run_tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., experiment.Result]:
    """`experiment.run` on a tiny stream: folder, lock, checkpoints and all, without any data set or picture."""
    monkeypatch.setattr(experiment, "make_stream", lambda config, root=None: make_tiny_stream())
    monkeypatch.setattr("holdfast.runs.plots.run_pictures", lambda result, folder: [])

    def run(config: Config, out: Path | None = None, **options: Any) -> experiment.Result:
        machine = {key: options.pop(key) for key in MACHINE if key in options}
        return experiment.run(config, Machine(out=str(out or tmp_path), device="cpu", **machine), **options)

    return run
