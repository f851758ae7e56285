"""Records as a run would have written them, made without running."""

from __future__ import annotations

from typing import Any

from holdfast.learning import metrics
from holdfast.methods import METHODS
from holdfast.runs.config import Config


def make_record(
    config: Config, accuracy: float = 80.0, /, *, drift: float | None = 5.0, **changes: Any
) -> dict[str, Any]:
    """A record whose final average accuracy is `accuracy`: every task's falls evenly from 99 to it."""
    full = config.resolved()
    phases = full.phases()
    if METHODS[full.method].joint:
        matrix = [[accuracy] * 5]
    else:
        matrix = [[99 - (99 - accuracy) * i / max(1, phases - 1)] * (i + 1) for i in range(phases)]
        matrix[-1] = [accuracy] * phases
    record = {
        "config": full.to_json(),
        "hash": full.hash,
        "command": full.command(),
        "accuracy_matrix": matrix,
        "final_average_accuracy": metrics.final_average_accuracy(matrix),
        "average_accuracy": metrics.average_accuracy(matrix),
        "forgetting": metrics.forgetting(matrix),
        "mean_drift": drift,
        "seconds": 660.5,
        "quick": full.quick,
        "environment": {
            "holdfast": "0.1.0", "code": "abcdef123456", "torch": "2.9.0", "python": "3.11.2", "machine": "x86_64",
            "device": "cpu", "threads": 1,
        },
    }
    return {**record, **changes}


def make_features(labels: int = 4, steps: int = 2) -> dict[str, Any]:
    """The record of a small feature figure: each class on its own ray."""
    import math

    weights = [[math.cos(2 * math.pi * k / 10), math.sin(2 * math.pi * k / 10)] for k in range(10)]
    frames = []
    for step in range(steps):
        seen = list(range(labels - steps + 1 + step))
        moved = [None if step == 0 or slot == seen[-1] else 1.5 for slot in range(labels)]
        frames.append({
            "seen": seen, "clouds": [[[r * x, r * y] for r in (1.0, 1.5, 2.0)] for x, y in weights[: len(seen)]],
            "weights": weights, "accuracy": 90.0, "features_moved": moved, "weights_moved": moved,
        })
    turned = [None if slot == labels - 1 else 2.5 for slot in range(labels)]
    head = {"frames": frames, "features_turned": turned, "weights_turned": turned}
    return {
        "kind": "features", "format": 1, "environment": {"holdfast": "0.1.0"},
        "dataset": "digits", "start": labels - steps + 1, "add": steps - 1,
        "labels": [str(label) for label in range(labels)], "quick": False,
        "heads": [{"title": "fixed polygon", **head}, {"title": "trainable", **head}],
    }
