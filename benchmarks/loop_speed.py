"""holdfast's loop against the bare forward, backward and step on the same tensors; its last task against its second.

    python benchmarks/loop_speed.py                          # LeNet, one thread; also --backbone mlp, resnet56, ...
    python benchmarks/loop_speed.py --backbone resnet56 --steps 4 --compile    # holdfast compiled, the bare loop not
    python benchmarks/loop_speed.py --at-once                # two runs at once, on two cores, against one by one

Blocks of steps of the two loops, and of a copy of the run that has only learned two tasks, alternate in one process,
so that whatever else the machine does hits all alike; ratios are of the blocks of a round, and their median is printed
with its quartiles. With --at-once the blocks are of processes that wait for their turn: two runs of one thread at once,
the same two one after the other, and one run of two threads taking two blocks.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import recording
import turns
from holdfast import hardware
from holdfast.data.dataset import Dataset
from holdfast.learning.streams import split
from holdfast.learning.training import Trainer
from holdfast.randomness import generator
from holdfast.runs.build import make_trainer
from holdfast.runs.config import Config


def made_up(shape: tuple[int, int, int], samples: int) -> Dataset:
    """Random images of ten classes: speed does not depend on what is in them."""
    g = generator(0, "speed")
    images = torch.randint(256, (samples, *shape), generator=g, dtype=torch.uint8)
    labels = torch.arange(samples) % 10
    mean, std = (0.5,) * shape[0], (0.25,) * shape[0]
    return Dataset("made up", images, labels, images[:500], labels[:500], tuple("0123456789"), mean, std)


def replaying_trainer(backbone: str, steps: int) -> Trainer:
    """A trainer whose tasks after the first have exactly `steps` steps of 64 new + 64 remembered samples."""
    colour = backbone.startswith(("resnet", "wrn"))
    name, shape = ("split-cifar10", (3, 32, 32)) if colour else ("split-mnist", (1, 32, 32))
    config = Config(name, backbone=backbone, memory=1100, epochs=1).resolved()  # colour is cropped and flipped as well
    stream = split(made_up(shape, 5 * 64 * steps), 2, generator=generator(0, "stream"))
    return make_trainer(config, stream, torch.device("cpu"))


def learn(trainer: Trainer, tasks: int) -> None:
    """The next `tasks` tasks, without a test."""
    trainer.learner.train()
    for task in trainer.tasks[trainer.at.task : trainer.at.task + tasks]:
        trainer.method.begin_task(task)
        trainer._epoch(task)
        trainer.method.end_task(task)
        trainer.at.task += 1


def block(trainer: Trainer, clock: recording.Clock) -> float:
    """The epoch of the task that was learned last once more, as holdfast does it."""
    trainer.at.order = trainer.at.losses = None
    began = clock()
    trainer._epoch(trainer.tasks[trainer.at.task - 1])
    return clock() - began


def bare_block(
    trainer: Trainer, batch: tuple[torch.Tensor, torch.Tensor], steps: int, clock: recording.Clock
) -> float:
    """The bare loop: the same network, optimizer and numbers, inputs ready as normalised floats."""
    learner, optimizer = trainer.learner, trainer.method.optimizer
    x, slots = batch
    began = clock()
    for _ in range(steps):
        loss = learner.head.loss(learner.backbone(x), slots)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return clock() - began


class Run:
    """A run of its own, for a process of its own."""

    def __init__(self, backbone: str, steps: int, threads: int) -> None:
        torch.set_num_threads(threads)
        hardware.keep_freed_memory()
        self.trainer = replaying_trainer(backbone, steps)
        learn(self.trainer, len(self.trainer.tasks))

    def block(self) -> None:
        block(self.trainer, time.perf_counter)


def at_once(backbone: str, steps: int, rounds: int) -> list[recording.Row]:
    """Two blocks in three ways, in turn: what the sweep's default, one thread a run, is chosen by."""
    runs = [turns.Apart(Run, backbone, steps, threads) for threads in (1, 1, 2)]
    for run in runs:
        run.wait()

    def seconds(*together: list[turns.Apart]) -> float:
        began = time.perf_counter()
        for turn in together:
            for run in turn:
                run.begin("block")
            for run in turn:
                run.wait()
        return time.perf_counter() - began

    one, other, wide = runs
    times = [
        (seconds([one, other]), seconds([one], [other]), seconds([wide], [wide]))
        for _ in track(range(rounds), description="blocks")
    ]
    for run in runs:
        run.stop()
    table = Table("two runs", "images/s", "at once is faster by", title=f"{backbone}, torch {torch.__version__}")
    names = ("at once, one thread each", "one after the other, one thread", "one after the other, two threads")
    rows = []
    for name, column in zip(names, zip(*times)):
        ratios = [taken / row[0] for taken, row in zip(column, times)]
        speeds = [2 * 128 * steps / taken for taken in column]
        table.add_row(name, f"{statistics.median(speeds):,.0f}", recording.spread(ratios))
        rows.append(recording.row(backbone, name, "images/s", speeds))
        rows.append(recording.row(backbone, f"at once / {name}", "ratio", ratios))
    Console().print(table)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="lenet")
    parser.add_argument("--steps", type=int, default=20, help="steps a block")
    parser.add_argument("--rounds", type=int, default=15, help="pairs of blocks")
    recording.add_clock(parser)
    parser.add_argument("--compile", action="store_true", help="holdfast's backbone, not the bare loop's")
    parser.add_argument("--at-once", action="store_true", help="two runs at once against one after the other")
    recording.add_option(parser)
    options = parser.parse_args()
    if options.at_once:
        if options.cpu_time:
            parser.error("--cpu-time is for one run")
        rows = at_once(options.backbone, options.steps, options.rounds)
        return recording.write(options, __file__, rows, clock="wall", threads=2)
    clock = recording.started(options, parser)
    hardware.keep_freed_memory()
    trainer = replaying_trainer(options.backbone, options.steps)
    learn(trainer, 2)
    early = copy.deepcopy(trainer)
    for each in (early, trainer):
        if options.compile:
            each.learner.compile_for(each.batch)
    learn(trainer, len(trainer.tasks) - 2)  # fills the memory, and warms everything up
    block(early, clock)

    learner, memory, task = trainer.learner, trainer.method.memory, trainer.tasks[-1]
    assert memory is not None
    images, slots = task.train.batch(torch.arange(64))
    x = learner.normalise(torch.cat([images, memory.images[:64]]))
    ready = (x, torch.cat([slots, memory.slots[:64]]))

    times = [
        (bare_block(trainer, ready, options.steps, clock), block(trainer, clock), block(early, clock))
        for _ in track(range(options.rounds), description="blocks")
    ]
    bare, ours = ([128 * options.steps / taken for taken in column] for column in list(zip(*times))[:2])
    shares = [bare / ours for bare, ours, _ in times]
    growth = [last / second for _, last, second in times]
    how = ", holdfast compiled" if options.compile else ""
    table = Table(title=f"{options.backbone}, {options.threads} thread(s){how}, torch {torch.__version__}")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("bare loop, images/s (median)", f"{statistics.median(bare):,.0f}")
    table.add_row("holdfast, images/s (median)", f"{statistics.median(ours):,.0f}")
    table.add_row("share of the bare loop reached", recording.spread(shares, "{:.1%}"))
    table.add_row("step of the last task / of the second", recording.spread(growth))
    Console().print(table)
    rows = [
        recording.row(options.backbone, what, unit, values, compiled=options.compile, threads=options.threads)
        for what, unit, values in (
            ("bare loop", "images/s", bare),
            ("holdfast", "images/s", ours),
            ("holdfast / bare loop", "ratio", shares),
            ("step of the last task / of the second", "ratio", growth),
        )
    ]
    recording.write(options, __file__, rows)


if __name__ == "__main__":
    main()
