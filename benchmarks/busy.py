"""Images per second on an idle machine and beside busy processes, by how OpenMP's threads wait.

    python benchmarks/busy.py                       # LeNet, MLP and ResNet56; about three minutes
    python benchmarks/busy.py --seconds 2 --backbones lenet

Each measurement is a process of its own: `holdfast` imports with passive waiting, `active` is OpenMP's default, `one
thread` needs no waiting. The busy processes are one per core, each in an endless loop.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys

from rich.console import Console
from rich.table import Table

MODES = {
    "holdfast (passive)": {},
    "active": {"OMP_WAIT_POLICY": "ACTIVE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
STEP = """
import sys, time
import holdfast
import torch
from holdfast.data.dataset import Dataset
from holdfast.learning.streams import split
from holdfast.randomness import generator
from holdfast.runs.build import make_trainer
from holdfast.runs.config import Config
from holdfast import hardware

backbone, seconds = sys.argv[1], float(sys.argv[2])
hardware.keep_freed_memory()
hardware.use_threads(None)
name = "split-cifar10" if backbone == "resnet56" else "split-mnist"
channels = 3 if backbone == "resnet56" else 1
images = torch.randint(256, (2000, channels, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
labels = torch.arange(2000) % 10
data = Dataset("made up", images, labels, images[:100], labels[:100], tuple("0123456789"), (0.5,) * channels,
               (0.25,) * channels)
trainer = make_trainer(Config(name, backbone=backbone, epochs=1), split(data, 2, generator=generator(0, "stream")),
                       torch.device("cpu"))
trainer.learner.train()
task = trainer.tasks[0]
trainer.method.begin_task(task)
batch = task.train.batch(torch.arange(128))
trainer.method.observe(*batch)
began, steps = time.perf_counter(), 0
while time.perf_counter() - began < seconds:
    trainer.method.observe(*batch)
    steps += 1
print(128 * steps / (time.perf_counter() - began))
"""


def spin() -> None:
    while True:
        pass


def speed(backbone: str, seconds: float, settings: dict[str, str]) -> float:
    """Return images per second of a process of its own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
    done = subprocess.run(
        [sys.executable, "-c", STEP, backbone, str(seconds)], env={**kept, **settings}, capture_output=True, text=True,
        check=True,
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", default="lenet,mlp,resnet56")
    parser.add_argument("--seconds", type=float, default=5.0, help="per measurement")
    options = parser.parse_args()
    console = Console(width=110)
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: trust this only if the load is well below 1")
    table = Table("images/s", *(f"{load}, {mode}" for load in ("idle", "busy") for mode in MODES))
    for backbone in options.backbones.split(","):
        cells = [speed(backbone, options.seconds, settings) for settings in MODES.values()]
        others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(os.cpu_count() or 1)]
        for each in others:
            each.start()
        cells += [speed(backbone, options.seconds, settings) for settings in MODES.values()]
        for each in others:
            each.kill()
        table.add_row(backbone, *(f"{cell:,.0f}" for cell in cells))
    console.print(table)


if __name__ == "__main__":
    main()
