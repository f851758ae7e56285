# ruff: noqa: B023 - the timed functions run before the loop goes on
"""Measure the solver against scikit-learn, NumPy baselines and river: accuracy, CPU time per batch, growth.

    python benchmarks/solved.py stream                                        # digits, one class per batch
    python benchmarks/solved.py stream --vectors clinc150-minilm.npz --labels clinc150.json.gz --batch-classes 10
    python benchmarks/solved.py stream --idx DIRECTORY --limit 10000          # MNIST-like files, pixels / 255
    python benchmarks/solved.py grow                                          # n, d and classes on synthetic vectors

Times are CPU seconds of one process. Set OMP_NUM_THREADS=1 for one core.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.metrics import roc_auc_score

from holdfast.solving import Solver, SolverOptions

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, "np.ndarray | None"]


class Solved:
    def __init__(self, **options) -> None:
        self.solver = Solver(SolverOptions(**options))

    def teach(self, x, y):
        self.solver.learn(x, y)
        if len(self.solver.slots) > 1:
            self.solver.coefficients()

    def answer(self, x):
        return self.solver.predict(x).numpy()


class NearestMean:
    def __init__(self) -> None:
        self.sums: dict[int, np.ndarray] = {}
        self.counts: dict[int, int] = {}

    def teach(self, x, y):
        for c in np.unique(y):
            self.sums[c] = self.sums.get(c, 0) + x[y == c].sum(0)
            self.counts[c] = self.counts.get(c, 0) + int((y == c).sum())
        self.classes = np.array(sorted(self.sums))
        self.means = np.stack([self.sums[c] / self.counts[c] for c in self.classes])

    def answer(self, x):
        return self.classes[(x @ self.means.T - 0.5 * (self.means**2).sum(1)).argmax(1)]


class StreamingLDA(NearestMean):
    """Hayes and Kanan (2020): running class means, one shared covariance, shrinkage 1e-4."""

    def __init__(self) -> None:
        super().__init__()
        self.moments, self.n = 0.0, 0

    def teach(self, x, y):
        self.moments, self.n = self.moments + x.T @ x, self.n + len(x)
        super().teach(x, y)
        counts = np.array([self.counts[c] for c in self.classes])
        covariance = (self.moments - (self.means.T * counts) @ self.means) / self.n
        self.weights = np.linalg.solve((1 - 1e-4) * covariance + 1e-4 * np.eye(x.shape[1]), self.means.T)

    def answer(self, x):
        return self.classes[(x @ self.weights - 0.5 * (self.means.T * self.weights).sum(0)).argmax(1)]


class Refit:
    """Keep all samples and fit anew after each batch."""

    def __init__(self, make: Callable) -> None:
        self.make, self.x, self.y = make, [], []

    def teach(self, x, y):
        self.x.append(x)
        self.y.append(y)
        if len(np.unique(np.concatenate(self.y))) > 1:
            self.model = self.make().fit(np.concatenate(self.x), np.concatenate(self.y))

    def answer(self, x):
        return self.model.predict(x)


class PartialFit:
    def __init__(self, classes) -> None:
        self.model, self.classes = SGDClassifier(loss="log_loss", random_state=0), classes

    def teach(self, x, y):
        for _ in range(5):
            self.model.partial_fit(x, y, classes=self.classes)

    def answer(self, x):
        return self.model.predict(x)


class River:
    def __init__(self) -> None:
        from river import linear_model

        self.model = linear_model.SoftmaxRegression()

    def teach(self, x, y):
        for row, label in zip(x, y):
            self.model.learn_one(dict(enumerate(row)), int(label))

    def answer(self, x):
        return np.array([self.model.predict_one(dict(enumerate(row))) for row in x])


def load(args: argparse.Namespace) -> Arrays:
    """Return train features and slots, test features and slots, and features of no class if there are any."""
    if args.vectors:
        arrays = np.load(args.vectors)
        if args.labels:
            with gzip.open(args.labels) as file:
                pairs = json.load(file)
            labels = {part: np.array([label for _, label in pairs[part]]) for part in ("train", "test")}
        else:
            labels = {part: arrays[f"{part}_labels"] for part in ("train", "test")}
        names = np.unique(labels["train"])
        strange = arrays["oos_test"].astype(float) if "oos_test" in arrays else None
        y, yt = (np.searchsorted(names, labels[part]) for part in ("train", "test"))
        return arrays["train"].astype(float), y, arrays["test"].astype(float), yt, strange
    if args.idx:
        parts = []
        for name in ("train", "t10k"):
            with gzip.open(Path(args.idx) / f"{name}-images-idx3-ubyte.gz") as file:
                pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784) / 255.0
            with gzip.open(Path(args.idx) / f"{name}-labels-idx1-ubyte.gz") as file:
                parts += [pixels, np.frombuffer(file.read(), np.uint8, offset=8).astype(int)]
        return *parts, None
    x, y = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(x))
    x, y = x[order] / 16.0, y[order]
    return x[:1200], y[:1200], x[1200:], y[1200:], None


def stream(args: argparse.Namespace) -> None:
    x, y, xt, yt, strange = load(args)
    rng = np.random.RandomState(args.seed)
    keep = rng.permutation(len(x))[: args.limit or None]
    x, y = x[keep], y[keep]
    if args.shots or args.rare:
        rank = np.zeros(len(y), int)  # place of each sample within its class
        for label in np.unique(y):
            rank[y == label] = np.arange((y == label).sum())
        most = np.where(y % 2 == 1, args.rare or args.shots, args.shots or len(y))
        x, y = x[rank < most], y[rank < most]
    classes = rng.permutation(np.unique(y))
    batches = [
        np.isin(y, part) for part in np.split(classes, range(args.batch_classes, len(classes), args.batch_classes))
    ]
    print(
        f"{len(x)} samples, {x.shape[1]} features, {len(classes)} classes in {len(batches)} batches, seed {args.seed}"
    )
    rivals: dict[str, Callable] = {
        "solved, defaults": lambda: Solved(seed=args.seed),
        "solved, empirical priors": lambda: Solved(priors="empirical", seed=args.seed),
        "solved, ridge rule": lambda: Solved(rule="ridge", seed=args.seed),
        "solved, no random features": lambda: Solved(width=0),
        "nearest mean (NumPy)": NearestMean,
        "streaming LDA (NumPy)": StreamingLDA,
        "RidgeClassifier, refit": lambda: Refit(RidgeClassifier),
        "LinearDiscriminantAnalysis, refit": lambda: Refit(LinearDiscriminantAnalysis),
        "SGDClassifier, partial_fit": lambda: PartialFit(np.unique(y)),
        "LogisticRegression C=1, refit": lambda: Refit(lambda: LogisticRegression(max_iter=200)),
        "LogisticRegression C=10, refit": lambda: Refit(lambda: LogisticRegression(C=10, max_iter=200)),
        "river SoftmaxRegression": River,
    }
    print(f"{'':34} {'accuracy':>8} {'first':>8} {'last':>8} {'slowest':>8} {'total':>8}  last / solved")
    base = None
    for name, make in rivals.items():
        if args.only not in name:
            continue
        try:
            model = make()
        except ImportError:
            print(f"{name:34} not installed")
            continue
        times: list[float] = []
        for index, batch in enumerate(batches):
            start = time.process_time()
            model.teach(x[batch], y[batch])
            times.append(time.process_time() - start)
            print(f"  {name}: batch {index + 1}/{len(batches)} {times[-1]:.2f} s", end="\r", flush=True)
            if sum(times) > args.patience:
                break
        if len(times) < len(batches):
            print(f"{name:34} stopped after {len(times)} batches and {sum(times):.0f} s; see --patience")
            continue
        base = base or times[-1]
        accuracy = float((model.answer(xt) == yt).mean())
        print(
            f"{name:34} {accuracy:8.4f} {times[0]:7.3f}s {times[-1]:7.3f}s {max(times):7.3f}s {sum(times):7.2f}s"
            f"  {times[-1] / base:8.2f}",
            flush=True,
        )
        if name.startswith("solved, d"):
            describe(model.solver, xt, yt, strange)


def describe(solver: Solver, xt: np.ndarray, yt: np.ndarray, strange: np.ndarray | None) -> None:
    if solver.calibration().samples == 0:
        print("  too few samples to calibrate")
        return
    start = time.process_time()
    probabilities = solver.probabilities(xt)
    taken = time.process_time() - start
    refused = float(solver.rejects(xt, 0.05).double().mean())
    best, guess = probabilities.max(1)
    right = solver.slots[guess] == torch.as_tensor(yt)
    bins = (best * 15).ceil().long()
    error = sum(float((best[bins == b] - right[bins == b].double()).sum().abs()) for b in bins.unique()) / len(yt)
    print(f"  {solver.choice}; {len(xt)} probabilities {taken:.2f} s")
    print(f"  calibration error {error:.4f}, reject=0.05 refuses {refused:.4f} of known samples")
    if strange is not None:
        known, unknown = solver.novelty(xt).numpy(), solver.novelty(strange).numpy()
        area = roc_auc_score(np.r_[np.zeros(len(known)), np.ones(len(unknown))], np.r_[known, unknown])
        share = float(solver.rejects(strange, 0.05).double().mean())
        print(f"  unknown samples: AUROC {area:.4f}, reject=0.05 refuses {share:.4f}")


def median(task: Callable[[int], object], repeats: int = 9) -> float:
    times = []
    for index in range(repeats):
        start = time.process_time()
        task(index)
        times.append(time.process_time() - start)
    return sorted(times)[repeats // 2]


def grow(args: argparse.Namespace) -> None:
    rng = np.random.default_rng(0)

    def samples(n: int, d: int, classes: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, classes, n)
        return np.random.default_rng(1).normal(size=(classes, d))[y] + rng.normal(size=(n, d)), y + first

    print("samples: batches of 10,000 with 64 features and 100 classes, against a refit of LogisticRegression")
    for width in (0, None):
        solver, seen, kept, refit = Solver(SolverOptions(width=width)), 0, ([], []), ""
        for _ in range(100 if width == 0 else 4):
            x, y = samples(10_000, 64, 100)
            taken = median(lambda _: (solver.learn(x, y), solver.scores(x[:1])), 1)
            seen += len(x)
            if width == 0 and seen <= 80_000:
                kept[0].append(x)
                kept[1].append(y)
            if seen in (10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 640_000, 1_000_000):
                refit = ""
                if width == 0 and seen <= 80_000:
                    model = LogisticRegression(max_iter=100)
                    all_x, all_y = np.concatenate(kept[0]), np.concatenate(kept[1])
                    refit = f", refit {median(lambda _: model.fit(all_x, all_y), 1):.2f} s"
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                print(
                    f"  size={solver.choice.size:5} n={seen:8}: batch {taken:6.3f} s{refit}, peak {peak:.0f} MB",
                    flush=True,
                )
    print("dimension: one sample, and a new class of 100 samples; random features where size exceeds d")
    for d, width in ((384, 0), (768, 0), (4096, 0), (384, None), (768, None)):
        x, y = samples(6000, d, 50)
        solver = Solver(SolverOptions(width=width)).learn(x, y)
        whole = median(lambda _, s=solver: s.settle(), 1)
        solver.learn(x[:1], y[:1])
        only = median(lambda i, s=solver: s.learn(x[i : i + 1], y[i : i + 1]))
        one = median(lambda i, s=solver: (s.learn(x[i : i + 1], y[i : i + 1]), s.scores(x[:1])))
        new = [rng.normal(size=(100, d)) for _ in range(5)]
        many = median(lambda i, s=solver: (s.learn(new[i], np.full(100, 100 + i)), s.scores(x[:1])), 5)
        print(
            f"  d={d:5} size={solver.choice.size:5}: full solution {whole:6.2f} s, learn one {only * 1e3:7.2f} ms, "
            f"with answer {one * 1e3:7.2f} ms, new class of 100 {many * 1e3:7.1f} ms",
            flush=True,
        )
    print("classes: 64 features, 5 samples per class; then one new class of 5 samples, learned and answered")
    for classes in (100, 1_000, 10_000, 100_000):
        solver = Solver(SolverOptions(width=0))
        x = rng.normal(size=(5 * classes, 64))
        y = np.arange(5 * classes) % classes
        start = time.process_time()
        solver.learn(x, y).scores(x[:1])
        whole = time.process_time() - start
        new = median(lambda i, s=solver: (s.learn(x[:5] + i, np.full(5, 10**6 + i)), s.scores(x[:1])), 5)
        print(f"  classes={classes:6}: all {whole:6.2f} s, one more {new * 1e3:8.2f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("stream", "grow"))
    parser.add_argument(
        "--vectors", help="npz with train and test, and train_labels and test_labels unless --labels is given"
    )
    parser.add_argument("--labels", help="json.gz whose train and test are lists of [text, label]")
    parser.add_argument("--idx", help="directory with MNIST-like idx files")
    parser.add_argument(
        "--limit", type=int, default=0, help="train on this many random samples, e.g. 10000; 0 means all"
    )
    parser.add_argument("--shots", type=int, default=0, help="keep this many samples per class, e.g. 5; 0 means all")
    parser.add_argument("--rare", type=int, default=0, help="keep this many samples of every second class, e.g. 10")
    parser.add_argument("--batch-classes", type=int, default=1, help="classes per batch, default 1")
    parser.add_argument("--patience", type=float, default=120.0, help="CPU seconds after which a rival is stopped")
    parser.add_argument("--only", default="", help="run only rivals whose names contain this, e.g. solved")
    parser.add_argument("--seed", type=int, default=0, help="seed of the class order and of the random features")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    stream(args) if args.what == "stream" else grow(args)


if __name__ == "__main__":
    main()
