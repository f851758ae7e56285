"""Follow the model's advice on a real search index, and compare it with an index that was rebuilt.

    python benchmarks/advice.py clinc150-minilm.npz clinc150.json.gz     # 150 intents in five batches
    python benchmarks/advice.py                                          # Fashion-MNIST, 60 images per class in three

After each batch its vectors go into the index, computed by the model of that moment. After the last one the advice in
`stability_` is followed: keep, refresh the named classes, rebuild, or index the inputs instead. The test set's queries
then search: in the kept index, in the one that followed the advice, and in a rebuilt one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from typing import Any

import numpy as np
import torch

from holdfast import IncrementalClassifier, data

MODELS: dict[str, dict[str, Any]] = {"default (solved)": {}, "replay": {"method": "replay"}}
Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[list[Any]]]


def clinc150(vectors: str, texts: str) -> Parts:
    """Return training vectors and labels, test vectors and labels, and the labels of each batch."""
    with np.load(vectors) as found:
        X, tests = (found[name].astype(np.float32) for name in ("train", "test"))
    with gzip.open(texts) as file:
        rows = json.load(file)
    y, answers = (np.array([intent for _, intent in rows[name]]) for name in ("train", "test"))
    return X, y, tests, answers, [part.tolist() for part in np.array_split(np.unique(y), 5)]


def fashion_mnist() -> Parts:
    """Return 60 training images per class and all test images."""
    whole = data.load("fashion-mnist")
    labels = whole.train_labels.numpy()
    rows = np.concatenate([np.flatnonzero(labels == label)[:60] for label in range(10)])
    return (whole.train_images.numpy()[rows], labels[rows], whole.test_images.numpy()[:2000],
            whole.test_labels.numpy()[:2000], [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]])


def recall(vectors: np.ndarray, labels: np.ndarray, queries: np.ndarray, answers: np.ndarray) -> float:
    """Return the percentage of queries whose nearest vector, by cosine, has the right label."""
    def unit(x: np.ndarray) -> np.ndarray:
        x = x.reshape(len(x), -1).astype(np.float32)
        return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)

    stored = unit(vectors)
    nearest = np.concatenate([(unit(part) @ stored.T).argmax(1) for part in np.array_split(queries, 20)])
    return 100 * float((labels[nearest] == answers).mean())


def trial(parts: Parts, options: dict[str, Any]) -> list[str]:
    """Return the table's cells: seconds per batch, advice, and what the searches find."""
    X, y, tests, answers, batches = parts
    model, kept = IncrementalClassifier(slots=200, random_state=0, device="cpu", **options), np.zeros(0)
    began = time.process_time()
    for batch in batches:
        here = np.isin(y, batch)
        model.partial_fit(X[here], y[here])
        new = model.embed(X[here])
        kept = new if not len(kept) else np.concatenate([kept, new])
    seconds = (time.process_time() - began) / len(batches)
    labels = np.concatenate([y[np.isin(y, batch)] for batch in batches])
    inputs = np.concatenate([X[np.isin(y, batch)] for batch in batches])
    queries, rebuilt, advice = model.embed(tests), model.embed(inputs), model.stability_
    followed = {
        "keep": (kept, queries), "unknown": (kept, queries), "rebuild": (rebuilt, queries), "inputs": (inputs, tests),
        "refresh": (np.where(np.isin(labels, advice.refresh)[:, None], rebuilt, kept), queries),
    }[advice.action]
    found = [recall(kept, labels, queries, answers), recall(followed[0], labels, followed[1], answers),
             recall(rebuilt, labels, queries, answers), recall(inputs, labels, tests, answers)]
    named = f"{advice.action} {len(advice.refresh)} classes" if advice.action == "refresh" else advice.action
    return [f"{seconds:.1f}", named, *(f"{value:.1f}" for value in found)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors", nargs="?", help="CLINC150's vectors, .npz with train and test")
    parser.add_argument("texts", nargs="?", help="CLINC150's texts and labels, .json.gz")
    given = parser.parse_args()
    if given.vectors and not given.texts:
        parser.error("give the texts too, such as clinc150.json.gz, or nothing for Fashion-MNIST")
    torch.set_num_threads(1)
    parts = clinc150(given.vectors, given.texts) if given.vectors else fashion_mnist()
    print("| model | CPU s per batch | advice | index kept | advice followed | rebuilt | inputs themselves |")
    print("|---|--:|---|--:|--:|--:|--:|")
    for name, options in MODELS.items():
        print(f"| {name} | " + " | ".join(trial(parts, options)) + " |", flush=True)


if __name__ == "__main__":
    main()
