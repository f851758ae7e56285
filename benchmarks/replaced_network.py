"""Replace the network by a better one while the search index stays: the second scenario of Biondi et al. (2024).

    python benchmarks/replaced_network.py        # a table, some minutes of one core

An MLP learns the first three tasks of split-mnist by replay, and puts each task's vectors into an index. Then a LeNet
replaces it: it was trained on the same six digits by somebody else, from another start. It goes on with the last two
tasks. Nothing in the index is computed again. The latest model's queries search it, beside an index rebuilt by that model.

Both networks share nothing but the head's fixed vertices. A trainable head has rows of its own in each network, so it is
given an embedding of the same width, and the same rows at the start, which is more than two networks usually share.
Small images and held-back queries, as in recipe_trials.py.
"""

from __future__ import annotations

import dataclasses
from statistics import fmean

import torch
from recipe_trials import stream_of
from torch import Tensor

from holdfast import hardware
from holdfast.learning import compatibility
from holdfast.learning.learner import Learner
from holdfast.learning.streams import Samples, Stream, Task
from holdfast.learning.training import Trainer
from holdfast.runs import build
from holdfast.runs.config import Config

SEEDS = (0, 1, 2)
FIRST = 3  # tasks that the first network learns
HEADS = {
    "trainable, preallocated": {"head": "preallocated", "embedding": 9},
    "simplex": {"head": "simplex"},
    "simplex, sphere p = 0.99": {"head": "simplex", "vertex_probability": 0.99},
    "simplex, strong recipe": {"head": "simplex", "balance": True, "distill": "features"},
    "simplex, strong recipe, sphere p = 0.99": {
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


def taught(config: Config, stream: Stream, tasks: tuple[Task, ...], rows: Tensor | None) -> Trainer:
    """Return a trainer of these tasks; a trainable head starts from these rows."""
    numbered = tuple(dataclasses.replace(task, index=index) for index, task in enumerate(tasks))
    trainer = build.make_trainer(config.resolved(), dataclasses.replace(stream, tasks=numbered), torch.device("cpu"))
    head = trainer.learner.head
    if rows is not None and hasattr(head, "rows"):
        head.rows.weight.data.copy_(rows)
    return trainer


def vectors(learner: Learner, tasks: tuple[Task, ...]) -> tuple[Tensor, Tensor, Tensor]:
    return compatibility.embed(learner, tasks, classes=10)


def trial(options: dict[str, object], seed: int) -> tuple[float, float, float, float]:
    """Return the accuracy at the end, and what a search finds: in the kept index, in its oldest half, in a rebuilt one."""
    first = Config("split-mnist", backbone="mlp", memory=100, epochs=3, seed=seed, **options)  # type: ignore[arg-type]
    second = dataclasses.replace(first, backbone="lenet", seed=seed + 100)
    stream = stream_of(first.resolved(), 2000)
    tasks, kept = stream.tasks, []
    rows = None
    old = taught(first, stream, tasks[:FIRST], None)
    if hasattr(old.learner.head, "rows"):
        rows = old.learner.head.rows.weight.detach().clone()
    for task in range(FIRST):  # one task at a time, to fill the index between them
        old.tasks = old.tasks[: task + 1] if task == 0 else tuple(
            dataclasses.replace(each, index=index) for index, each in enumerate(tasks[: task + 1]))
        old.run()
        kept.append(vectors(old.learner, tasks[task : task + 1])[1])
    new = taught(second, stream, (merged(tasks[:FIRST]), *tasks[FIRST:]), rows)
    every = new.tasks
    new.tasks = every[:1]
    new.run()
    for index in range(FIRST, len(tasks)):
        new.tasks = every[: index - FIRST + 2]
        new.run()
        kept.append(vectors(new.learner, tasks[index : index + 1])[1])
    queries, rebuilt, slots = vectors(new.learner, tasks)
    index = torch.cat(kept)
    found = queries.float() @ index.float().T
    right = slots[found.argmax(1)] == slots
    before = torch.isin(slots, torch.tensor([slot for task in tasks[:FIRST] for slot in task.slots]))
    accuracy = fmean(new.at.accuracies[-1][:1] * FIRST + new.at.accuracies[-1][1:])
    return (accuracy, 100 * float(right.double().mean()), 100 * float(right[before].double().mean()),
            compatibility.search(queries, rebuilt, slots)[0])


def main() -> None:
    torch.set_num_threads(1)
    hardware.keep_freed_memory()
    print("| head | accuracy | search in the kept index | its old classes | in a rebuilt index |\n|---|--:|--:|--:|--:|")
    for name, options in HEADS.items():
        numbers = [fmean(column) for column in zip(*(trial(options, seed) for seed in SEEDS))]
        print(f"| {name} | " + " | ".join(f"{number:.1f}" for number in numbers) + " |", flush=True)


if __name__ == "__main__":
    main()
