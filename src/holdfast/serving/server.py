"""The server process: uvicorn, with an ending that finishes what runs and waits for no client without limit."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import NoReturn

import uvicorn

from .jobs import Jobs

LAST = 5  # seconds for requests whose clients are gone


class Server(uvicorn.Server):
    """Ends in this order: refuse what waits, finish the lesson that runs, give clients the grace time, stop.

    uvicorn alone would begin the waiting lessons too, since each has a request that is under way. `forced` is called
    after a second Ctrl-C, and ends the process."""

    def __init__(self, config: uvicorn.Config, jobs: Jobs, grace: float, forced: Callable[[], NoReturn]) -> None:
        super().__init__(config)
        self.config.timeout_graceful_shutdown = LAST
        self.jobs, self.grace, self.forced = jobs, grace, forced

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.jobs.end()
        for server in self.servers:  # as uvicorn does, but before the lesson is over
            server.close()
        for each in sockets or []:
            each.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._until(lambda: self.jobs.idle, None)
        await self._until(lambda: not self.server_state.connections, self.grace)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # a client that does not read would hold it for ever
        await super().shutdown(sockets)

    async def _until(self, ready: Callable[[], bool], seconds: float | None) -> None:
        end = None if seconds is None else time.monotonic() + seconds
        while not ready() and (end is None or time.monotonic() < end):
            if self.force_exit:
                self.forced()
            await asyncio.sleep(0.05)
