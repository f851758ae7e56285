"""Decode uploaded images in separate processes with a limit on memory: a hostile file cannot hurt the server.

A process is `python -m holdfast.serving.decoding FD`. Messages are bytes and JSON; nothing is unpickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from PIL import Image

from .. import pictures
from ..errors import BadInput

EXTRA = 1_000_000_000  # bytes of memory beyond what a process needs to start
SECONDS = 30.0  # for one image
START = 60.0  # seconds for a process to start
PROCESSES = 2  # so that one slow image does not block the others
LATE = 0.5  # seconds after a request's deadline until its process is stopped


class NoDecoder(Exception):
    """A decoding process did not start."""


class Decoder:
    """A few decoding processes. Requests take turns image by image, so that a large request does not block others."""

    def __init__(self, processes: int = PROCESSES) -> None:
        self._processes = [Process() for _ in range(processes)]
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="decoding")
        self._free: asyncio.Queue[Process] | None = None

    def start(self) -> None:
        """Start the processes now, so that the first request need not wait for them."""
        for process in self._processes:
            self._threads.submit(process.start)

    async def decode(
        self, contents: list[tuple[str, bytes]], pixels: int, size: tuple[int, int] | None, seconds: float
    ) -> list[Image.Image]:
        """Return the images; raise BadInput that names the first file that cannot be decoded.

        `pixels` limits all images together. With a `size` (height, width), each image is scaled and cropped to it. The
        caller gives up after `seconds`."""
        end, found = time.monotonic() + seconds, []
        for name, content in contents:
            picture, used = await self._one(name, content, pixels, size, end)
            found.append(picture)
            pixels -= used
        return found

    def close(self) -> None:
        """Stop the processes, whatever they are doing."""
        for process in self._processes:
            process.end()
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _one(
        self, name: str, content: bytes, pixels: int, size: tuple[int, int] | None, end: float
    ) -> tuple[Image.Image, int]:
        loop = asyncio.get_running_loop()
        if self._free is None:
            self._free = asyncio.Queue()
            for process in self._processes:
                self._free.put_nowait(process)
        free, process = self._free, await self._free.get()  # first come, first served
        seconds = max(0.0, min(SECONDS, end + LATE - time.monotonic()))
        asked = {"name": name, "pixels": pixels, "size": size}
        work = self._threads.submit(process.ask, asked, content, seconds)
        # The process is free when the thread is done, which may be later than a caller that gave up.
        work.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(free.put_nowait, process))
        return await asyncio.wrap_future(work)


class Process:
    """One decoding process, started when it is needed and again after a crash."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while the process works
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._ended = False

    def start(self) -> None:
        with self._lock, contextlib.suppress(NoDecoder):
            self._ready()

    def ask(self, asked: dict[str, Any], content: bytes, seconds: float) -> tuple[Image.Image, int]:
        """Return the image, and the pixels of its file."""
        name = asked["name"]
        with self._lock:
            connection = self._ready()
            try:
                connection.send_bytes(json.dumps(asked).encode())
                connection.send_bytes(content)
                if not connection.poll(seconds):
                    self._stop()
                    raise BadInput(f"{name} cannot be read as an image: decoding took more than {seconds:.1f} seconds.")
                answer = json.loads(connection.recv_bytes())
                if "error" in answer:
                    raise BadInput(answer["error"])
                picture = Image.frombytes("RGB", tuple(answer["size"]), connection.recv_bytes())
            except (EOFError, OSError, json.JSONDecodeError) as error:  # killed, such as by the limit on memory
                self._stop()
                why = "its decoder failed or ran out of memory."
                raise BadInput(f"{name} cannot be read as an image: {why}") from error
            return picture, int(answer["pixels"])

    def end(self) -> None:
        """Kill the process for good; a thread that waits for it gets an error."""
        self._ended = True
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._stop()

    def _ready(self) -> Connection:
        if self._connection is None or self._process is None or self._process.poll() is not None:
            self._stop()
            if self._ended:
                raise NoDecoder("The server is ending.")
            ours, theirs = socket.socketpair()
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.serving.decoding", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),), env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
            )
            theirs.close()
            self._connection = Connection(ours.detach())
            try:
                started = self._connection.poll(START) and self._connection.recv_bytes() == b"ready"
            except (EOFError, OSError):
                started = False
            if not started:
                self._stop()
                raise NoDecoder("Images cannot be decoded at the moment: the decoder did not start.")
        return self._connection

    def _stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._connection = self._process = None


def work(connection: Connection) -> None:
    """Answer until the server is gone."""
    pictures.formats()
    _limit_memory()
    connection.send_bytes(b"ready")
    while True:
        try:
            asked: dict[str, Any] = json.loads(connection.recv_bytes())
            content = connection.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            picture = pictures.decoded(content, asked["name"], asked["pixels"])
            used = picture.width * picture.height
            if asked["size"] is not None:
                picture = pictures.cover(picture, *asked["size"])
            pixels = picture.tobytes()
        except (BadInput, MemoryError) as error:
            told = str(error) or f"{asked['name']} cannot be read as an image: it needs too much memory."
            connection.send_bytes(json.dumps({"error": told[:500]}).encode())
            continue
        connection.send_bytes(json.dumps({"size": picture.size, "pixels": used}).encode())
        connection.send_bytes(pixels)


def _limit_memory() -> None:
    """Allow EXTRA bytes of address space beyond what is in use, where the system can count it."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA, used + EXTRA))


if __name__ == "__main__":
    work(Connection(int(sys.argv[1])))
