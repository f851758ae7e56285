"""TensorBoard: `tensorboard --logdir runs` shows all runs beside each other. Needs the extra `tensorboard`."""

from __future__ import annotations

import json

from .base import Run, Scalars, missing

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    raise missing("tensorboard", error) from error


class TensorBoard(Scalars):
    """Writes event files into the folder `tensorboard` of the run's folder."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.writer = SummaryWriter(str(run.folder / "tensorboard"))
        self.writer.add_text("config", f"```\n{json.dumps(dict(run.config), indent=1)}\n```")

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def summarise(self, values: dict[str, float]) -> None:
        plain = {name: value for name, value in self.run.config.items() if isinstance(value, int | float | str | bool)}
        results = {f"result/{name}": value for name, value in values.items()}
        self.writer.add_hparams(plain, results, run_name=".")

    def close(self) -> None:
        self.writer.close()
