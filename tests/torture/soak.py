"""Learn many tasks: `python soak.py TASKS [report]` prints how memory and step time grew.

The same ten classes come again and again, two per task, so that growth is a leak. The reported results do grow, by one
row of accuracies per task: they are deleted after each task, unless `report` is given.
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
from holdfast import hardware
from holdfast.runs import experiment
from holdfast.runs.folder import RunFolder


def resident() -> float:
    """Return the kilobytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1024


def soak(tasks: int, folder: Path, report: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    hardware.keep_freed_memory()
    five = make_tiny_stream(classes=10, classes_per_task=2, per_class=40)
    stream = replace(five, tasks=tuple(replace(five.tasks[i % 5], index=i) for i in range(tasks)))
    trainer = make_tiny_trainer(stream, backbone="mlp", epochs=1, batch=8, memory=40, policy="class")
    run, real = RunFolder(folder), trainer.method.observe
    memory: list[float] = []
    steps: list[float] = []
    here: list[float] = []

    def observe(*args: Any) -> Any:
        began = time.thread_time()
        loss = real(*args)
        here.append(time.thread_time() - began)
        return loss

    def save(_: Any) -> None:
        experiment.save(trainer, run, "soak")
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
