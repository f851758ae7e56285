"""Processes that stay and do a block of work whenever it is their turn."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class Apart:
    """Something made in a process of its own, whose methods are called from here."""

    def __init__(self, make: Callable[..., Any], *given: Any) -> None:
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self.end, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(make, given, theirs), daemon=True)
        self.process.start()
        theirs.close()  # so that its death is seen here

    def wait(self) -> Any:
        """What it answers; the first answer, which is nothing, says that it is ready."""
        try:
            return self.end.recv()
        except EOFError:
            sys.exit("A process that was to be measured has ended; what it said is above.")

    def begin(self, method: str, *given: Any) -> None:
        self.end.send((method, given))

    def do(self, method: str, *given: Any) -> Any:
        self.begin(method, *given)
        return self.wait()

    def stop(self) -> None:
        self.end.close()
        self.process.join(10)
        self.process.kill()


def _serve(make: Callable[..., Any], given: tuple[Any, ...], orders: Connection) -> None:
    made = make(*given)
    orders.send(None)
    while True:
        try:
            method, given = orders.recv()
        except EOFError:
            return
        orders.send(getattr(made, method)(*given))
