"""Decode uploaded images in a separate process with a limit on memory: a hostile file cannot hurt the server.

The process is `python -m holdfast.serving.decoding FD`. Messages are bytes and JSON; nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from PIL import Image

from ..errors import BadInput

EXTRA = 1_000_000_000  # bytes of memory beyond what the process needs to start
SECONDS = 30.0  # for one image
START = 60.0  # seconds for the process to start


class Decoder:
    """One decoding process, started when it is needed and again after a crash."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def start(self) -> None:
        """Start the process now, so that the first request need not wait for it."""
        with self._lock:
            self._ready()

    def decode(self, contents: list[tuple[str, bytes]], pixels: int) -> list[Image.Image]:
        """Return the images; raise BadInput that names the first file that cannot be decoded.

        `pixels` limits all images together."""
        found = []
        for name, content in contents:
            with self._lock:
                reply = self._ask(name, content, pixels)
            found.append(reply)
            pixels -= reply.width * reply.height
        return found

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _ask(self, name: str, content: bytes, pixels: int) -> Image.Image:
        connection = self._ready()
        try:
            connection.send_bytes(json.dumps({"name": name, "pixels": pixels}).encode())
            connection.send_bytes(content)
            if not connection.poll(SECONDS):
                self._stop()
                raise BadInput(f"{name} cannot be read as an image: decoding took more than {SECONDS:g} seconds.")
            answer = json.loads(connection.recv_bytes())
            if "error" in answer:
                raise BadInput(answer["error"])
            return Image.frombytes("RGB", tuple(answer["size"]), connection.recv_bytes())
        except (EOFError, OSError, json.JSONDecodeError) as error:  # it was killed, such as by the limit on memory
            self._stop()
            raise BadInput(f"{name} cannot be read as an image: its decoder failed or ran out of memory.") from error

    def _ready(self) -> Connection:
        if self._connection is None or self._process is None or self._process.poll() is not None:
            self._stop()
            ours, theirs = socket.socketpair()
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.serving.decoding", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),), env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
            )
            theirs.close()
            self._connection = Connection(ours.detach())
            if not self._connection.poll(START) or self._connection.recv_bytes() != b"ready":
                self._stop()
                raise BadInput("Images cannot be decoded at the moment: the decoder did not start.")
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
    from .. import pictures

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
            pixels = picture.tobytes()
        except (BadInput, MemoryError) as error:
            told = str(error) or f"{asked['name']} cannot be read as an image: it needs too much memory."
            connection.send_bytes(json.dumps({"error": told[:500]}).encode())
            continue
        connection.send_bytes(json.dumps({"size": picture.size}).encode())
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
