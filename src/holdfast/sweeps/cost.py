"""Estimate what a run costs: the images that pass through its network, times the time per image on this machine.

The measurement is a few training steps on random images, seconds for each network. An imagined machine, with its
published TFLOPS, takes the counted operations instead; that is an estimate and is marked as one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from statistics import median

import torch

from .. import data, hardware
from ..data.published import Entry
from ..errors import BadConfig
from ..hardware import Machine
from ..learning.learner import Learner
from ..learning.optimizers import make_optimizer
from ..learning.streams import Samples, Stream, Task
from ..runs import build
from ..runs.config import Config
from .survey import OPEN, Run, passes

SECONDS = 1.0  # of measuring per network, after a first step; at most STEPS steps
STEPS = 5
REACHED = 0.1  # share of a GPU's published peak that small networks reach


@dataclass(frozen=True)
class Imagined:
    """A machine that is not here: some GPUs with a published peak."""

    tflops: float
    gpus: int = 1

    @classmethod
    def read(cls, text: str) -> Imagined:
        """Read `19.5` or `19.5x8`: TFLOPS per GPU, and the number of GPUs."""
        peak, _, count = text.lower().partition("x")
        try:
            found = cls(float(peak), int(count or 1))
        except ValueError:
            found = cls(0.0)
        if not (0 < found.tflops < 1e6 and found.gpus > 0):
            raise BadConfig(f"--as-if is {text!r}; give the TFLOPS of a GPU, such as 19.5, or 19.5x8 for eight.")
        return found

    def __str__(self) -> str:
        return f"{self.gpus} GPU{'s' * (self.gpus > 1)} of {self.tflops:g} TFLOPS at {REACHED:.0%} of their peak"


def measure(runs: Iterable[Run], machine: Machine, imagined: Imagined | None = None) -> None:
    """Set the cost of every open run, in seconds of one worker from start to end."""
    for run in runs:
        if run.state in OPEN:
            run.cost = images(run.config) * _per_image(_network(run.config), machine, imagined)


def images(config: Config) -> float:
    """Return the images that pass forward and backward through a run's network; forward alone counts a third."""
    size, tests, _ = _sizes(config.protocol.dataset)
    tasks = config.phases()
    if config.protocol.kind == "permuted":  # every task has the whole data set
        size, tests = size * tasks, tests * tasks
    if config.quick:
        size = min(size, build.QUICK_SAMPLES * tasks)
    tested = tests * (tasks + 1) / 2  # after task t, the tests of all tasks up to t
    rehearsed = 2 * size - size / tasks  # half of each batch is from memory, but for the first task
    return (config.epochs or 1) * rehearsed * passes(config) + tested / 3


def _network(config: Config) -> Config:
    """Return a config that stands for all runs whose steps take the same time."""
    return Config(config.benchmark, backbone=config.backbone, slots=config.slots, precision=config.precision,
                  batch=config.batch).resolved()


@cache
def _sizes(dataset: str) -> tuple[int, int, tuple[int, ...]]:
    """Return the number of training and of test images, and an image's shape, without reading published data sets."""
    source = data.DATASETS.get(dataset)
    if isinstance(source, Entry):
        return source.count(source.train), source.count(source.test), source.shape
    whole = data.load(dataset)
    return len(whole.train_labels), len(whole.test_labels), tuple(whole.train_images.shape[1:])


@cache
def _per_image(config: Config, machine: Machine, imagined: Imagined | None) -> float:
    """Return the seconds of one image forward and backward, update included."""
    shape = _sizes(config.protocol.dataset)[2]
    device = torch.device("cpu") if imagined else hardware.choose_device(machine.device)
    slots = config.protocol.classes
    pixels = torch.randint(0, 256, (config.batch, *shape), dtype=torch.uint8, device=device)
    targets = torch.arange(config.batch, device=device) % slots
    samples = Samples(pixels, torch.arange(config.batch, device=device), targets)
    task = Task(0, tuple(range(slots)), samples, samples)
    stream = Stream("random", (task,), tuple(map(str, range(slots))), (0.5,) * shape[0], (0.25,) * shape[0])
    learner = build.make_learner(config, stream, device).train()
    learner.head.open(range(slots))
    if imagined is not None:
        return _operations(learner, pixels, targets) / config.batch / (imagined.tflops * 1e12 * REACHED)
    optimizer = make_optimizer("adam", 0.001, learner)
    with hardware.own_threads():
        hardware.use_threads(machine.threads)
        times: list[float] = []
        while len(times) < 2 or (sum(times[1:]) < SECONDS and len(times) <= STEPS):
            began = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            learner.head.loss(learner.features(pixels), targets).backward()
            optimizer.step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - began)
    return median(times[1:]) / config.batch


def _operations(learner: Learner, pixels: torch.Tensor, targets: torch.Tensor) -> float:
    """Count the floating-point operations of one step."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        learner.head.loss(learner.features(pixels), targets).backward()
    return float(counter.get_total_flops())
