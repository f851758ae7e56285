"""The trials by which the strong recipe was chosen: small, and scored on held-back training images only.

    python benchmarks/recipe_trials.py '{"balance": true, "augment_memory": "pixel"}' '{"memory": 1100, "ema": 0.99}'

The benchmark's own images, MNIST at 16 x 16; `per` (2000) training images a task, a sixth of the training set held
back and 1000 a task of it tested, the test set left out. Every field of Config can be given, so that a trial on colour
images can be small:

    python benchmarks/recipe_trials.py '{"benchmark": "split-cifar10", "backbone": "lenet", "per": 1000, "epochs": 2}'

`"seeds": 3` repeats a trial with further seeds and prints the mean and the deviation. After the accuracy come the angle
by which old classes' mean features turned, the angle between classes, and AM, the mean compatibility
(docs/staying-put.md).

Besides there is what was tried but is not part of the package: `ema`, `spare` ("outside" or "rotations": quarter turns
as targets in empty slots), the variations "pixel", "pixel-half", "affine" and "affine-half", and a sphere that is no
constant: `"within": [0.9, 0.999]` lets the radius grow from one vertex probability to the other while each task is
learned, `"by_task": [0.999, 0.9]` from the first task to the last.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
import time
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast import data, hardware, randomness
from holdfast.heads.fixed import FixedHead, radius_for
from holdfast.learning import augment, compatibility, metrics
from holdfast.learning.streams import Samples, Stream, validated
from holdfast.learning.training import Trainer
from holdfast.methods.replay import Replay
from holdfast.runs import benchmarks, build
from holdfast.runs.config import Config

DEFAULTS: dict[str, Any] = {"benchmark": "split-mnist", "memory": 100, "epochs": 3, "seed": 5}


def affine(images: Tensor, generator: torch.Generator) -> Tensor:
    """Turned by up to 15 degrees, stretched and slanted by up to 15 %, moved by up to 1/16."""
    draw = torch.rand(6, len(images), generator=generator) * 2 - 1
    angle, slant, across, along = draw[:4] * torch.tensor([[math.pi / 12], [0.15], [0.15], [0.15]])
    cos, sin, wide, high, place = angle.cos(), angle.sin(), 1 + across, 1 + along, draw[4:] / 8
    rows = [cos * wide, cos * slant - sin * high, place[0], sin * wide, sin * slant + cos * high, place[1]]
    grid = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images.float(), grid, align_corners=False).round_().to(images.dtype)


def half(vary: augment.Augment) -> augment.Augment:
    """Each image varied or left, by the toss of a coin."""

    def varied(images: Tensor, generator: torch.Generator) -> Tensor:
        heads = torch.rand(len(images), generator=generator) < 0.5
        return torch.where(heads[:, None, None, None], vary(images, generator), images)

    return varied


def stream_of(config: Config, per: int) -> Stream:
    """`per` images a task to learn from, held-back ones in place of the tests; MNIST at half its resolution."""
    benchmark = benchmarks.find(config.benchmark)
    whole = data.load(benchmark.dataset)
    if benchmark.dataset == "mnist":
        small = F.avg_pool2d(whole.train_images.float(), 2).round().to(torch.uint8)
        whole = dataclasses.replace(whole, train_images=small)
    whole = dataclasses.replace(whole, test_images=whole.test_images[:1], test_labels=whole.test_labels[:1])
    stream = benchmark.stream(
        whole, generator=randomness.generator(config.seed, "stream"), classes_per_task=config.classes_per_task,
        tasks=config.tasks, order=config.order, validation=1 / 6,
    )
    generator = torch.Generator().manual_seed(config.seed)

    def some(samples: Samples, count: int) -> Samples:
        return samples.only(torch.randperm(len(samples), generator=generator)[:count])

    tasks = [
        dataclasses.replace(task, train=some(task.train, per), test=some(task.test, 1000))
        for task in validated(stream).tasks
    ]
    return dataclasses.replace(stream, tasks=tuple(tasks))


def use_spare_slots(method: Replay, kind: str) -> None:
    """A quarter more of each batch: its images turned, as classes of their own or all as "none of these"."""
    plain = method.loss

    def loss(images: Tensor, slots: Tensor) -> Tensor:
        count, last = len(images) // 4, method.learner.head.slots - 1
        pick = torch.randperm(len(images), generator=method.generator)[:count]
        turns = torch.randint(1, 4, (count,), generator=method.generator)
        turned = torch.stack([torch.rot90(images[i], int(k), (1, 2)) for i, k in zip(pick, turns)])
        spare = last - (3 * slots[pick] + turns - 1) if kind == "rotations" else torch.full_like(turns, last)
        return plain(torch.cat([turned, images]), torch.cat([spare, slots]))

    method.loss = loss  # type: ignore[method-assign]


def use_changing_sphere(trainer: Trainer, probabilities: list[float], within: bool) -> None:
    """Move the radius linearly between two vertex probabilities: within each task, or from the first to the last."""
    head, method = trainer.learner.head, trainer.method
    assert isinstance(head, FixedHead)
    first, last = (radius_for(head.polytope, p) for p in probabilities)
    begin, observe, steps = method.begin_task, method.observe, 0

    def begun(task: Any) -> None:
        nonlocal steps
        begin(task)
        steps = 0
        if not within:
            head.radius = first + (last - first) * task.index / (len(trainer.tasks) - 1)

    def observed(images: Tensor, slots: Tensor) -> Tensor:
        nonlocal steps
        if within:
            whole = trainer.epochs * math.ceil(len(trainer.tasks[trainer.at.task].train) / method.new_per_batch())
            head.radius = first + (last - first) * min(1.0, steps / whole)
            steps += 1
        return observe(images, slots)

    head.radius = first
    method.begin_task, method.observe = begun, observed  # type: ignore[method-assign]


def use_average(trainer: Trainer, decay: float) -> None:
    """Test with a moving average of the weights."""
    learner, step, evaluate = trainer.learner, trainer.method.step, trainer._evaluate
    average = {k: v.clone() for k, v in learner.state_dict().items() if v.is_floating_point()}

    def stepped(loss: Tensor) -> None:
        step(loss)
        now = learner.state_dict()
        for name, value in average.items():
            value.lerp_(now[name], 1 - decay)

    def evaluated(task: Any) -> None:
        now = {k: learner.state_dict()[k].clone() for k in average}
        learner.load_state_dict(average, strict=False)
        evaluate(task)
        learner.load_state_dict(now, strict=False)

    trainer.method.step, trainer._evaluate = stepped, evaluated  # type: ignore[method-assign]


class Outcome(NamedTuple):
    """A trial's accuracy by task, and how its features moved."""

    tasks: list[float]
    turned: float  # degrees that the mean features of old classes turned
    apart: float  # degrees between classes at the end
    am: float  # mean compatibility, percent

    @property
    def mean(self) -> float:
        return fmean(self.tasks)


def trial(options: dict[str, Any]) -> Outcome:
    """Train once, and measure on the held-back images."""
    options = {**DEFAULTS, **options}
    per, ema, spare = options.pop("per", 2000), options.pop("ema", None), options.pop("spare", None)
    spheres = {name: options.pop(name) for name in ("within", "by_task") if name in options}
    config = Config(**options).resolved()
    trainer = build.make_trainer(config, stream_of(config, per), torch.device("cpu"))
    assert isinstance(trainer.method, Replay)
    if spare:
        use_spare_slots(trainer.method, spare)
    if ema:
        use_average(trainer, ema)
    for name, probabilities in spheres.items():
        use_changing_sphere(trainer, probabilities, within=name == "within")
    trainer.run()
    at, slots = trainer.at, [task.slots for task in trainer.tasks]
    history = torch.stack(at.features)
    old = {slot for each in slots[:-1] for slot in each}
    angles = enumerate(metrics.drift(history, slots)[-1])
    turned = [angle for slot, angle in angles if slot in old and angle is not None]
    apart = metrics.separation(history, slots)[-1]
    known = compatibility.summary(at.galleries.single, at.galleries.means)
    return Outcome(at.accuracies[-1], fmean(turned), apart or math.nan, known["am"] if known else math.nan)


def main() -> None:
    torch.set_num_threads(1)
    hardware.keep_freed_memory()
    shift = functools.partial(augment.crop, padding=1, flip=False)  # one pixel of 16 is two of 32
    own = {"pixel": shift, "affine": affine, "affine-half": half(affine), "pixel-half": half(shift)}
    for name, function in own.items():
        augment.register(name)(function)
    for text in sys.argv[1:]:
        began = time.perf_counter()
        options = json.loads(text)
        seeds, first = options.pop("seeds", 1), options.get("seed", DEFAULTS["seed"])
        found = [trial({**options, "seed": first + each}) for each in range(seeds)]
        means = [each.mean for each in found]
        spread = f" ± {pstdev(means):.2f}" if seeds > 1 else ""
        tasks = [round(fmean(column)) for column in zip(*(each.tasks for each in found))]
        turned, apart, am = (fmean(getattr(each, name) for each in found) for name in ("turned", "apart", "am"))
        print(f"{fmean(means):.2f}{spread}  {tasks}  turned {turned:.0f} of {apart:.0f}  AM {am:.1f}  "
              f"{time.perf_counter() - began:.0f} s  {text}", flush=True)


if __name__ == "__main__":
    main()
