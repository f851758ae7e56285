"""Classes taught one by one through IncrementalClassifier, against `holdfast run` at the same settings.

Both train the same network for the same epochs with the same memory, recipe and order of classes. Given the run's
normalisation and holding nothing back the estimator learns the very same weights, to the bit (`same_bits`). By default
it differs in two ways that a user of it lives with: it normalises by its first batch instead of the whole data set,
and it holds a tenth of the memory (and of the samples, up to that) back for measuring. Prints a line of JSON.

    python benchmarks/estimator_vs_run.py digits                       # 2 CPU minutes
    python benchmarks/estimator_vs_run.py fashion-mnist --share 0.2    # a fifth of the training images of each class
    python benchmarks/estimator_vs_run.py cifar10 --share 0.2          # LeNet, few epochs: small, not good
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from typing import Any

import numpy as np
import torch

from holdfast import IncrementalClassifier, data, randomness
from holdfast.data.dataset import Dataset
from holdfast.learning import metrics
from holdfast.learning.learner import Learner
from holdfast.runs import benchmarks, build
from holdfast.runs.config import Config

SETTINGS = {
    "digits": {"epochs": 10, "memory": 100, "augment": "shift"},
    "fashion-mnist": {"epochs": 2, "memory": 500, "augment": "shift"},
    "cifar10": {"epochs": 2, "memory": 500, "augment": "crop-flip"},
}
SHARED = {"backbone": "lenet", "slots": 10, "policy": "class"}


def cut(full: Dataset, share: float) -> Dataset:
    """The first `share` of each class's training images."""
    if share == 1:
        return full
    rows = [(full.train_labels == c).nonzero().squeeze(1) for c in range(len(full.classes))]
    chosen = torch.cat([r[: int(share * len(r))] for r in rows]).sort().values
    return dataclasses.replace(full, train_images=full.train_images[chosen], train_labels=full.train_labels[chosen])


def by_run(name: str, found: Dataset, settings: dict, seed: int) -> tuple[float, Learner]:
    config = Config(
        f"split-{name}", classes_per_task=1, balance=True, distill="features", seed=seed, **SHARED, **settings
    ).resolved()
    stream = benchmarks.find(config.benchmark).stream(
        found, generator=randomness.generator(seed, "stream"), classes_per_task=1
    )
    trainer = build.make_trainer(config, stream, torch.device("cpu"))
    trainer.run()
    return metrics.final_average_accuracy(trainer.at.accuracies), trainer.learner


def by_estimator(found: Dataset, settings: dict, seed: int, **others: Any) -> tuple[float, IncrementalClassifier]:
    clf = IncrementalClassifier(**SHARED, **settings, **others, random_state=seed, device="cpu")
    for label in range(len(found.classes)):
        mine = found.train_labels == label
        clf.partial_fit(found.train_images[mine], found.train_labels[mine])
    labels = found.test_labels.numpy()
    right = clf.predict(found.test_images) == labels
    return 100 * float(np.mean([right[labels == c].mean() for c in clf.classes_])), clf


def same(one: Learner, other: Learner) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=SETTINGS)
    parser.add_argument("--data", help="folder with the data sets")
    parser.add_argument("--share", type=float, default=1.0, help="of the training images of each class")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--bits", action="store_true", help="also with nothing held back, which must be the same run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, began = cut(data.load(options.dataset, options.data), options.share), time.perf_counter()
    settings = SETTINGS[options.dataset]
    rows, bits = [], []
    for seed in range(options.seeds):
        run, learner = by_run(options.dataset, found, settings, seed)
        default, clf = by_estimator(found, settings, seed)
        rows.append((run, default))
        print(f"# seed {seed}: run {run:.2f}, estimator {default:.2f}; {clf.stability_.answer}", flush=True)
        if options.bits:
            whole, twin = by_estimator(found, settings, seed, held_back=0.0, normalise=(found.mean, found.std))
            bits.append(same(learner, twin.model_.learner))
            print(f"# seed {seed}: as the run, nothing held back {whole:.2f}, the same bits: {bits[-1]}", flush=True)
    mean = np.mean(rows, axis=0)
    print(json.dumps({
        "dataset": options.dataset, "share": options.share, "seeds": options.seeds, **settings,
        "run": round(mean[0], 2), "estimator": round(mean[1], 2), **({"same_bits": all(bits)} if bits else {}),
        "seconds": round(time.perf_counter() - began),
    }))


if __name__ == "__main__":
    main()
