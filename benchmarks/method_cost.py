"""What a step of each method costs, relative to plain fine-tuning.

    python benchmarks/method_cost.py

LeNet on 32x32 images, batch 128, in the second task, when penalties and memories are at work; random images, which
cost what real ones do. CPU time of one thread (`time.process_time`), so that other work on the machine counts less.
Every round takes one step of each method in turn, in shuffled order; a ratio is to fine-tuning's step in its round.
Goal: the penalty methods under 1.15.
"""

from __future__ import annotations

import argparse
import random
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import recording
from holdfast import randomness
from holdfast.learning.method import Method
from holdfast.learning.streams import Samples, Stream, Task
from holdfast.methods import METHODS
from holdfast.options import declared
from holdfast.runs import build
from holdfast.runs.config import Config

TASK = 1500  # samples


def make_stream() -> Stream:
    generator = randomness.generator(0, "benchmark")
    tasks = []
    for index in range(5):
        images = torch.randint(0, 256, (TASK, 1, 32, 32), dtype=torch.uint8, generator=generator)
        samples = Samples(images, torch.arange(TASK), 2 * index + torch.arange(TASK) % 2)
        tasks.append(Task(index, (2 * index, 2 * index + 1), samples, samples))
    return Stream("random", tuple(tasks), tuple("0123456789"), (0.1,), (0.2752,))


def ready(name: str, stream: Stream, backbone: str) -> Method:
    """The method a few steps into the second task."""
    wished = {"strength": 1e-3, "importance_samples": 128}  # small: only the step is timed
    known = {each.name for each in declared(METHODS.options(name))}
    heard = {key: value for key, value in wished.items() if key in known}
    config = Config("split-mnist", method=name, backbone=backbone, **heard).resolved()
    learner = build.make_learner(config, stream, torch.device("cpu"))
    method = build.make_method(config, learner, randomness.generator(0, "training"))
    learner.train()
    for task in stream.tasks[:2]:
        method.begin_task(task)
        for _ in range(3):
            step(method, task)
        if task.index == 0:
            method.end_task(task)
    return method


def step(method: Method, task: Task) -> float:
    """Seconds of one update."""
    batch = task.train.batch(torch.arange(method.new_per_batch()))
    began = time.process_time()
    method.observe(*batch)
    return time.process_time() - began


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=30)
    options.add_argument("--backbone", default="lenet")
    options.add_argument("methods", nargs="*", default=list(METHODS))
    recording.add_option(options)
    asked = options.parse_args()
    torch.set_num_threads(1)
    stream = make_stream()
    methods = {name: ready(name, stream, asked.backbone) for name in dict.fromkeys(["finetune", *asked.methods])}
    times = {name: np.zeros(asked.rounds) for name in methods}
    order = list(methods)
    for i in range(asked.rounds):
        random.Random(i).shuffle(order)
        for name in order:
            times[name][i] = step(methods[name], stream.tasks[1])
    table = Table("method", "ms a step", "relative to finetune", "middle half of the rounds")
    rows = []
    for name, taken in sorted(times.items(), key=lambda item: np.median(item[1])):
        ratio = recording.row(name, "step / finetune's", "ratio", list(taken / times["finetune"]))
        rows += [recording.row(name, "step", "ms", list(1000 * taken)), ratio]
        low, high = ratio["quartiles"]
        table.add_row(name, f"{1000 * np.median(taken):.1f}", f"{ratio['median']:.3f}", f"{low:.3f} to {high:.3f}")
    Console().print(table)
    recording.write(asked, __file__, rows, clock="cpu", threads=1)


if __name__ == "__main__":
    main()
