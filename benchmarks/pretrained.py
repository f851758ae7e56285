"""Classes that arrive in batches, on frozen features: accuracy and seconds per batch, beside a refit on everything.

    python benchmarks/pretrained.py --vectors clinc150-minilm.npz --labels clinc150.json.gz --batches 15
    python benchmarks/pretrained.py --labels clinc150.json.gz --embedder sentence-transformers:FOLDER --batches 15
    python benchmarks/pretrained.py --vectors clinc150-minilm.npz --labels clinc150.json.gz --shots 1,5,10,50
    python benchmarks/pretrained.py --labels clinc150.json.gz --tables FOLDER --batches 15

The labels are CLINC150's JSON (`train`, `test`, `oos_test`: lists of [text, intent]); the vectors have the same order.
With an embedder the texts themselves are embedded, and the seconds are told with and without that. CPU seconds.
`--method replay` trains a network on the vectors instead of solving. `--tables` writes the batches and the test set as
CSV files, for `holdfast learn` and `holdfast evaluate`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestCentroid

from holdfast import IncrementalClassifier
from holdfast.embedders import open_embedder

console = Console(width=120)
warnings.filterwarnings("ignore", module="sklearn")  # on one sample per class


def load(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, np.ndarray], float]:
    """Return the texts with their intents, their vectors, and the seconds that embedding took per text."""
    with gzip.open(options.labels) as file:
        texts = json.load(file)
    if options.vectors:
        found = np.load(options.vectors)
        return texts, {part: found[part].astype(np.float32) for part in ("train", "test", "oos_test")}, 0.0
    embedder = open_embedder(options.embedder, offline=True, device="cpu")
    began, vectors = time.process_time(), {}
    for part in ("train", "test", "oos_test"):
        with console.status(f"embedding {part}"):
            vectors[part] = embedder([text for text, _ in texts[part]])
    count = sum(map(len, vectors.values()))
    return texts, vectors, (time.process_time() - began) / count


def in_order(labels: np.ndarray, batches: int, seed: int) -> list[np.ndarray]:
    """Return the classes in a shuffled order, in batches."""
    return np.array_split(np.random.RandomState(seed).permutation(np.unique(labels)), batches)


def write_tables(texts: Any, folder: Path, batches: int, seed: int) -> None:
    """Write each batch of classes and the test set as a CSV file with the columns question and intent."""
    folder.mkdir(parents=True, exist_ok=True)
    classes = in_order(np.array([intent for _, intent in texts["train"]]), batches, seed)
    parts = {f"batch-{number:02}": {*new.tolist()} for number, new in enumerate(classes, 1)}
    tables = {name: [row for row in texts["train"] if row[1] in new] for name, new in parts.items()}
    for name, rows in {**tables, "test": texts["test"]}.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("question", "intent"), *rows])


def in_batches(texts: Any, vectors: Any, batches: int, seed: int, per_text: float, method: str) -> None:
    """Print a row per batch of classes."""
    y, y_test = (np.array([intent for _, intent in texts[part]]) for part in ("train", "test"))
    order = np.concatenate(in_order(y, batches, seed))
    model = IncrementalClassifier(slots=1000, method=method)
    columns = ("classes", method, "s per batch", "with embedding", "logistic", "s per refit", "nearest mean")
    table = Table(*columns, title=f"{len(order)} classes in {batches} batches")
    seen = np.array([], dtype=order.dtype)
    for new in np.array_split(order, batches):
        seen = np.concatenate([seen, new])
        rows, known, test = np.isin(y, new), np.isin(y, seen), np.isin(y_test, seen)
        began = time.process_time()
        model.partial_fit(vectors["train"][rows], y[rows])
        model.predict(vectors["test"][:1])  # so that it is solved
        took = time.process_time() - began
        began = time.process_time()
        joint = LogisticRegression(C=10, max_iter=1000).fit(vectors["train"][known], y[known])
        refit = time.process_time() - began
        means = NearestCentroid().fit(vectors["train"][known], y[known])
        rates = [each.score(vectors["test"][test], y_test[test]) for each in (model, joint, means)]
        table.add_row(str(len(seen)), f"{100 * rates[0]:.2f} %", f"{took:.2f}", f"{took + per_text * rows.sum():.1f}",
                      f"{100 * rates[1]:.2f} %", f"{refit:.2f}", f"{100 * rates[2]:.2f} %")
    console.print(table)
    strange = np.r_[np.zeros(len(y_test)), np.ones(len(vectors["oos_test"]))]
    novelty = model.novelty(np.r_[vectors["test"], vectors["oos_test"]])
    sure = joint.predict_proba(np.r_[vectors["test"], vectors["oos_test"]]).max(1)
    refused = np.mean([answer is None for answer in model.predict(vectors["test"], reject=0.05)])
    console.print(
        f"Out of scope, AUROC: {method} {roc_auc_score(strange, novelty):.3f}, logistic regression's largest "
        f"probability {roc_auc_score(strange, -sure):.3f}. reject=0.05 refuses {100 * refused:.1f} % of known texts."
    )


def few_shots(texts: Any, vectors: Any, shots: list[int], seed: int) -> None:
    """Print a row per number of samples per class, all classes at once, the mean of three draws."""
    y, y_test = (np.array([intent for _, intent in texts[part]]) for part in ("train", "test"))
    table = Table("samples per class", "solved", "logistic regression", "nearest mean")
    for count in shots:
        rates = []
        for draw in range(3):
            chance = np.random.RandomState(seed + draw)
            rows = np.concatenate([chance.permutation(np.flatnonzero(y == name))[:count] for name in np.unique(y)])
            taught = IncrementalClassifier(slots=1000).partial_fit(vectors["train"][rows], y[rows])
            joint = LogisticRegression(C=10, max_iter=1000).fit(vectors["train"][rows], y[rows])
            means = NearestCentroid().fit(vectors["train"][rows], y[rows])
            rates.append([each.score(vectors["test"], y_test) for each in (taught, joint, means)])
        table.add_row(str(count), *(f"{100 * rate:.2f} %" for rate in np.mean(rates, axis=0)))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=Path, required=True, help="CLINC150's JSON, gzipped")
    parser.add_argument("--vectors", type=Path, help="its vectors, .npz")
    parser.add_argument("--embedder", help="or an embedder for its texts")
    parser.add_argument("--batches", type=int, default=15)
    parser.add_argument("--shots", help="samples per class, such as 1,5,10,50: this table instead")
    parser.add_argument("--method", choices=("solved", "replay"), default="solved")
    parser.add_argument("--tables", type=Path, help="write the batches as CSV files into this folder, and nothing else")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.tables:
        with gzip.open(options.labels) as file:
            write_tables(json.load(file), options.tables, options.batches, options.seed)
        return
    if not options.vectors and not options.embedder:
        parser.error("give --vectors or --embedder")
    texts, vectors, per_text = load(options)
    if options.shots:
        few_shots(texts, vectors, [int(word) for word in options.shots.split(",")], options.seed)
    else:
        in_batches(texts, vectors, options.batches, options.seed, per_text, options.method)


if __name__ == "__main__":
    main()
