"""The server process: uvicorn, with an ending that finishes what runs and waits for no client without limit."""

from __future__ import annotations

import asyncio
import socket

import uvicorn

from .jobs import Jobs


class Server(uvicorn.Server):
    """Ends in this order: refuse what waits, finish the lesson that runs, give clients the grace time, stop.

    uvicorn alone would begin the waiting lessons too, since each has a request that is under way."""

    def __init__(self, config: uvicorn.Config, jobs: Jobs) -> None:
        super().__init__(config)
        self.jobs = jobs

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.jobs.end()
        for server in self.servers:  # as uvicorn does, but before the lesson is over
            server.close()
        for each in sockets or []:
            each.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while not self.jobs.idle and not self.force_exit:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)
