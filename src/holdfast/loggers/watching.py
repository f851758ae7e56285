"""Connect loggers to a run: they are opened by its first epoch, so that a finished or refused run logs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..learning.training import Watcher
from .base import Logger, Run


@dataclass
class Logging:
    """The loggers of one run. `watcher` goes to the run; `end` takes its result."""

    run: Run
    kinds: Sequence[Callable[[Run], Logger]]
    then: Watcher  # hears everything too
    opened: list[Logger] = field(default_factory=list)
    step: int = 0

    @property
    def watcher(self) -> Watcher:
        """The run's watcher; its `step` and `stop` are the given ones, without a detour."""
        return replace(self.then, losses=self._losses, epoch=self._epoch, task=self._task)

    def end(self, result: dict[str, Any]) -> None:
        """Log the result if the run trained; a result that was only read is not logged again."""
        for each in self.opened:
            each.end(result)

    def _losses(self, losses: Tensor, first: int) -> None:
        if not self.opened:
            self.opened += [kind(self.run) for kind in self.kinds]
        for each in self.opened:
            each.losses(losses, first)
        self.step = first + len(losses)
        self.then.losses(losses, first)

    def _epoch(self, record: dict[str, Any]) -> None:
        for each in self.opened:
            each.epoch(record, self.step)
        self.then.epoch(record)

    def _task(self, record: dict[str, Any]) -> None:
        for each in self.opened:
            each.task(record, self.step)
        self.then.task(record)


@contextmanager
def logging(names: Sequence[str], run: Run, watcher: Watcher | None = None) -> Iterator[Logging]:
    """Yield the loggers of these names for a run. A missing library is an error now, not after the first epoch."""
    from . import LOGGERS

    found = Logging(run, [LOGGERS[name] for name in names], watcher or Watcher())
    try:
        yield found
    finally:
        for each in found.opened:
            each.close()
