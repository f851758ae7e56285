"""The 2-D feature figure: a fixed polygon against a trainable head, both learning class after class."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from . import data, experiment, files, randomness
from .benchmarks import BENCHMARKS
from .config import Config
from .errors import BadConfig
from .metrics import degrees
from .report.feature_plots import write_pictures
from .streams import Stream, shortened, split_sizes
from .training import Trainer, Watcher

SHOWN = 40  # test samples a class in the picture and the record; every number is of the whole test set
HEADS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fixed polygon", {"head": "polygon"}),
    ("trainable", {"head": "preallocated", "embedding": 2}),
)


def feature_figure(
    out: Path,
    *,
    start: int = 6,
    add: int = 3,
    epochs: int | None = None,
    memory: int | None = None,
    seed: int = 0,
    data_root: Path | None = None,
    dataset: str = "mnist",
    device: str = "auto",
    quick: bool = False,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Learn `start` classes, then `add` more one at a time, with each head in two dimensions.

    Writes features.json (the record, from which a report draws it), .svg, .png and .gif into `out`. Stopped
    at any moment, the same call goes on where it was."""
    benchmark = next((b for b in BENCHMARKS.values() if b.dataset == dataset and b.kind == "split"), None)
    if benchmark is None:
        known = sorted({b.dataset for b in BENCHMARKS.values() if b.kind == "split"})
        raise BadConfig(f"No benchmark is made of {dataset!r}; choose one of {', '.join(known)}.")
    loaded = data.load(dataset, data_root)
    generator = randomness.generator(seed, "stream")
    stream = split_sizes(loaded, [start] + [1] * add, generator=generator, name=f"features-{start}+{add}-{dataset}")
    slots = len(loaded.classes)
    common: dict[str, Any] = {"epochs": epochs, "memory": memory, "seed": seed, "quick": quick, "slots": slots}
    configs = [(title, Config(benchmark.name, **common, **fields).resolved()) for title, fields in HEADS]
    if quick:
        stream = shortened(stream, experiment.QUICK_SAMPLES, randomness.generator(seed, "quick"))
    place = experiment.choose_device(device)
    work = [_Work(title, config, stream, out) for title, config in configs]
    heads = [each.done(place, watcher or Watcher()) for each in work]
    full = configs[0][1]
    record = {
        "kind": "features", "format": 1, "dataset": dataset, "start": start, "add": add, "epochs": full.epochs,
        "memory": full.memory, "seed": seed, "quick": quick, "labels": list(stream.labels), "heads": heads,
        "environment": experiment.environment(place),
    }
    files.write_whole(out / "features.json", files.dumps(record).encode())
    write_pictures(record, out)
    for each in work:
        shutil.rmtree(each.folder.path)
    return record


@dataclass(frozen=True)
class _Work:
    """One head's run, in a folder of its own until the figure is made."""

    title: str
    config: Config
    stream: Stream
    out: Path

    @property
    def folder(self) -> experiment.RunFolder:
        return experiment.RunFolder(self.out / f"{self.stream.name}-{self.config.name}")

    def done(self, device: torch.device, watcher: Watcher) -> dict[str, Any]:
        """Train to the end, a frame after each task, and say how far everything turned."""
        with self.folder.lock():
            kept = self.folder.path / "frames.json"
            frames: list[dict[str, Any]] = files.read_json(kept) if kept.exists() else []

            def seen(task: dict[str, Any]) -> None:
                del frames[task["task"] - 1 :]
                frames.append(frame(trainer, task["task"]))
                files.write_json(kept, frames)
                watcher.task(task)

            trainer = experiment.make_trainer(self.config, self.stream, device, replace(watcher, task=seen))
            experiment.restore(trainer, self.folder)
            trainer.save = lambda trainer: experiment.save(trainer, self.folder)
            trainer.run()
        about = {"title": self.title, "head": self.config.head, "config": self.config.to_json()}
        return {**about, **moves(trainer, frames)}


@torch.no_grad()
def frame(trainer: Trainer, tasks: int) -> dict[str, Any]:
    """What the plane looks like now: some test features of each class, and all of the head's directions."""
    learner, device = trainer.learner, trainer.learner.shift.device
    chosen = randomness.generator(0, "features shown")
    seen: list[int] = []
    clouds: list[Any] = []
    right = total = 0
    for task in trainer.tasks[:tasks]:
        parts = [learner.embed_frozen(task.test.batch(rows)[0]) for rows in
                 torch.arange(len(task.test), device=device).split(500)]
        points = torch.cat(parts)
        right += int((learner.head.nearest(points) == task.test.slots).sum())
        total += len(points)
        for slot in task.slots:
            own = points[task.test.slots == slot].cpu()
            few = own[torch.randperm(len(own), generator=chosen)[:SHOWN]]
            seen.append(slot)
            clouds.append(_rounded(few))
    weights = learner.head.directions(torch.arange(learner.head.slots, device=device)).cpu()
    return {"seen": seen, "clouds": clouds, "weights": _rounded(weights), "accuracy": round(100 * right / total, 2)}


def moves(trainer: Trainer, frames: list[dict[str, Any]]) -> dict[str, Any]:
    """How many degrees each class turned: in each step (in its frame), and from when it was learned to the end.

    `features` is the direction of a class's mean test feature, `weights` that of its row of the head."""
    at, classes = trainer.at, range(len(trainer.stream.labels))
    learned = {slot: task.index for task in trainer.tasks for slot in task.slots}
    turned: dict[str, Any] = {}
    for name, history in (("features", at.features), ("weights", at.directions)):

        def angle(slot: int, before: int, after: int, history: list[torch.Tensor] = history) -> float:
            return round(float(degrees(history[before][slot], history[after][slot])), 3)

        for step, each in enumerate(frames):
            each[f"{name}_moved"] = [angle(s, step - 1, step) if learned[s] < step else None for s in classes]
        last = len(frames) - 1
        turned[f"{name}_turned"] = [angle(s, learned[s], last) if learned[s] < last else None for s in classes]
    return {"frames": frames, **turned}


def _rounded(points: torch.Tensor) -> list[list[float]]:
    """Enough digits for a picture."""
    return [[round(float(x), 3), round(float(y), 3)] for x, y in points]
