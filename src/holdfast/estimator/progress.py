"""The training state of an interrupted batch, kept in a file so that the same batch goes on from it to the same bits.

The file belongs to one batch: the same samples and labels, taught to the same model with the same settings. A file of
another batch is ignored and replaced. It holds training samples, as a model file does.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from .. import files
from ..errors import BadFile

if TYPE_CHECKING:
    from ..learning.training import Trainer
    from .settings import Settings

NAME = "progress.safetensors"
SECONDS = 10.0  # between two writes after epochs: what a kill may lose


@dataclass
class Progress:
    """A file for the training state of one batch. `epoch` is the epoch to go on from, if the file was of this batch."""

    path: Path
    batch: str = ""
    epoch: int | None = None
    saved: float = -math.inf  # when the file was written last

    def attach(self, trainer: Trainer, settings: Settings, data: Tensor, labels: list[object]) -> None:
        """Continue from the file if it is of this batch; save to it at a stop, and after an epoch every few seconds."""
        self.batch = _digest(trainer, settings, data, labels)
        if self.path.exists():
            try:
                tensors, state = files.read_tensors(self.path)
                if state["batch"] == self.batch:
                    trainer.load(tensors, state["position"])
                    self.epoch = trainer.at.epoch + 1
            except (BadFile, KeyError):  # torn or foreign: this batch begins anew
                pass
        trainer.save = self._save

    def _save(self, trainer: Trainer) -> None:
        stopped = trainer.at.order is not None  # in the middle of an epoch
        if not stopped and time.monotonic() - self.saved < SECONDS:
            return
        self.saved = time.monotonic()
        tensors, position = trainer.state()
        files.write_tensors(self.path, tensors, files.plain({"batch": self.batch, "position": position}))


def _digest(trainer: Trainer, settings: Settings, data: Tensor, labels: list[object]) -> str:
    """Return the SHA-256 of the samples, the labels, the weights before the batch and the settings."""
    plain = replace(settings, backbone="") if not isinstance(settings.backbone, str) else settings
    seen = hashlib.sha256(f"{plain!r} {trainer.epochs} {tuple(data.shape)} {data.dtype} {labels!r}".encode())
    seen.update(data.contiguous().numpy().tobytes())
    for name, value in sorted(trainer.learner.state_dict().items()):
        seen.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return seen.hexdigest()
