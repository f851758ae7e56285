"""One run's configuration: a frozen dataclass that is also the command line, and its hash."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shlex
from dataclasses import dataclass, field
from typing import Any

from . import benchmarks, config_checks, heads
from .benchmarks import Benchmark
from .errors import BadConfig
from .methods import METHODS
from .methods import recipe as recipe_options
from .recipes import RECIPES


def option(default: Any, text: str) -> Any:
    """A field with its help text; the command line is made of these."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Config:
    """Everything that decides a run's numbers. None means: the benchmark's or the method's own default."""

    benchmark: str
    method: str = option("replay", "how to learn; `steadfast methods` lists them")
    head: str | None = option(None, "the classifier; `steadfast heads` lists them  (default: simplex with replay)")
    slots: int | None = option(None, "classes to pre-allocate  (default: as many as the benchmark has)")
    over: str | None = option(None, "softmax over `all` slots or the `seen` ones  (default: as the paper reads)")
    embedding: int | None = option(None, "width of a linear layer before a trainable head  (default: none)")
    memory: int | None = option(None, "images to remember  (default: the benchmark's)")
    remembered: int | None = option(None, "remembered samples a step, of those in `batch`  (default: half of them)")
    policy: str = option("task", "what to remember: task (paper), class, reservoir, herding")
    backbone: str | None = option(None, "the network; `steadfast backbones` lists them  (default: the benchmark's)")
    epochs: int | None = option(None, "epochs a task  (default: the benchmark's)")
    batch: int = option(128, "samples a step, new and remembered together")
    optimizer: str | None = option(None, "adam or sgd  (default: adam; sgd for gem and agem)")
    lr: float | None = option(None, "learning rate  (default: 0.001; 0.01 for gem and agem)")
    seed: int = option(0, "all randomness comes from this")
    order: str = option("label", "classes arrive by label or shuffled by the seed")
    classes_per_task: int | None = option(None, "classes a task  (default: the benchmark's)")
    tasks: int | None = option(None, "number of tasks  (default: the benchmark's)")
    validation: float = option(0.0, "share of the training samples to hold back")
    augment: str | None = option(None, "none, crop-flip or shift  (default: the benchmark's)")
    quick: bool = option(False, "scaled down: a fifth of the epochs, 1,000 samples a task; marked as such")
    strength: float | None = option(None, "weight of the penalty of ewc, si, ...  (default: the benchmark's)")
    importance: str = option("prediction", "whose likelihood ewc weighs by: the model's prediction, label or sample")
    importance_samples: int | None = option(None, "samples to measure importance on, ewc and mas  (default: all)")
    margin: float = option(0.5, "how far gem steps along each old task's gradient, at least, when one is violated")
    recipe: str = option("paper", "replay as in the `paper`, or `strong`: the options below, as far as they help")
    balance: bool | None = option(None, "balanced softmax: in training, logits plus the log of a class's frequency")
    empty: float = option(1.0, "with balance: how often a slot that is not in the batch counts, above 0 and at most 1")
    vary: str | None = option(None, "how each remembered image is varied before each use: none, shift, crop-flip, ...")
    distill: str | None = option(None, "hold remembered samples to their stored `logits` or their `features` of before")
    distill_weight: float | None = option(None, "weight of the distillation  (default: logits 0.5, features 5)")
    insert: str = option("after", "remember samples after a task by policy, or during it by reservoir")
    gem_replay: bool = option(False, "gem trains on the memory as well, as the reference does, half and half")
    precision: str = option("float32", "of the backbone's passes: float32, or bf16 by autocast; weights stay float32")

    def __post_init__(self) -> None:
        config_checks.check_values(self)

    def resolved(self, benchmark: Benchmark | None = None) -> Config:
        """Every None filled in and every combination checked, before anything starts.

        By the benchmark that it names, or by one that is given because it has no name (people's own data)."""
        benchmark, method = benchmark or benchmarks.find(self.benchmark), METHODS[self.method]
        self._refuse_unused(method.options)
        if self.recipe != "paper" or any(getattr(self, name) is None for name in recipe_options.OFF):
            return self._spelled_out(benchmark).resolved(benchmark)
        full = dataclasses.replace(
            self,
            benchmark=benchmarks.spelled(self.benchmark),
            head=self.head or method.head,
            backbone=self.backbone or benchmark.backbone,
            epochs=self.epochs or (max(1, benchmark.epochs // 5) if self.quick else benchmark.epochs),
            augment=self.augment or benchmark.augment,
            optimizer=self.optimizer or method.optimizer_name,
            lr=self.lr or method.lr,
            slots=self.slots or self._classes(benchmark),
            remembered=None if self.remembered == self.batch // 2 else self.remembered,
            policy="task" if self.insert == "during" and self.policy == "reservoir" else self.policy,  # it is by that
            over=None if self.over == heads.DEFAULT_OVER.get(self.head or method.head) else self.over,
            **self._cut(benchmark),
            **self._defaults_of_options(method.options, benchmark),
        )
        config_checks.check_together(full, full._classes(benchmark))
        return full

    def _spelled_out(self, benchmark: Benchmark) -> Config:
        """The recipe's options in place of its name; one that was given keeps its value, "off" as well."""
        seen = dataclasses.replace(benchmark, augment=self.augment or benchmark.augment)
        named = RECIPES[self.recipe](seen)
        memory = benchmark.memory if self.memory is None else self.memory
        chosen = {**recipe_options.OFF, **named, **({} if memory else {"vary": "none", "distill": "none"})}
        if (self.distill or chosen["distill"]) != named.get("distill"):
            chosen.pop("distill_weight", None)  # it is the weight of the recipe's kind
        left = {name: value for name, value in chosen.items() if getattr(self, name) is None}
        return dataclasses.replace(self, recipe="paper", **left)

    def is_default(self, name: str) -> bool:
        """Whether a field says nothing: its default, or an option that is off where no recipe turns it on."""
        value = getattr(self, name)
        if self.recipe == "paper" and name in recipe_options.OFF and value == recipe_options.OFF[name]:
            return True
        return bool(value == getattr(Config, name))

    def _classes(self, benchmark: Benchmark) -> int:
        if benchmark.kind == "permuted":
            return (self.tasks or benchmark.tasks) * benchmark.classes_per_task
        return benchmark.classes

    def _cut(self, benchmark: Benchmark) -> dict[str, Any]:
        """`tasks` and `classes_per_task` in one form: None where it is the benchmark's own cut."""
        if benchmark.kind == "permuted":
            if self.classes_per_task not in (None, benchmark.classes_per_task):
                raise BadConfig(
                    f"classes_per_task is {self.classes_per_task}, but {benchmark.name} has all its "
                    f"{benchmark.classes_per_task} classes in each task; set tasks instead."
                )
            if self.order == "shuffled":
                raise BadConfig(f"order is 'shuffled', but a task of {benchmark.name} has all classes; leave it out.")
            return {"classes_per_task": None, "tasks": None if self.tasks == benchmark.tasks else self.tasks}
        size, classes = self.classes_per_task, benchmark.classes
        if size is not None and size > classes:
            raise BadConfig(f"classes_per_task is {size}; {benchmark.name} has {classes} classes, so 1 to {classes}.")
        if self.tasks is not None:
            possible = sorted({-(-classes // each) for each in range(1, classes + 1)})
            if self.tasks not in possible:
                raise BadConfig(
                    f"tasks is {self.tasks}, but the {classes} classes of {benchmark.name} cut evenly, the last task "
                    f"smaller if need be, give one of {', '.join(map(str, possible))}."
                )
            if size is not None and -(-classes // size) != self.tasks:
                raise BadConfig(f"tasks is {self.tasks} but classes_per_task is {size}; leave one of them out.")
            size = size or -(-classes // self.tasks)
        return {"tasks": None, "classes_per_task": None if size == benchmark.classes_per_task else size}

    def phases(self) -> int:
        """How many times training stops to be measured: the tasks, or one if they are learned jointly."""
        benchmark = benchmarks.find(self.benchmark)
        if METHODS[self.method].joint:
            return 1
        if self.tasks:
            return self.tasks
        return -(-self._classes(benchmark) // (self.classes_per_task or benchmark.classes_per_task))

    def _defaults_of_options(self, options: tuple[str, ...], benchmark: Benchmark) -> dict[str, Any]:
        filled: dict[str, Any] = {}
        if "memory" in options and self.memory is None:
            filled["memory"] = benchmark.memory
        if self.distill in recipe_options.WEIGHTS and self.distill_weight is None:
            filled["distill_weight"] = recipe_options.WEIGHTS[self.distill]
        if "strength" in options and self.strength is None:
            if self.method not in benchmark.strength:
                raise BadConfig(
                    f"Nobody states a strength of {self.method} for {self.benchmark}; give --strength, "
                    f"or look for one with --search (it uses a validation split)."
                )
            filled["strength"] = benchmark.strength[self.method]
        return filled

    def _refuse_unused(self, used: tuple[str, ...]) -> None:
        """An option that the method would ignore is a mistake, not a wish."""
        for name in OPTIONAL:
            if name not in used and not self.is_default(name):
                listeners = [m for m in METHODS if name in METHODS[m].options]
                raise BadConfig(
                    f"{name} is {getattr(self, name)!r}, but the method {self.method!r} has no such option; "
                    f"leave it out, or choose one of {', '.join(listeners)}."
                )

    def to_json(self) -> dict[str, Any]:
        """What differs from the defaults: so a field added later does not change the hash of an older run."""
        values = dataclasses.asdict(self).items()
        changed = {k: v for k, v in values if k == "benchmark" or not self.is_default(k)}
        return {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in changed.items()}  # 600.0 is 600

    @property
    def hash(self) -> str:
        """Names the run: equal configurations, however they were typed, have equal hashes."""
        text = json.dumps(self.resolved().to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """The run folder's name: readable first, unique by the hash."""
        full = self.resolved()
        memory = f"-m{full.memory}" if full.memory else ""
        quick = "quick-" if full.quick else ""
        return f"{quick}{benchmarks.label(full.benchmark)}-{full.method}-{full.head}{memory}-s{full.seed}-{full.hash}"

    def command(self) -> str:
        """The shortest command that makes this run: what is a default anyway is left out."""
        full, short = self.resolved(), self
        unnamed: dict[str, Any] = dict.fromkeys((*recipe_options.OFF, "distill_weight"))
        if full.memory:
            with contextlib.suppress(BadConfig):  # a method without recipes
                named = dataclasses.replace(self, recipe="strong", **unnamed)
                short = named if named.resolved() == full else self
        default: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(self)}
        for key in short.to_json():
            if key != "benchmark":
                shorter = dataclasses.replace(short, **{key: default[key]})
                with contextlib.suppress(BadConfig):
                    short = shorter if shorter.resolved() == full else short
        words = ["steadfast run", shlex.quote(self.benchmark)]
        for key, value in short.to_json().items():
            flag = "--" + key.replace("_", "-")
            if key != "benchmark":
                words += [flag] if value is True else ["--no-" + flag[2:]] if value is False else [flag, str(value)]
        return " ".join(words)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Config:
        """From what `to_json` gave; unknown fields are refused by name."""
        known = {f.name for f in dataclasses.fields(cls)}
        if not isinstance(values, dict) or not isinstance(values.get("benchmark"), str):
            raise BadConfig("This is not a run's configuration: it names no benchmark.")
        if unknown := sorted(values.keys() - known):
            raise BadConfig(f"Unknown configuration fields {unknown}: made by a newer steadfast? Upgrade to read it.")
        for f in dataclasses.fields(cls):
            kind, value = str(f.type), values.get(f.name, f.default)
            if "str" in kind and not isinstance(value, str) and not (value is None and "None" in kind):
                raise BadConfig(f"{f.name} is {value!r}; it must be a name.")
            if "bool" in kind and not isinstance(value, bool) and not (value is None and "None" in kind):
                raise BadConfig(f"{f.name} is {value!r}; it must be true or false.")
        if values.get("memory") == 0:  # what is of remembered samples was let pass once, and did nothing
            values = {name: value for name, value in values.items() if name not in config_checks.OF_THE_MEMORY}
        try:
            return cls(**values)
        except (OverflowError, TypeError) as error:  # an integer of a thousand digits, say
            raise BadConfig(f"This configuration holds a value that cannot be: {error}.") from error


# The fields that only some methods listen to; each method names its own in `options`.
OPTIONAL = (
    *recipe_options.OPTIONS, "memory", "policy", "remembered", "strength", "margin", "gem_replay", "importance",
    "importance_samples",
)
