"""A long life: `python soak.py TASKS [report]` learns as many tasks and prints what memory and steps cost.

Ten classes come again and again, two a task, so that whatever grows is a leak and not what was learned. What a run is
asked for does grow, a row of accuracies a task in memory and in each checkpoint: it is forgotten here after each task,
unless `report` is given.
"""

from __future__ import annotations

import gc
import json
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from conftest import make_tiny_stream, make_tiny_trainer
from steadfast import experiment, performance


def resident() -> float:
    """Kilobytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1024


def soak(tasks: int, folder: Path, report: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    performance.keep_freed_memory()
    five = make_tiny_stream(classes=10, classes_per_task=2, per_class=40)
    stream = replace(five, tasks=tuple(replace(five.tasks[i % 5], index=i) for i in range(tasks)))
    trainer = make_tiny_trainer(stream, backbone="mlp", epochs=1, batch=8, memory=40, policy="class")
    run, real = experiment.RunFolder(folder), trainer.method.observe
    memory: list[float] = []
    steps: list[float] = []
    here: list[float] = []

    def observe(*args: Any) -> Any:
        began = time.thread_time()
        loss = real(*args)
        here.append(time.thread_time() - began)
        return loss

    def save(_: Any) -> None:
        experiment.save(trainer, run)
        if not report:
            for rows in (trainer.at.records, trainer.at.accuracies, trainer.at.features, trainer.at.directions):
                rows.clear()
        gc.collect()
        memory.append(resident())
        steps.append(statistics.median(here))
        here.clear()

    trainer.method.observe, trainer.save = observe, save  # type: ignore[method-assign]
    trainer.run()
    first = tasks // 5  # the memory is full by then, and every allocator has what it needs
    x, y = np.arange(first, tasks), np.array(memory[first:])
    slope, _ = np.polyfit(x, y, 1)
    later = steps[first:]
    fifth = max(1, len(later) // 5)
    ratio = statistics.median(later[-fifth:]) / statistics.median(later[:fifth])
    return {"tasks": tasks, "slope": float(slope), "ratio": ratio, "grown": memory[-1] - memory[first],
            "resident": memory[-1]}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(soak(int(sys.argv[1]), Path(folder), "report" in sys.argv)))
