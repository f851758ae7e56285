"""Peak memory of one GEM step where the paper ran out: ResNet56, 5600 remembered images, four old tasks.

    python benchmarks/gem_memory.py

Its memory is filled with noise: what it holds changes nothing about what a step costs.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from dataclasses import replace

import torch

from holdfast.learning.streams import Samples, Stream, Task
from holdfast.methods import gem
from holdfast.runs.build import make_learner, make_method
from holdfast.runs.config import Config

LIMIT = 4.0  # GB


def peak() -> float:
    """The most this process has held so far, in GB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", type=int, default=5600)
    parser.add_argument("--old-tasks", type=int, default=4)
    parser.add_argument("--chunk", type=int, default=gem.CHUNK, help="remembered samples a forward pass")
    parser.add_argument("--backbone", default="resnet56")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    gem.CHUNK = options.chunk

    config = Config("split-cifar100", method="gem", memory=options.memory, backbone=options.backbone).resolved()
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (options.memory, 3, 32, 32), generator=generator, dtype=torch.uint8)
    rows = torch.arange(options.memory)
    samples = Samples(images, rows, rows % 20)
    task = Task(0, tuple(range(20)), samples, samples)
    stream = Stream("noise", (task,), tuple(map(str, range(100))), (0.5,) * 3, (0.25,) * 3)
    method = make_method(config, make_learner(config, stream, torch.device("cpu")), generator)
    for index in range(options.old_tasks + 1):
        task = replace(task, index=index, slots=tuple(range(20 * index, 20 * index + 20)))
        task = replace(task, train=replace(samples, slots=samples.slots + 20 * index))
        method.begin_task(task)
        if index < options.old_tasks:
            method.end_task(task)

    before, start = peak(), time.perf_counter()
    method.observe(*task.train.batch(torch.arange(config.batch)))
    seconds = time.perf_counter() - start
    assert method.memory is not None
    print(f"one step, {len(method.memory)} remembered images of {options.old_tasks} tasks, {options.chunk} a pass:")
    print(f"  {seconds:.1f} s; peak {peak():.2f} GB ({before:.2f} GB before the step); the limit is {LIMIT:g} GB")
    sys.exit(peak() > LIMIT)


if __name__ == "__main__":
    main()
