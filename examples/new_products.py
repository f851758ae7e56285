"""Add products to an image index that is never rebuilt: the vectors come from a frozen network.

    python examples/new_products.py                                     # no download: an untrained network, for show
    python examples/new_products.py timm:mobilenetv3_small_100          # far better; extra `timm`
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn

from holdfast import IncrementalClassifier

COLOURS = {
    "red cup": (200, 40, 40), "green cup": (40, 160, 60), "blue cup": (50, 60, 200), "yellow cup": (220, 200, 40),
}


def photo(product: str, seed: int) -> np.ndarray:
    """Draw a product somewhere on a grey table, (32, 32, 3)."""
    draws = np.random.default_rng(seed)
    picture = Image.new("RGB", (32, 32), (120, 120, 120))
    left, top = draws.integers(2, 12, 2)
    ImageDraw.Draw(picture).rectangle((left, top, left + 14, top + 16), fill=COLOURS[product])
    return np.clip(np.asarray(picture) + draws.normal(0, 8, (32, 32, 3)), 0, 255).astype(np.uint8)


class Untrained(nn.Module):
    """A stand-in for a pretrained network: random convolutions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 32, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images.movedim(-1, 1) / 255)


def main() -> None:
    model = IncrementalClassifier(slots=10_000, embedder=sys.argv[1] if len(sys.argv) > 1 else Untrained())
    index: list[tuple[str, np.ndarray]] = []  # FAISS, usearch or a database in real life
    names = list(COLOURS)
    for arrived in (names[:2], names[2:3], names[3:]):
        photos = [photo(name, 100 * names.index(name) + i) for name in arrived for i in range(20)]
        labels = [name for name in arrived for _ in range(20)]
        model.partial_fit(photos, labels)
        index += zip(labels, model.embed(photos, unit=True))  # stored once
        print(f"{len(index)} vectors in the index. {model.stability_.answer}")
    queries = [photo(name, 9000 + i) for i, name in enumerate(names * 10)]
    stored = np.stack([vector for _, vector in index])
    nearest = (model.embed(queries, unit=True) @ stored.T).argmax(1)
    found = np.mean([index[row][0] == name for row, name in zip(nearest, names * 10)])
    print(f"A search finds {100 * found:.0f} %, the classifier {100 * model.score(queries, names * 10):.0f} %.")


if __name__ == "__main__":
    main()
