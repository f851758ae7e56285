"""What the tests share: one thread, small separable streams, and runs on them that take milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.hardware import Machine
from holdfast.learning.streams import Stream
from holdfast.methods import METHODS
from holdfast.options import declared
from holdfast.runs import experiment
from holdfast.runs.benchmarks import register
from holdfast.runs.config import Config
from holdfast.testing.tiny import TINY, bits, differing, make_tiny_config, make_tiny_stream, make_tiny_trainer

__all__ = ["assert_same_bits", "bits", "make_tiny_config", "make_tiny_stream", "make_tiny_trainer", "needed"]

torch.set_num_threads(1)  # the same bits on every machine, and no fight over cores

MACHINE = ("data", "threads", "compile", "memory_on_disk")
register(TINY, "six random images under noise, 3 tasks of 2 classes; only in the tests")


def needed(method: str) -> dict[str, Any]:
    """Return the options that a method needs on a benchmark without a default for them."""
    return {"strength": 1.0} if "strength" in {each.name for each in declared(METHODS.options(method))} else {}


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Every entry equal, tensors to the last bit."""
    assert differing(one, other) == []


@pytest.fixture
def tiny_stream() -> Callable[..., Stream]:
    """A factory of small streams: `tiny_stream(classes=6, classes_per_task=2, ...)`."""
    return make_tiny_stream


@pytest.fixture
def run_tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., experiment.Result]:
    """`experiment.run` on a tiny stream: folder, lock, checkpoints and all, without any data set or picture."""
    monkeypatch.setattr(experiment, "make_stream", lambda config, root=None: make_tiny_stream())
    monkeypatch.setattr("holdfast.runs.plots.run_pictures", lambda result, folder: [])

    def run(config: Config, out: Path | None = None, **options: Any) -> experiment.Result:
        machine = {key: options.pop(key) for key in MACHINE if key in options}
        return experiment.run(config, Machine(out=str(out or tmp_path), device="cpu", **machine), **options)

    return run
