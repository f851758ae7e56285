"""Train the 2-D feature figure: a fixed polygon and a trainable head, both learning one class after another."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .. import data, files, hardware, randomness
from ..errors import BadConfig
from ..learning.metrics import degrees
from ..learning.streams import Stream, shortened, split_sizes
from ..learning.training import Trainer, Watcher
from ..runs import build, environment, experiment
from ..runs.benchmarks import BENCHMARKS
from ..runs.config import Config
from ..runs.folder import RunFolder
from .feature_plots import write_pictures

SHOWN = 40  # test samples per class in the figure and the record; the numbers use the whole test set
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
    data_root: Path | str | None = None,
    dataset: str = "mnist",
    device: str = "auto",
    quick: bool = False,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Learn `start` classes, then `add` more one at a time, with each head in two dimensions.

    Writes features.json (the record for a report), .svg, .png and .gif into `out`. After an interruption the same
    call resumes."""
    benchmark = next((b for b in BENCHMARKS.values() if b.dataset == dataset and b.kind == "split"), None)
    if benchmark is None:
        known = sorted({b.dataset for b in BENCHMARKS.values() if b.kind == "split"})
        raise BadConfig(f"No split benchmark uses the data set {dataset!r}; choose one of {', '.join(known)}.")
    loaded = data.load(dataset, data_root)
    generator = randomness.generator(seed, "stream")
    stream = split_sizes(loaded, [start] + [1] * add, generator=generator, name=f"features-{start}+{add}-{dataset}")
    slots = len(loaded.classes)
    common: dict[str, Any] = {"epochs": epochs, "seed": seed, "quick": quick, "slots": slots}
    common |= {} if memory is None else {"memory": memory}
    configs = [(title, Config(benchmark.name, **common, **fields).resolved()) for title, fields in HEADS]
    if quick:
        stream = shortened(stream, build.QUICK_SAMPLES, randomness.generator(seed, "quick"))
    place = hardware.choose_device(device)
    work = [_Work(title, config, stream, out) for title, config in configs]
    heads = [each.done(place, watcher or Watcher()) for each in work]
    full = configs[0][1]
    record = {
        "kind": "features", "format": 1, "dataset": dataset, "start": start, "add": add, "epochs": full.epochs,
        "memory": full.get("memory"), "seed": seed, "quick": quick, "labels": list(stream.labels), "heads": heads,
        "environment": environment.environment(place),
    }
    files.write_whole(out / "features.json", files.dumps(record).encode())
    write_pictures(record, out)
    for each in work:
        shutil.rmtree(each.folder.path)
    return record


@dataclass(frozen=True)
class _Work:
    """The run of one head, in its own folder until the figure is finished."""

    title: str
    config: Config
    stream: Stream
    out: Path

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.out / f"{self.stream.name}-{self.config.name}")

    def done(self, device: torch.device, watcher: Watcher) -> dict[str, Any]:
        """Train to the end with one frame per task; return the frames and the angles."""
        with self.folder.lock():
            kept = self.folder.path / "frames.json"
            frames: list[dict[str, Any]] = files.read_json(kept) if kept.exists() else []

            def seen(task: dict[str, Any]) -> None:
                del frames[task["task"] - 1 :]
                frames.append(frame(trainer, task["task"]))
                files.write_json(kept, frames)
                watcher.task(task)

            trainer = build.make_trainer(self.config, self.stream, device, replace(watcher, task=seen))
            experiment.restore(trainer, self.folder, self.config.hash)
            trainer.save = lambda trainer: experiment.save(trainer, self.folder, self.config.hash)
            trainer.run()
        about = {"title": self.title, "head": self.config.head, "config": self.config.to_json()}
        return {**about, **moves(trainer, frames)}


@torch.no_grad()
def frame(trainer: Trainer, tasks: int) -> dict[str, Any]:
    """Return the current frame: some test features of each class, and all directions of the head."""
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
    """Add to each frame how many degrees each class turned in that step; return this and the totals until the end.

    `features` is the direction of a class's mean test feature, `weights` the direction of its row in the head."""
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
    """Round points to the precision of a figure."""
    return [[round(float(x), 3), round(float(y), 3)] for x, y in points]
