"""The benchmarks as data: which data set, cut how, learned by what for how long."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import torch

from . import own_data, streams
from .data import Dataset
from .errors import BadConfig
from .registry import Registry
from .streams import Stream

TASKS = 5  # that one's own data are cut into, unless told otherwise
REMEMBERED = 20  # images a class of one's own data


@dataclass(frozen=True)
class Benchmark:
    """The protocol of one benchmark; every value is a default that the command line can change."""

    name: str
    dataset: str
    kind: str  # "split" by class or "permuted" by pixel
    tasks: int
    classes_per_task: int
    backbone: str
    epochs: int
    memory: int
    augment: str = "none"
    vary: str = "shift"  # how a remembered image may be varied (the strong recipe)
    distill: str = "features"  # or "logits": which of a remembered image are held (likewise; docs/beyond.md)
    strength: dict[str, float] = field(default_factory=dict)  # the penalty of each method that has one
    total: int | None = None  # classes, where the last task has fewer of them

    @property
    def classes(self) -> int:
        return self.total or self.tasks * self.classes_per_task

    def stream(
        self,
        data: Dataset,
        *,
        generator: torch.Generator,
        classes_per_task: int | None = None,
        tasks: int | None = None,
        order: str = "label",
        validation: float = 0.0,
    ) -> Stream:
        """Cut `data` into this benchmark's tasks."""
        if self.kind == "permuted":
            if classes_per_task not in (None, len(data.classes)):
                raise BadConfig(f"{self.name} has all {len(data.classes)} classes in each task; set tasks instead.")
            return streams.permuted(
                data, tasks or self.tasks, validation=validation, generator=generator, name=self.name
            )
        size = classes_per_task or self.classes_per_task
        if tasks is not None:
            size = -(-len(data.classes) // tasks)
        return streams.split(data, size, order=order, validation=validation, generator=generator, name=self.name)


BENCHMARKS: Registry[Benchmark] = Registry("benchmark", "steadfast.benchmarks")


def find(name: str) -> Benchmark:
    """The benchmark of this name; `arrays:FOLDER` and `images:FOLDER` are made into one by what lies there."""
    if (own := own_data.address(name)) is None:
        return BENCHMARKS[name]
    count, name = len(own_data.class_names(*own)), spelled(name)
    size = -(-count // TASKS)
    return Benchmark(
        name, name, "split", -(-count // size), size, "resnet20", epochs=10, memory=REMEMBERED * count, total=count
    )


def spelled(name: str) -> str:
    """An address in the one way that a run is named by; any other name as it is."""
    own = own_data.address(name)
    return name if own is None else ":".join(map(str, own))


def label(name: str) -> str:
    """As it can stand in a file's name."""
    own = own_data.address(name)
    return name if own is None else f"{own[0]}-{re.sub('[^A-Za-z0-9_.-]+', '-', own[1].name)[:40]}"


def _add(benchmark: Benchmark, line: str) -> None:
    BENCHMARKS.register(benchmark.name, line)(benchmark)


_add(
    Benchmark("split-digits", "digits", "split", 5, 2, "lenet", epochs=10, memory=50),
    "scikit-learn's digits, 5 tasks of 2 classes; embedded, needs no download",
)
_add(
    Benchmark(
        "split-mnist", "mnist", "split", 5, 2, "lenet", epochs=5, memory=1100,
        strength={"ewc": 600, "online-ewc": 100, "si": 600, "mas": 1},
    ),
    "MNIST, 5 tasks of 2 digits (paper)",
)
_add(
    Benchmark("split-fashion-mnist", "fashion-mnist", "split", 5, 2, "lenet", epochs=5, memory=1100, vary="crop-flip"),
    "Fashion-MNIST, 5 tasks of 2 classes",
)
_add(
    Benchmark(
        "permuted-mnist", "mnist", "permuted", 10, 10, "lenet", epochs=5, memory=1100, vary="none", distill="logits",
        strength={"ewc": 10, "online-ewc": 50, "si": 0.3, "mas": 0.003},
    ),
    "MNIST under 10 pixel permutations, 10 tasks of 10 classes, 100 in all (paper)",
)
_add(
    Benchmark(
        "split-cifar10", "cifar10", "split", 5, 2, "resnet56", epochs=10, memory=1100, augment="crop-flip",
        vary="crop-flip", distill="logits",
        strength={"ewc": 2, "online-ewc": 2, "si": 0.001, "mas": 0.03},  # searched, see docs/rivals.md
    ),
    "CIFAR-10, 5 tasks of 2 classes (paper)",
)
_add(
    Benchmark(
        "split-cifar100", "cifar100", "split", 5, 20, "resnet56", epochs=10, memory=5600, augment="crop-flip",
        vary="crop-flip", distill="logits", strength={"ewc": 2, "online-ewc": 2, "si": 0.001, "mas": 0.001},
    ),
    "CIFAR-100, 5 tasks of 20 classes (paper)",
)
