"""The benchmarks: data set, tasks, backbone, epochs and default options of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import BadConfig
from ..registry import Registry

if TYPE_CHECKING:
    import torch

    from ..data import Dataset
    from ..learning.streams import Stream

OWN_TASKS = 5  # default number of tasks for the user's own data
OWN_MEMORY = 20  # default memory for the user's own data, in images per class


@dataclass(frozen=True)
class Benchmark:
    """The protocol of one benchmark. Every value is a default that the command line can change."""

    name: str
    dataset: str
    kind: str  # "split" by class or "permuted" by pixel
    tasks: int
    classes_per_task: int
    backbone: str
    epochs: int
    augment: str = "none"
    lr: float | None = None  # None: the method's own
    options: Mapping[str, Any] = field(default_factory=dict)  # defaults: "memory" for all, "ewc.strength" for one
    strong: Mapping[str, Any] = field(default_factory=dict)  # what the strong recipe sets here (docs/beyond.md)
    total: int | None = None  # number of classes, if the last task has fewer

    @property
    def classes(self) -> int:
        return self.total or self.tasks * self.classes_per_task

    def default(self, owner: str, option: str) -> Any:
        """Return this benchmark's default for an option of a method, head or backbone, or None."""
        return self.options.get(f"{owner}.{option}", self.options.get(option))

    def cut(self, tasks: int | None, classes_per_task: int | None) -> tuple[int, int]:
        """Return (tasks, classes per task), given either or neither; raise BadConfig if they do not fit."""
        if self.kind == "permuted":
            if classes_per_task not in (None, self.classes_per_task):
                raise BadConfig(
                    f"classes_per_task is {classes_per_task}, but {self.name} has all its {self.classes_per_task} "
                    f"classes in each task; set tasks instead."
                )
            return tasks or self.tasks, self.classes_per_task
        size, classes = classes_per_task, self.classes
        if size is not None and size > classes:
            raise BadConfig(f"classes_per_task is {size}; {self.name} has {classes} classes, so choose 1 to {classes}.")
        if tasks is not None:
            possible = sorted({-(-classes // each) for each in range(1, classes + 1)})
            if tasks not in possible:
                raise BadConfig(
                    f"tasks is {tasks}, but the {classes} classes of {self.name} can be split evenly (the last task "
                    f"may be smaller) into {', '.join(map(str, possible))} tasks."
                )
            if size is not None and -(-classes // size) != tasks:
                raise BadConfig(f"tasks is {tasks} but classes_per_task is {size}; leave one of them out.")
            size = size or -(-classes // tasks)
        size = size or self.classes_per_task
        return -(-classes // size), size

    def identity(self) -> dict[str, Any]:
        """Return the benchmark's values that determine the stream; they are part of a run's hash."""
        return {"dataset": self.dataset, "kind": self.kind, "classes": self.classes, "tasks": self.tasks,
                "classes_per_task": self.classes_per_task}

    def stream(
        self, data: Dataset, *, generator: torch.Generator, tasks: int | None = None,
        classes_per_task: int | None = None, order: str = "label", validation: float = 0.0,
    ) -> Stream:
        """Split `data` into this benchmark's tasks."""
        from ..learning import streams

        tasks, size = self.cut(tasks, classes_per_task)
        if self.kind == "permuted":
            return streams.permuted(data, tasks, validation=validation, generator=generator, name=self.name)
        return streams.split(data, size, order=order, validation=validation, generator=generator, name=self.name)


BENCHMARKS: Registry[Benchmark] = Registry("benchmark", "holdfast.benchmarks")


def find(name: str) -> Benchmark:
    """Return a benchmark by name; for `arrays:FOLDER` and `images:FOLDER` build one from the folder."""
    from ..data import own

    if (address := own.address(name)) is None:
        return BENCHMARKS[name]
    count, name = len(own.class_names(*address)), spelled(name)
    size = -(-count // OWN_TASKS)
    return Benchmark(
        name, name, "split", -(-count // size), size, "resnet20", epochs=10, options={"memory": OWN_MEMORY * count},
        strong={"augment_memory": "shift", "distill": "features"}, total=count,
    )


def spelled(name: str) -> str:
    """Return an address with its absolute folder, so that a run has one name; other names unchanged."""
    if ":" not in name:
        return name
    from ..data import own

    address = own.address(name)
    return name if address is None else ":".join(map(str, address))


def label(name: str) -> str:
    """Return a benchmark's name in a form that is valid in a file name."""
    if ":" not in name:
        return name
    from ..data import own

    address = own.address(name)
    return name if address is None else f"{address[0]}-{re.sub('[^A-Za-z0-9_.-]+', '-', address[1].name)[:40]}"


def register(benchmark: Benchmark, line: str) -> None:
    """Add a benchmark under its own name."""
    BENCHMARKS.register(benchmark.name, line)(benchmark)


# Found with `holdfast run split-digits --method NAME --search OPTION=VALUES`, on a validation split of a tenth of the
# training samples (seed 0); the pages in docs/rivals/ list every value and its accuracy. The values of
# LwF, DER, DER++ and LUCIR on split-mnist were found in the same way.
DIGITS = {
    "ewc.strength": 1_000_000, "online-ewc.strength": 1_000_000, "si.strength": 10_000, "mas.strength": 100,
    "lwf.old_weight": 0.1, "der.alpha": 1, "der++.alpha": 0.5, "der++.beta": 2, "lucir.less_forget": 1,
}
# The other penalties' strengths come from the reference's scripts; docs/rivals.md says which ones were searched.
register(
    Benchmark(
        "split-digits", "digits", "split", 5, 2, "lenet", epochs=10, options={"memory": 50, **DIGITS},
        strong={"augment_memory": "shift", "distill": "features"},
    ),
    "scikit-learn's digits, 5 tasks of 2 classes; needs no download",
)
register(
    Benchmark(
        "split-mnist", "mnist", "split", 5, 2, "lenet", epochs=5,
        strong={"augment_memory": "shift", "distill": "features"},
        options={"memory": 1100, "ewc.strength": 600, "online-ewc.strength": 100, "si.strength": 600,
                 "mas.strength": 1, "lwf.old_weight": 1, "der.alpha": 0.3, "der++.alpha": 2, "der++.beta": 4,
                 "lucir.less_forget": 5},
    ),
    "MNIST, 5 tasks of 2 digits (paper)",
)
register(
    Benchmark(
        "split-fashion-mnist", "fashion-mnist", "split", 5, 2, "lenet", epochs=5, options={"memory": 1100},
        strong={"augment_memory": "crop-flip", "distill": "features"},
    ),
    "Fashion-MNIST, 5 tasks of 2 classes",
)
register(
    Benchmark(
        "permuted-mnist", "mnist", "permuted", 10, 10, "lenet", epochs=5,
        lr=0.00001,  # nearest to both of the paper's numbers at M=100; docs/rivals.md has the story
        strong={"augment_memory": "none", "distill": "logits", "distill_weight": 2.0},
        options={"memory": 1100, "ewc.strength": 10, "online-ewc.strength": 50, "si.strength": 0.3,
                 "mas.strength": 0.003},
    ),
    "MNIST under 10 pixel permutations, 10 tasks of 10 classes, 100 in all (paper)",
)
register(
    Benchmark(
        "split-cifar10", "cifar10", "split", 5, 2, "resnet56", epochs=10, augment="crop-flip",
        strong={"augment_memory": "crop-flip", "distill": "logits", "distill_weight": 2.0},
        options={"memory": 1100, "ewc.strength": 2, "online-ewc.strength": 2, "si.strength": 0.001,
                 "mas.strength": 0.03},
    ),
    "CIFAR-10, 5 tasks of 2 classes (paper)",
)
register(
    Benchmark(
        "split-cifar100", "cifar100", "split", 5, 20, "resnet56", epochs=10, augment="crop-flip",
        strong={"augment_memory": "crop-flip", "distill": "logits", "distill_weight": 2.0},
        options={"memory": 5600, "ewc.strength": 2, "online-ewc.strength": 2, "si.strength": 0.001,
                 "mas.strength": 0.001},
    ),
    "CIFAR-100, 5 tasks of 20 classes (paper)",
)
