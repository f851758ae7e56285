"""holdfast against Avalanche's replay: images a second, peak memory, and the time of a step task by task.

    python -m venv avalanche && avalanche/bin/pip install torch==2.13.0 torchvision==0.28.0 avalanche-lib==0.6.0
    python benchmarks/against_avalanche.py --avalanche-python avalanche/bin/python                     # LeNet
    python benchmarks/against_avalanche.py --avalanche-python avalanche/bin/python --backbone mlp --samples 3840

Where torch is a build for CPUs that has no torchvision of its own, install torch==2.13.0 first, then the other two with
`--no-deps`, then what else avalanche-lib lists (`pip check` tells). Torchvision's compiled operators do not load there;
replay uses none of them, and the worker declares the two that its import looks for.

Both learn the same five tasks of two classes by the same network with Adam, 1100 remembered samples, 128 new samples a
step in the first task and 64 + 64 after it. Avalanche's images are bytes that each are made floats and normalised when
asked for, as its own SplitMNIST has them; its evaluator measures nothing; optimizer, memory format and what glibc does
with freed memory are the defaults; its LeNet is written as usual, the ReLU before the pooling (ours has it after: the
same values and gradients), and its head is a trainable linear layer where ours is the fixed simplex.
With --tuned it gets what is fastest: images that lie ready as normalised floats, channels last, a fused optimizer, and
holdfast's own module.

Workers are processes that stay; a block is one task, and blocks alternate between the teams, so that whatever else the
machine does hits all alike. A team of two takes the same block twice, at once. Ratios are of neighbouring blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import recording

TASKS, MEMORY, SHAPE = 5, 1100, (1, 32, 32)
IMAGES = 60_000  # as many as MNIST has, so that the peaks are those of a real run
Learn = Callable[[], tuple[int, int]]  # takes the next task; steps and images passed through the network


def made_up() -> tuple[Tensor, Tensor]:
    """Random images of ten classes: speed does not depend on what is in them."""
    images = torch.randint(256, (IMAGES, *SHAPE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return images, torch.arange(IMAGES) % 10


# The two sides; each worker process calls one of them.


def holdfast_run(data: tuple[Tensor, Tensor], backbone: str, samples: int, epochs: int, tuned: bool) -> Learn:
    """A run whose tasks have `samples` new images each."""
    from holdfast import hardware
    from holdfast.data.dataset import Dataset
    from holdfast.learning.streams import shortened, split
    from holdfast.learning.training import Watcher
    from holdfast.randomness import generator
    from holdfast.runs.build import make_trainer
    from holdfast.runs.config import Config

    hardware.keep_freed_memory()
    images, labels = data
    whole = Dataset("made up", images, labels, images[:500], labels[:500], tuple("0123456789"), (0.5,), (0.25,))
    stream = shortened(split(whole, 2, generator=generator(0, "stream")), samples, generator(0, "samples"))
    config = Config("split-mnist", backbone=backbone, memory=MEMORY, epochs=epochs).resolved()
    seen: list[int] = []
    trainer = make_trainer(config, stream, torch.device("cpu"), Watcher(step=seen.append))
    trainer.learner.train()

    def learn() -> tuple[int, int]:
        seen.clear()
        task = trainer.tasks[trainer.at.task]
        trainer.method.begin_task(task)
        remembered = config.batch - trainer.method.new_per_batch()
        for _ in range(epochs):
            trainer._epoch(task)
        trainer.method.end_task(task)
        trainer.at.task += 1
        return len(seen), sum(seen) + remembered * len(seen)

    return learn


class Images(torch.utils.data.Dataset):
    """Images in memory with the `targets` that Avalanche asks for; what is left to do to each is `transform`."""

    def __init__(self, images: Tensor, labels: Tensor, transform: Callable[[Tensor], Tensor]) -> None:
        self.images, self.targets, self.transform = images, labels.tolist(), transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.transform(self.images[row]), self.targets[row]


def avalanche_run(data: tuple[Tensor, Tensor], backbone: str, samples: int, epochs: int, tuned: bool) -> Learn:
    """The same run by Avalanche."""
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms") if not hasattr(torch.ops.torchvision, "nms") else ():
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from avalanche.benchmarks import class_incremental_benchmark
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.core import SupervisedPlugin
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
    from avalanche.training.supervised import Naive
    from torchvision.transforms import Normalize

    from holdfast import backbones
    from usual import UsualLeNet

    torch.manual_seed(0)
    images, labels = data
    if tuned:  # once for all, and kept for the next run
        images = _ready(images)
        transform: Callable[[Tensor], Tensor] = _same
    else:
        normalise = Normalize((0.5,), (0.25,))
        transform = lambda image: normalise(image.float() / 255)  # noqa: E731
    rows = torch.cat([(labels == label).nonzero()[: samples // 2, 0] for label in range(10)]).tolist()
    some = as_classification_dataset(Images(images, labels, transform)).subset(rows)
    stream = class_incremental_benchmark({"train": some}, class_order=range(10), num_experiences=TASKS).train_stream
    network = backbones.build(backbone, SHAPE) if tuned or backbone != "lenet" else UsualLeNet(SHAPE)
    model = nn.Sequential(network, nn.Linear(int(network.out_features), 10))  # type: ignore[arg-type]
    if tuned:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    seen: list[int] = []

    class Count(SupervisedPlugin):
        def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
            seen.append(len(strategy.mb_x))

    # `Replay` is this strategy with this plugin; spelled out, the first task may have batches of 128.
    strategy = Naive(
        model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.001, fused=tuned or None),
        criterion=nn.CrossEntropyLoss(), train_mb_size=128, train_epochs=epochs,
        plugins=[ReplayPlugin(MEMORY, batch_size=64, batch_size_mem=64), Count()], evaluator=EvaluationPlugin(),
    )
    experiences = iter(stream)

    def learn() -> tuple[int, int]:
        seen.clear()
        strategy.train(next(experiences))
        return len(seen), sum(seen)

    return learn


@cache
def _ready(images: Tensor) -> Tensor:
    return images.float().sub_(127.5).div_(63.75)


def _same(image: Tensor) -> Tensor:
    return image


SIDES = {"holdfast": holdfast_run, "avalanche": avalanche_run}


def peak() -> float:
    """The most this process has held so far, in MB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024 / 1e6


def serve(options: argparse.Namespace) -> None:
    """A worker: "anew" on its input begins a run, "task" learns the next task of it; each is answered by a line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    warnings.showwarning = lambda *args, **options: None  # Avalanche has one for itself, every task
    torch.set_num_threads(options.threads)
    torch.set_num_interop_threads(1)
    begin, data = SIDES[options.worker], made_up()
    learn = begin(data, options.backbone, 256, 1, options.tuned)  # a first task, to warm up
    learn()
    for line in sys.stdin:
        answer: dict[str, float] = {}
        if line.strip() == "anew":
            learn = begin(data, options.backbone, options.samples, options.epochs, options.tuned)
        else:
            began = time.perf_counter()
            steps, images = learn()
            answer = {"seconds": time.perf_counter() - began, "steps": steps, "images": images, "peak": peak()}
        print(json.dumps(answer), file=answers, flush=True)


# The one that compares them.


@dataclass
class Team:
    """Workers of one side that do the same at once."""

    side: str
    size: int
    threads: int
    workers: list[subprocess.Popen[str]] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)  # images a second of all together, block by block
    steps: list[float] = field(default_factory=list)  # seconds a step, likewise
    peak: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.side}, {self.size} x {self.threads} thread(s)"

    def start(self, python: str, words: list[str]) -> None:
        source = str(Path(__file__).resolve().parent.parent / "src")
        paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        given = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(self.threads)}
        command = [python, __file__, "--worker", self.side, "--threads", str(self.threads), *words]
        self.workers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=given)
            for _ in range(self.size)
        ]

    def do(self, order: str) -> list[dict[str, float]]:
        """Give an order to all and wait for all."""
        for worker in self.workers:
            assert worker.stdin is not None
            print(order, file=worker.stdin, flush=True)
        answers = []
        for worker in self.workers:
            assert worker.stdout is not None
            if not (line := worker.stdout.readline()):
                sys.exit(f"A worker of {self.name} has ended; what it said is above.")
            answers.append(json.loads(line))
        return answers

    def block(self) -> None:
        answers = self.do("task")
        self.speeds.append(sum(a["images"] for a in answers) / max(a["seconds"] for a in answers))
        self.steps.append(statistics.mean(a["seconds"] / a["steps"] for a in answers))
        self.peak = max(self.peak, *(a["peak"] for a in answers))


def show(teams: list[Team], title: str) -> list[tuple[str, str, list[float]]]:
    """Print the table and the ratios; give what is to be recorded: name, unit, values."""
    from rich.console import Console
    from rich.table import Table

    table = Table("team", "images/s", "peak MB a run", *[f"ms, task {t + 1}" for t in range(TASKS)], title=title)
    for team in teams:
        by_task = [f"{1000 * statistics.median(team.steps[t::TASKS]):.1f}" for t in range(TASKS)]
        table.add_row(team.name, f"{statistics.median(team.speeds):,.0f}", f"{team.peak:,.0f}", *by_task)
    console = Console(width=140)
    console.print(table)
    one, other, pair, other_pair = teams
    rows = [(team.name, "images/s", team.speeds) for team in teams]
    rows += [(f"{team.name}, peak of a run", "MB", [team.peak]) for team in teams]
    for ours, theirs in ((one, other), (pair, other), (pair, other_pair)):
        ratios = [a / b for a, b in zip(ours.speeds, theirs.speeds)]
        rows.append((f"{ours.name} / {theirs.name}", "ratio", ratios))
        console.print(f"{ours.name} / {theirs.name}: {recording.spread(ratios)}", highlight=False)
    growth = [last / first for first, last in zip(one.steps[1::TASKS], one.steps[TASKS - 1 :: TASKS])]
    told = ", ".join(f"{value:.2f}" for value in growth)
    console.print(f"{one.name}: a step of the last task / of the second, round by round: {told}", highlight=False)
    return [*rows, (f"{one.name}, step of the last task / of the second", "ratio", growth)]


def versions(python: str) -> dict[str, str]:
    """Of what the other interpreter has."""
    asked = "from importlib.metadata import version; print(version('avalanche-lib'), version('torch'))"
    told = subprocess.run([python, "-c", asked], capture_output=True, text=True)
    if told.returncode:
        sys.exit(f"{python} has no avalanche-lib: {told.stderr.strip().splitlines()[-1]}")
    avalanche, beside = told.stdout.split()
    return {"avalanche-lib": avalanche, "torch beside Avalanche": beside}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--avalanche-python", help="the interpreter of an environment that has avalanche-lib")
    parser.add_argument("--backbone", default="lenet", choices=["lenet", "mlp"])
    parser.add_argument("--samples", type=int, default=1280, help="new images a task")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="runs of five tasks each")
    parser.add_argument("--threads", type=int, default=2, help="of the runs that are alone")
    parser.add_argument("--tuned", action="store_true", help="Avalanche at its fastest: see above")
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    recording.add_option(parser)
    options = parser.parse_args()
    if options.worker:
        return serve(options)
    if not options.avalanche_python:
        sys.exit("Give --avalanche-python; how to make its environment is at the top of this file.")
    beside = versions(options.avalanche_python)
    teams = [Team("holdfast", 1, options.threads), Team("avalanche", 1, options.threads),
             Team("holdfast", 2, 1), Team("avalanche", 2, 1)]
    words = ["--backbone", options.backbone, "--samples", str(options.samples), "--epochs", str(options.epochs)]
    words += ["--tuned"] if options.tuned else []
    try:
        for team in teams:
            team.start(options.avalanche_python if team.side == "avalanche" else sys.executable, words)
        for _ in range(options.rounds):
            for team in teams:
                team.do("anew")
            for _ in range(TASKS):
                for team in teams:
                    team.block()
    finally:
        for team in teams:
            for worker in team.workers:
                worker.terminate()
    found = show(teams, f"{options.backbone}, {options.samples} new images a task, torch {torch.__version__}")
    rows = [recording.row(options.backbone, what, unit, values, tuned=options.tuned) for what, unit, values in found]
    recording.write(options, __file__, rows, clock="wall", threads=options.threads, versions=beside)


if __name__ == "__main__":
    main()
