"""The hooks of a logger, and a base class for those that take named numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import BadConfig

FEWEST = 50  # losses per epoch that are logged; an epoch with fewer steps logs them all

FINAL = ("final_average_accuracy", "forgetting", "backward_transfer", "mean_drift", "mean_head_drift", "seconds")


@dataclass(frozen=True)
class Run:
    """What a logger knows of a run when it begins."""

    name: str
    folder: Path  # the run's own folder, which exists when the first hook is called
    config: Mapping[str, Any] = field(default_factory=dict)


class Logger:
    """The base class of loggers: every hook does nothing. `step` counts the updates since the start of the run."""

    def __init__(self, run: Run) -> None:
        """Open the log. A run that resumes opens it again; a finished run never does."""
        self.run = run

    def losses(self, losses: Tensor, step: int) -> None:
        """Take the losses of an epoch, one per update, on the device; `step` is the number of the first update."""

    def epoch(self, record: dict[str, Any], step: int) -> None:
        """Take an epoch's record: task, epoch, steps, loss, samples, seconds."""

    def task(self, record: dict[str, Any], step: int) -> None:
        """Take a task's record: task, accuracies (percent, one per task so far)."""

    def end(self, result: dict[str, Any]) -> None:
        """Take the run's result; not called if the run was stopped."""

    def close(self) -> None:
        """Close the log, after the end or a stop."""


class Scalars(Logger):
    """A logger that writes named numbers; a subclass gives `write` and `summarise`."""

    def write(self, values: dict[str, float], step: int) -> None:
        """Write these numbers at this step."""
        raise NotImplementedError

    def summarise(self, values: dict[str, float]) -> None:
        """Write the run's final numbers."""
        raise NotImplementedError

    def losses(self, losses: Tensor, step: int) -> None:
        every = max(1, len(losses) // FEWEST)
        for at, loss in enumerate(losses[::every].tolist()):  # one wait for the GPU
            self.write({"train/loss": loss}, step + at * every)

    def epoch(self, record: dict[str, Any], step: int) -> None:
        speed = record["samples"] / max(record["seconds"], 1e-9)
        self.write({"train/epoch_loss": record["loss"], "train/samples_per_second": speed}, step)

    def task(self, record: dict[str, Any], step: int) -> None:
        accuracies = record["accuracies"]
        named = {f"test/task_{at}": value for at, value in enumerate(accuracies, 1)}
        self.write({"test/average_accuracy": sum(accuracies) / len(accuracies), **named}, step)

    def end(self, result: dict[str, Any]) -> None:
        self.summarise({name: float(result[name]) for name in FINAL if result.get(name) is not None})


def missing(package: str, error: ImportError) -> BadConfig:
    """Return the error for a logger whose library is not installed."""
    return BadConfig(f"--log {package} needs {error.name}, which is missing: pip install 'holdfast[{package}]'")
