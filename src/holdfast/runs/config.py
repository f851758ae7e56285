"""One run's configuration: everything that decides its numbers, and the hash that names it.

`Config` itself holds the protocol. The options of the method, the head and the backbone are declared by those, and
are kept here by name: `Config("split-mnist", method="ewc", strength=600)`.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .. import backbones
from ..errors import BadConfig
from ..heads import HEADS
from ..methods import METHODS
from ..options import Option, Options, declared, option
from . import benchmarks
from .benchmarks import Benchmark

OPTIMIZERS = ("adam", "sgd")
ORDERS = ("label", "shuffled")
PRECISIONS = ("float32", "bf16")


@dataclass(frozen=True, init=False)
class Config:
    """None means: the benchmark's or the method's own default. `resolved` fills every None in."""

    benchmark: str
    method: str = option("replay", "how to learn; `holdfast methods` lists them")
    head: str | None = option(None, "the classifier; `holdfast heads` lists them  (default: simplex with replay)")
    slots: int | None = option(None, "classes to pre-allocate  (default: as many as the benchmark has)", at_least=1,
                               at_most=10**30)
    backbone: str | None = option(None, "the network; `holdfast backbones` lists them  (default: the benchmark's)")
    epochs: int | None = option(None, "epochs per task  (default: the benchmark's)", at_least=1)
    batch: int = option(128, "samples per step, new and remembered together", at_least=2)
    optimizer: str | None = option(None, "adam or sgd  (default: adam; sgd for gem and agem)", choices=OPTIMIZERS)
    lr: float | None = option(
        None, "learning rate  (default: the benchmark's, mostly 0.001; 0.01 for gem and agem)", above=0
    )
    schedule: str | None = option(None, "divide the learning rate by ten after these epochs of each task, such as 5,8")
    seed: int = option(0, "seed of all randomness", at_least=0)
    order: str = option("label", "order in which classes arrive: by label, or shuffled by the seed", choices=ORDERS)
    classes_per_task: int | None = option(None, "classes per task  (default: the benchmark's)", at_least=1)
    tasks: int | None = option(None, "number of tasks  (default: the benchmark's)", at_least=1)
    validation: float = option(0.0, "share of the training samples to hold back", at_least=0, below=1)
    augment: str | None = option(None, "augmentation of all images: none, shift, crop-flip  (default: the benchmark's)")
    precision: str = option(
        "float32", "number format of the backbone: float32, or bf16 by autocast", choices=PRECISIONS
    )
    quick: bool = option(False, "scale down: a fifth of the epochs, 1,000 samples per task; marked in the result")
    given: tuple[tuple[str, Any], ...] = field(default=())  # options of method, head and backbone, sorted by name

    def __init__(self, benchmark: str, given: Any = (), **values: Any) -> None:
        known = {each.name for each in PROTOCOL}
        options = {**dict(given), **{name: value for name, value in values.items() if name not in known}}
        plain = {each.name: values.get(each.name, each.default) for each in PROTOCOL}
        for name, value in {"benchmark": benchmark, **plain, "given": tuple(sorted(options.items()))}.items():
            object.__setattr__(self, name, value)
        if not isinstance(benchmark, str):
            raise BadConfig(f"benchmark is {benchmark!r}; it must be a name.")
        for each in PROTOCOL:
            _refuse_functions(each.name, plain[each.name])
            each.check(plain[each.name])
        for name, value in options.items():
            _refuse_functions(name, value)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the method, the head and the backbone, by name; in a resolved config, all of them."""
        return dict(self.given)

    def get(self, name: str) -> Any:
        """Return an option of the method, the head or the backbone; None if the run has no such option."""
        return dict(self.given).get(name)

    # What is filled in.

    @cached_property
    def protocol(self) -> Benchmark:
        """The benchmark, looked up once."""
        return benchmarks.find(self.benchmark)

    @cached_property
    def classes(self) -> int:
        """Return the total number of classes."""
        tasks, size = self.protocol.cut(self.tasks, self.classes_per_task)
        return tasks * size if self.protocol.kind == "permuted" else self.protocol.classes

    def resolved(self) -> Config:
        """Return this config with every None filled in and every combination checked, before anything starts."""
        return self._resolved

    @cached_property
    def _resolved(self) -> Config:
        full, sets = self._filled()
        self._refuse_unknown(sets, full)
        full._check(sets)
        full.__dict__["_resolved"] = full
        return full

    def _filled(self) -> tuple[Config, list[Options]]:
        """Fill every None in; return the config and the options of its method, head and backbone."""
        benchmark, method = self.protocol, METHODS[self.method]
        if benchmark.kind == "permuted" and self.order == "shuffled":
            raise BadConfig(f"order is 'shuffled', but a task of {benchmark.name} has all classes; leave it out.")
        tasks, size = benchmark.cut(self.tasks, self.classes_per_task)
        permuted = benchmark.kind == "permuted"
        filled: dict[str, Any] = {each.name: getattr(self, each.name) for each in PROTOCOL}
        filled |= {
            "head": self.head or method.head,
            "backbone": self.backbone or benchmark.backbone,
            "epochs": self.epochs or (max(1, benchmark.epochs // 5) if self.quick else benchmark.epochs),
            "augment": self.augment or benchmark.augment,
            "optimizer": self.optimizer or method.optimizer_name,
            "lr": self.lr or (benchmark.lr if method.optimizer_name == "adam" else None) or method.lr,
            "slots": self.slots or self.classes,
            "tasks": tasks if permuted and tasks != benchmark.tasks else None,
            "classes_per_task": size if not permuted and size != benchmark.classes_per_task else None,
            "schedule": _schedule(self.schedule),
        }
        full = Config(benchmarks.spelled(self.benchmark), **filled)
        full.__dict__["protocol"] = benchmark
        full._check_names()
        sets = [_complete(self, full, name, declares) for _, name, declares in full.owners()]
        given = {name: value for each in sets for name, value in vars(each).items()}
        object.__setattr__(full, "given", tuple(sorted(given.items())))
        return full, sets

    def owners(self) -> list[tuple[str, str, type[Options]]]:
        """List (kind, name, declared options) of this run's method, head and backbone."""
        head = self.head or METHODS[self.method].head
        backbone = self.backbone or self.protocol.backbone
        return [
            ("method", self.method, METHODS.options(self.method)),
            ("head", head, HEADS.options(head)),
            ("backbone", backbone, backbones.options(backbone)),
        ]

    def fallbacks(self) -> dict[str, Any]:
        """Return the options that neither the user nor the benchmark chose, and the values that stand in for them."""
        given = self.options
        return {
            name: value for _, owner, declares in self.owners() for name, value in declares.fallbacks.items()
            if given.get(name) is None and self.protocol.default(owner, name) is None
        }

    def options_of(self, kind: str) -> Any:
        """Return the options of the `method`, the `head` or the `backbone` as their own dataclass."""
        full = self.resolved()
        declares = next(options for each, _, options in full.owners() if each == kind)
        return declares(**{each.name: full.get(each.name) for each in declared(declares)})

    def _check_names(self) -> None:
        """Refuse unknown names, each with the nearest known one."""
        from ..learning.augment import AUGMENTATIONS

        HEADS[str(self.head)]
        backbones.check(str(self.backbone))
        AUGMENTATIONS[str(self.augment)]

    def _check(self, sets: list[Options]) -> None:
        """Check what the values mean together."""
        import torch

        if (self.slots or 0) < self.classes:
            text = f"{self.slots} slots cannot hold the {self.classes} classes of {self.benchmark}: raise slots."
            raise BadConfig(text)
        for each in sets:
            each.check_with(self)
        try:
            with torch.device("meta"):  # takes no memory, and the head refuses what it cannot be
                HEADS[str(self.head)](1, self.slots, sets[1])
        except (TypeError, RuntimeError, OverflowError) as error:
            raise BadConfig(f"A {self.head} of {self.slots} slots is too large for a tensor: lower slots.") from error

    def _refuse_unknown(self, sets: list[Options], full: Config) -> None:
        """An option that nobody in this run declares is a mistake; one that two declare is ambiguous."""
        names = [name for each in sets for name in vars(each)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadConfig(f"The method, head and backbone of this run share the option {twice[0]!r}: rename one.")
        for name, value in self.given:
            if name not in names:
                users = [each for registry in (METHODS, HEADS) for each in registry
                         if name in {o.name for o in declared(registry.options(each))}]
                remedy = f"leave it out, or choose one of {', '.join(users)}" if users else "leave it out"
                raise BadConfig(
                    f"{name} is {value!r}, but neither the method {full.method!r} nor the head {full.head!r} nor the "
                    f"backbone {full.backbone!r} has such an option; {remedy}."
                )

    def phases(self) -> int:
        """Count how often training stops to be measured: once per task, or once if tasks are learned jointly."""
        return 1 if METHODS[self.method].joint else self.protocol.cut(self.tasks, self.classes_per_task)[0]

    # How it is written down.

    def to_json(self) -> dict[str, Any]:
        """Return what differs from the defaults, so that an option added later does not change older hashes."""
        values = {"benchmark": self.benchmark}
        values |= {each.name: getattr(self, each.name) for each in PROTOCOL if getattr(self, each.name) != each.default}
        defaults = {each.name: each.default for owner in self.resolved().owners() for each in declared(owner[2])}
        values |= {name: value for name, value in self.given if value != defaults.get(name)}
        return {name: _plain(value) for name, value in values.items()}

    @classmethod
    def from_json(cls, values: Any) -> Config:
        """Read what `to_json` returned. A value that cannot be is refused by name."""
        if not isinstance(values, dict) or not isinstance(values.get("benchmark"), str):
            raise BadConfig("This is not a run's configuration: it names no benchmark.")
        if not all(isinstance(value, str | int | float | bool) or value is None for value in values.values()):
            raise BadConfig("This is not a run's configuration: its values must be names, numbers, true or false.")
        return cls(**{str(name): value for name, value in values.items() if name != "given"})

    @cached_property
    def hash(self) -> str:
        """Name the run: equal configurations, however they were typed, have equal hashes.

        It covers the resolved config and what the benchmark's name stands for, its data set and tasks."""
        full = self.resolved()
        text = json.dumps({**full.to_json(), "stream": full.protocol.identity()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @cached_property
    def name(self) -> str:
        """Name the run folder: readable first, unique by the hash."""
        full = self.resolved()
        memory = f"-m{full.get('memory')}" if full.get("memory") else ""
        quick = "quick-" if full.quick else ""
        return f"{quick}{benchmarks.label(full.benchmark)}-{full.method}-{full.head}{memory}-s{full.seed}-{full.hash}"

    def _beside(self, **fields: Any) -> Config:
        """Return another config of the same benchmark, which is not looked up again."""
        other = Config(self.benchmark, **fields)
        other.__dict__["protocol"] = self.protocol
        return other

    def command(self) -> str:
        """Return the command that makes this run: its method, head, backbone, and what differs from their defaults."""
        full = self.resolved()
        usual, _ = full._beside(method=full.method)._filled()
        named = {"method": full.method, "head": full.head, "backbone": full.backbone}
        plain, _ = full._beside(**named)._filled()
        changed: dict[str, Any] = {"method": full.method} if full.method != Config.method else {}
        changed |= {name: value for name, value in named.items() if value != getattr(usual, name)}
        for name in (each.name for each in PROTOCOL if each.name not in named):
            changed |= {name: getattr(full, name)} if getattr(full, name) != getattr(plain, name) else {}
        changed |= {name: value for name, value in full.given if value != plain.get(name)}
        words = ["holdfast run", shlex.quote(self.benchmark)]
        for name, value in ((name, _plain(value)) for name, value in changed.items()):
            flag = name.replace("_", "-")
            switch = {True: [f"--{flag}"], False: [f"--no-{flag}"]}
            words += switch[value] if isinstance(value, bool) else [f"--{flag}", str(value)]
        return " ".join(words)


PROTOCOL: tuple[Option, ...] = tuple(each for each in declared(Config) if each.name not in ("benchmark", "given"))


def _complete(config: Config, full: Config, owner: str, declares: type[Options]) -> Options:
    """Return the options of one owner in canonical form: as given, or the benchmark's default, or their own."""
    given, values = config.options, {}
    for each in declared(declares):
        if each.name in {field.name for field in PROTOCOL}:
            raise BadConfig(f"{owner!r} declares the option {each.name!r}, a field of every run: rename the option.")
        value = given.get(each.name, each.default)
        if value is None:
            usual = full.protocol.default(owner, each.name)
            value = declares.fallbacks.get(each.name) if usual is None else usual
        values[each.name] = value
    return declares(**values).canonical(full)


def _plain(value: Any) -> Any:
    """Write 600.0 as 600, so that both have one hash."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _schedule(text: str | None) -> str | None:
    """Return a schedule in one spelling: ascending epochs, separated by commas."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise BadConfig(f"schedule is {text!r}; write epochs such as 5,8.")
    return ",".join(map(str, sorted({int(word) for word in words})))


def _refuse_functions(name: str, value: Any) -> None:
    if callable(value):
        raise BadConfig(
            f"{name} is a function; register it under a name, by which a run can be known and repeated: "
            f"holdfast.learning.augment.register('mine')({getattr(value, '__name__', 'function')}), {name}='mine'."
        )
