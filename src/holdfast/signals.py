"""Turn Ctrl-C and SIGTERM into a request to finish the step and save. A second Ctrl-C stops at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Stopping:
    """A context in which the first signal makes `asked` true, and a second Ctrl-C raises KeyboardInterrupt.

    Under torchrun, which sends every Ctrl-C twice, the second one is ignored."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def asked(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """Return 130 for Ctrl-C and 143 for SIGTERM, as shells expect."""
        return 128 + (self.signal or 0)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT and "TORCHELASTIC_RUN_ID" not in os.environ:
            raise KeyboardInterrupt
        self.signal = self.signal or number  # ignore a SIGTERM after Ctrl-C: a sweep sends both to its workers

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers only there
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
