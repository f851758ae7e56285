"""Weights & Biases. Offline by default: `wandb sync` uploads a run later. Needs the extra `wandb`."""

from __future__ import annotations

import os

from .base import Run, Scalars, missing

try:
    import wandb
except ImportError as error:
    raise missing("wandb", error) from error


class WandB(Scalars):
    """Writes into the folder `wandb` of the run's folder. WANDB_MODE=online sends the numbers at once."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        os.environ.setdefault("WANDB_MODE", "offline")
        self.handle = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "holdfast"), name=run.name, id=run.name, resume="allow",
            dir=str(run.folder), config=dict(run.config),
        )

    def write(self, values: dict[str, float], step: int) -> None:
        self.handle.log(values, step=step)

    def summarise(self, values: dict[str, float]) -> None:
        self.handle.summary.update(values)

    def close(self) -> None:
        self.handle.finish()
