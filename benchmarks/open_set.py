"""Known or never seen? AUROC of the test images of the classes seen so far against those still to come.

After each task every test image is scored by how little it looks like any class seen: `empty`, the share of the
softmax on the slots still empty (which only a pre-allocated head has), `probability`, one minus the largest
probability among the classes seen, and `logit`, minus the largest logit among them. 100 is perfect, 50 is chance.
Prints a line of JSON a head: the AUROC in percent after each task but the last, which leaves nothing unseen.

    python benchmarks/open_set.py split-mnist --epochs 1 --share 0.2
    python benchmarks/open_set.py split-cifar10 --epochs 2 --share 0.2 --backbone lenet
"""

from __future__ import annotations

import argparse
import dataclasses
import json

import torch
from sklearn.metrics import roc_auc_score

from holdfast import data, randomness
from holdfast.heads.base import Head
from holdfast.learning import metrics
from holdfast.learning.learner import Learner
from holdfast.learning.streams import Stream
from holdfast.learning.training import Trainer, Watcher
from holdfast.methods import recipes
from holdfast.runs import build
from holdfast.runs.benchmarks import BENCHMARKS
from holdfast.runs.config import Config

HEADS = (("simplex", None), ("simplex", 100), ("expanding", None))


@torch.no_grad()
def scores(head: Head, embedded: torch.Tensor) -> dict[str, torch.Tensor]:
    """(n, dim) to how novel each sample is, by each score."""
    known = head.outputs(embedded, head.seen).double()
    found = {"probability": 1 - known.softmax(1).amax(1), "logit": -known.amax(1)}
    if head.softmax_over == "all" and len(head.seen) < head.slots:
        empty = sorted({*range(head.slots)} - {*head.seen.tolist()})
        others = head.outputs(embedded, torch.tensor(empty)).double().logsumexp(1)
        found["empty"] = others - known.logsumexp(1)  # the log of the odds, in the same order as the share
    return found


def measure(learner: Learner, stream: Stream) -> dict[str, float]:
    """The AUROC of each score over all test images, now."""
    embedded = torch.cat([learner.embed_frozen(part) for task in stream.tasks
                          for part in task.test.batch(torch.arange(len(task.test)))[0].split(500)])
    slots = torch.cat([task.test.slots for task in stream.tasks])
    novel = ~torch.isin(slots, learner.head.seen)
    return {name: 100 * float(roc_auc_score(novel, score)) for name, score in scores(learner.head, embedded).items()}


def cut(stream: Stream, share: float) -> Stream:
    """The first `share` of each task's training samples (they are in random order of class)."""
    tasks = [
        dataclasses.replace(t, train=t.train.only(torch.arange(int(share * len(t.train))))) for t in stream.tasks
    ]
    return dataclasses.replace(stream, tasks=tuple(tasks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=["split-mnist", "split-fashion-mnist", "split-cifar10", "split-digits"])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--memory", type=int, default=500)
    parser.add_argument("--share", type=float, default=1.0, help="of the training images")
    parser.add_argument("--backbone", default="lenet")
    parser.add_argument("--recipe", default="paper", help="paper or strong")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", help="folder with the data sets")
    options = parser.parse_args()
    torch.set_num_threads(1)
    benchmark = BENCHMARKS[options.benchmark]
    full = benchmark.stream(
        data.load(benchmark.dataset, options.data), generator=randomness.generator(options.seed, "stream")
    )
    stream = cut(full, options.share)
    for head, slots in HEADS:
        given = {} if options.memory is None else {"memory": options.memory}
        config = Config(
            options.benchmark, head=head, slots=slots, epochs=options.epochs, backbone=options.backbone,
            seed=options.seed,
            **recipes.expand(options.recipe, given, augment=benchmark.augment, strong=benchmark.strong),
        ).resolved()
        rows: list[dict[str, float]] = []
        trainer = build.make_trainer(config, stream, torch.device("cpu"))

        def note(record: dict, rows: list = rows, trainer: Trainer = trainer) -> None:
            if record["task"] < len(stream.tasks):
                rows.append(measure(trainer.learner, stream))

        trainer.watcher = Watcher(task=note)
        trainer.run()
        table = {name: [round(row[name], 1) for row in rows if name in row] for name in rows[0]}
        accuracy = metrics.final_average_accuracy(trainer.at.accuracies)
        print(json.dumps({"head": head, "slots": config.slots, "accuracy": round(accuracy, 1), **table}), flush=True)


if __name__ == "__main__":
    main()
