"""How long IncrementalClassifier takes to learn precomputed embeddings: CPU seconds a batch, on one thread.

Made-up vectors, a cloud a class: the time depends on how many and how long they are, not on what they are of.

    python benchmarks/embeddings.py        # 5,000 vectors of 512 numbers, 20 classes in two batches, default settings
"""

from __future__ import annotations

import time

import numpy as np
import torch

from holdfast import IncrementalClassifier

CLASSES, A_CLASS, NUMBERS = 20, 250, 512


def main() -> None:
    torch.set_num_threads(1)
    draw = np.random.RandomState(0)
    labels = np.repeat(np.arange(CLASSES), A_CLASS)
    vectors = draw.normal(size=(CLASSES, NUMBERS))[labels] + 2 * draw.normal(size=(len(labels), NUMBERS))
    clf = IncrementalClassifier(device="cpu")
    for part in (labels < CLASSES // 2, labels >= CLASSES // 2):
        began = time.process_time()
        clf.partial_fit(vectors[part], labels[part])
        print(f"{part.sum()} vectors learned in {time.process_time() - began:.1f} CPU seconds")


if __name__ == "__main__":
    main()
