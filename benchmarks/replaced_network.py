"""Replace the network by a better one while the search index stays: the second scenario of Biondi et al. (2024).

    python benchmarks/replaced_network.py        # a table, some minutes of one core

An MLP learns the first three tasks of split-mnist by replay, and puts each task's vectors into an index. Then a LeNet
replaces it: it was trained on the same six digits by somebody else, from another start. It goes on with the last two
tasks. Nothing in the index is computed again. The latest model's queries search it, beside an index that this model
rebuilt.

Both networks share nothing but the head's fixed vertices. A trainable head has its own rows in each network. So it is
given an embedding of the same width, and the same rows at the start, which is more than two networks usually share.
Small images and held-back queries, as in recipe_trials.py.
"""

from __future__ import annotations

import dataclasses
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from holdfast import hardware
from holdfast.learning import compatibility
from holdfast.learning.streams import Samples, Stream, Task
from holdfast.learning.training import Trainer
from holdfast.runs import build
from holdfast.runs.config import Config
from recipe_trials import stream_of

SEEDS = (0, 1, 2)
FIRST = 3  # tasks that the first network learns
HEADS: dict[str, dict[str, Any]] = {
    "trainable, preallocated": {"head": "preallocated", "embedding": 9},
    "simplex": {"head": "simplex"},
    "simplex, sphere p = 0.99": {"head": "simplex", "vertex_probability": 0.99},
    "simplex, balance, distill features": {"head": "simplex", "balance": True, "distill": "features"},
    "simplex, balance, distill features, sphere p = 0.99": {
        "head": "simplex", "balance": True, "distill": "features", "vertex_probability": 0.99,
    },
}


def merged(tasks: tuple[Task, ...]) -> Task:
    """Return several tasks as one."""

    def joined(parts: list[Samples]) -> Samples:
        rows, slots = (torch.cat([getattr(part, name) for part in parts]) for name in ("rows", "slots"))
        return dataclasses.replace(parts[0], rows=rows, slots=slots)

    slots = tuple(slot for task in tasks for slot in task.slots)
    return Task(0, slots, joined([task.train for task in tasks]), joined([task.test for task in tasks]))


def trainer_of(config: Config, stream: Stream, tasks: tuple[Task, ...], rows: Tensor | None = None) -> Trainer:
    """Return a trainer of these tasks; a trainable head starts from these rows."""
    numbered = tuple(dataclasses.replace(task, index=index) for index, task in enumerate(tasks))
    trainer = build.make_trainer(config.resolved(), dataclasses.replace(stream, tasks=numbered), torch.device("cpu"))
    if rows is not None:
        trainer.learner.head.rows.weight.data.copy_(rows)
    return trainer


def learn_next(trainer: Trainer, tasks: tuple[Task, ...]) -> None:
    """Learn one more of the tasks."""
    trainer.tasks = tasks[: trainer.at.task + 1]
    trainer.run()


def gallery(trainer: Trainer, task: Task) -> Tensor:
    """Return the vectors of a task's gallery as the model puts them now."""
    return compatibility.embed(trainer.learner, [task], classes=10)[1]


def trial(options: dict[str, Any], seed: int) -> tuple[float, float, float, float]:
    """Return the accuracy at the end, and what a search finds: in the kept index, its old classes, a rebuilt index."""
    first = Config("split-mnist", backbone="mlp", memory=100, epochs=3, seed=seed, **options)
    second = dataclasses.replace(first, backbone="lenet", seed=seed + 100)
    stream = stream_of(first.resolved(), 2000)
    old, index = trainer_of(first, stream, stream.tasks[:FIRST]), []
    rows = getattr(old.learner.head, "rows", None)
    rows = None if rows is None else rows.weight.detach().clone()
    known = old.tasks
    for task in stream.tasks[:FIRST]:
        learn_next(old, known)
        index.append(gallery(old, task))
    new = trainer_of(second, stream, (merged(stream.tasks[:FIRST]), *stream.tasks[FIRST:]), rows)
    known = new.tasks
    learn_next(new, known)
    for task in stream.tasks[FIRST:]:
        learn_next(new, known)
        index.append(gallery(new, task))
    queries, rebuilt, slots = compatibility.embed(new.learner, stream.tasks, classes=10)
    right = slots[(queries.float() @ torch.cat(index).float().T).argmax(1)] == slots
    before = torch.isin(slots, torch.tensor([slot for task in stream.tasks[:FIRST] for slot in task.slots]))
    merged_first, *others = new.at.accuracies[-1]
    return (fmean([merged_first] * FIRST + others), 100 * float(right.double().mean()),
            100 * float(right[before].double().mean()), compatibility.search(queries, rebuilt, slots)[0])


def main() -> None:
    torch.set_num_threads(1)
    hardware.keep_freed_memory()
    print("| head | accuracy | search in the kept index | its old classes | in a rebuilt index |")
    print("|---|--:|--:|--:|--:|")
    for name, options in HEADS.items():
        numbers = [fmean(column) for column in zip(*(trial(options, seed) for seed in SEEDS))]
        print(f"| {name} | " + " | ".join(f"{number:.1f}" for number in numbers) + " |", flush=True)


if __name__ == "__main__":
    main()
