"""A real server on loopback, and pictures to teach it."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

SHAPES = ("circle", "cross", "stripes", "stranger")


def picture(kind: str, seed: int, size: int = 48) -> bytes:
    """Draw a shape somewhere near the centre, with noise, as a PNG."""
    draw = np.random.RandomState(1000 * SHAPES.index(kind) + seed)
    ground, ink = tuple(draw.randint(190, 240, 3).tolist()), tuple(draw.randint(10, 90, 3).tolist())
    image = Image.new("RGB", (size, size), ground)
    pen, (x, y), r = ImageDraw.Draw(image), draw.randint(-4, 5, 2) + size // 2, int(draw.randint(12, 17))
    if kind == "circle":
        pen.ellipse((x - r, y - r, x + r, y + r), outline=ink, width=5)
    elif kind == "cross":
        pen.line((x - r, y, x + r, y), fill=ink, width=6)
        pen.line((x, y - r, x, y + r), fill=ink, width=6)
    elif kind == "stripes":
        for at in range(-r, r + 1, 8):
            pen.line((x - r, y + at, x + r, y + at), fill=ink, width=3)
    else:
        image = Image.fromarray(draw.randint(0, 255, (size, size, 3), dtype=np.uint8))
    noisy = np.clip(np.asarray(image) + draw.normal(scale=8, size=(size, size, 3)), 0, 255).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(noisy).save(content, "PNG")
    return content.getvalue()


def files(kind: str, count: int, start: int = 0) -> list[tuple[str, tuple[str, bytes]]]:
    """Return the fields of a form with pictures of one kind."""
    return [("images", (f"{kind}-{i}.png", picture(kind, start + i))) for i in range(count)]


class Running:
    """A server process and its address."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address

    def end(self, number: int = signal.SIGTERM, seconds: float = 60) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)


def start(folder: Path, *flags: str, environment: dict[str, str] | None = None) -> Running:
    """Start `holdfast serve` and wait until it answers."""
    command = [sys.executable, "-m", "holdfast", "serve", str(folder), "--port", "0", "--threads", "1", "--device",
               "cpu", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})})
    assert process.stderr is not None
    told, seen = None, []
    while told is None:
        line = process.stderr.readline()
        assert line, "".join(seen)
        seen.append(line)
        told = re.search(r"at (http://\S+), its", line)
    running = Running(process, told.group(1))
    import httpx

    for _ in range(100):
        try:
            if httpx.get(f"{running.address}/health", timeout=30).status_code == 200:
                return running
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the server does not answer")


@contextmanager
def serving(folder: Path, *flags: str, **more: Any) -> Iterator[Running]:
    running = start(folder, *flags, **more)
    try:
        yield running
    finally:
        running.end(signal.SIGKILL)
        assert running.process.stderr is not None
        running.process.stderr.close()
