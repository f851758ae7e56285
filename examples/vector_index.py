"""A search index that lives on while classes are added: vectors are stored once and never computed again.

Digits come five at first, then two, then three. After each batch the new images' vectors go into the index, computed by
the model of that moment; the old ones stay as they are. At the end the latest model's queries search it, beside an
index that was rebuilt by the latest model. Five models: the default, which never trains the network, and four that
train by replay, with the fixed head (simplex) and the usual one (expanding), each with and without holding remembered
vectors in place (distill="features", as the default recipe does).

    pip install 'holdfast[faiss,usearch]'
    python examples/vector_index.py
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from holdfast import IncrementalClassifier

BATCHES = (range(5), range(5, 7), range(7, 10))
REPLAY = {"method": "replay", "memory": 500, "epochs": 20}
MODELS = {
    "default (solved)": {},
    "replay, simplex, distill": {**REPLAY, "head": "simplex", "distill": "features"},
    "replay, expanding, distill": {**REPLAY, "head": "expanding", "distill": "features"},
    "replay, simplex": {**REPLAY, "head": "simplex", "distill": "none"},
    "replay, expanding": {**REPLAY, "head": "expanding", "distill": "none"},
}


class Faiss:
    """An exact inner-product index; of unit vectors, that is the cosine."""

    def __init__(self, dim: int) -> None:
        import faiss

        self.index = faiss.IndexFlatIP(dim)

    def add(self, vectors: np.ndarray) -> None:
        self.index.add(vectors)

    def nearest(self, queries: np.ndarray) -> np.ndarray:
        return self.index.search(queries, 1)[1][:, 0]


class Usearch:
    """An approximate index (HNSW), by the cosine."""

    def __init__(self, dim: int) -> None:
        from usearch.index import Index

        self.index = Index(ndim=dim, metric="cos")

    def add(self, vectors: np.ndarray) -> None:
        self.index.add(np.arange(len(self.index), len(self.index) + len(vectors)), vectors)

    def nearest(self, queries: np.ndarray) -> np.ndarray:
        return self.index.search(queries, 1).keys[:, 0].astype(int)


def live(kind: type[Faiss] | type[Usearch], **settings: object) -> tuple[float, float, str]:
    """Recall@1 in the index that was never touched again, in a rebuilt one, and what the model itself advises."""
    digits = load_digits()
    gallery, queries, gallery_y, queries_y = train_test_split(digits.data, digits.target, random_state=0)
    clf = IncrementalClassifier(**{"slots": 100, "device": "cpu", **settings})
    index, stored, order = None, [], []
    for batch in BATCHES:
        new = np.isin(gallery_y, list(batch))
        clf.partial_fit(gallery[new], gallery_y[new])
        vectors = clf.embed(gallery[new], unit=True)  # of the new images alone
        index = index or kind(vectors.shape[1])
        index.add(vectors)
        stored.append(gallery_y[new])
        order.append(gallery[new])
    assert index is not None
    rebuilt = kind(vectors.shape[1])
    rebuilt.add(clf.embed(np.concatenate(order), unit=True))
    labels, asked = np.concatenate(stored), clf.embed(queries, unit=True)
    kept, fresh = ((labels[i.nearest(asked)] == queries_y).mean() for i in (index, rebuilt))
    return float(kept), float(fresh), clf.stability_.answer


def main() -> None:
    print(f"{'model':27} {'index':8} {'kept':>7} {'rebuilt':>8}  the model's advice")
    for kind in (Faiss, Usearch):
        for name, settings in MODELS.items():
            kept, fresh, advice = live(kind, **settings)
            print(f"{name:27} {kind.__name__.lower():8} {100 * kept:6.1f} % {100 * fresh:6.1f} %  {advice}", flush=True)


if __name__ == "__main__":
    main()
