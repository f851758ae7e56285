"""Records as a run would have written them, made without running."""

from __future__ import annotations

from typing import Any

from steadfast import metrics
from steadfast.config import Config
from steadfast.methods import METHODS


def make_record(config: Config, accuracy: float = 80.0, *, drift: float | None = 5.0, **changes: Any) -> dict[str, Any]:
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
        "environment": {
            "steadfast": "0.1.0", "code": "abcdef123456", "torch": "2.9.0", "python": "3.11.2", "machine": "x86_64",
            "device": "cpu", "threads": 1,
        },
    }
    return {**record, **changes}
