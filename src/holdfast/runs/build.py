"""Build the parts of a run from its config: stream, learner, method, trainer."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from .. import backbones, data, heads, randomness
from ..errors import BadConfig
from ..learning import distributed
from ..learning.learner import Learner
from ..learning.method import Method
from ..learning.optimizers import make_optimizer
from ..learning.streams import Stream, shortened, validated
from ..learning.training import Trainer, Watcher
from ..methods import METHODS
from .config import Config

QUICK_SAMPLES = 1000  # training samples per task of a quick run


def make_stream(config: Config, data_root: Path | str | None = None) -> Stream:
    """Split the benchmark's data into tasks; order, permutations and validation split depend on the run's seed."""
    benchmark = config.protocol
    stream = benchmark.stream(
        data.load(benchmark.dataset, data_root),
        generator=randomness.generator(config.seed, "stream"),
        classes_per_task=config.classes_per_task,
        tasks=config.tasks,
        order=config.order,
        validation=config.validation,
    )
    stream = validated(stream) if config.validation else stream
    for task in stream.tasks:
        if not len(task.test):
            raise BadConfig(f"Task {task.index + 1} of {stream.name} has no test samples: its accuracy is undefined.")
    return shortened(stream, QUICK_SAMPLES, randomness.generator(config.seed, "quick")) if config.quick else stream


def make_learner(config: Config, stream: Stream, device: torch.device) -> Learner:
    """Build backbone and head, initialised with the run's seed."""
    config = config.resolved()
    with randomness.initialising(config.seed, "weights"):
        backbone = backbones.build(str(config.backbone), stream.shape, config.options_of("backbone"))
        width = int(backbone.out_features)  # type: ignore[arg-type]
        check_room(config, width)
        head = heads.build(str(config.head), width, config.slots or 0, config.options_of("head"))
    learner = Learner(backbone, head, stream.shape, stream.mean, stream.std)
    return learner.use(device, torch.channels_last, config.precision)


def check_room(config: Config, width: int) -> None:
    """Raise BadConfig if the head's weights, gradients and Adam's moments exceed this machine's memory."""
    with torch.device("meta"):
        head = heads.build(str(config.head), width, config.slots or 0, config.options_of("head"))
    need = 16 * sum(parameter.numel() for parameter in head.parameters())
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else need
    if need > room:
        raise BadConfig(
            f"A {config.head} of {config.slots:,} slots on {width} features takes {need / 1e9:,.0f} GB to train; this "
            f"machine has {room / 1e9:,.0f}. Lower slots, or choose the head 'cube': 64 numbers hold 2^64 classes."
        )


def make_method(config: Config, learner: Learner, generator: torch.Generator) -> Method:
    """Build the method with its optimizer and options."""
    config = config.resolved()
    optimizer = make_optimizer(str(config.optimizer), config.lr or 0.0, learner)
    return METHODS[config.method](
        learner, optimizer, config.options_of("method"), generator, batch=config.batch, augment=str(config.augment)
    )


def make_trainer(config: Config, stream: Stream, device: torch.device, watcher: Watcher | None = None) -> Trainer:
    """Build the trainer of a run, ready for its first step."""
    config = config.resolved()
    learner = make_learner(config, stream, device).spread(distributed.ranks())
    watcher = replace(watcher or Watcher(), stop=distributed.together((watcher or Watcher()).stop))
    generator = randomness.generator(config.seed, "training", device)
    method = make_method(config, learner, generator)
    return Trainer(
        learner, method, stream.to(device), epochs=config.epochs or 1, generator=generator, watcher=watcher,
        schedule=[int(epoch) for epoch in config.schedule.split(",")] if config.schedule else (),
    )
