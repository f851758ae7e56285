"""Images that stay on disk: a memory-mapped array, or image files that worker processes decode in advance.

They replace the resident tensor of images in `Samples`: indexing them with rows returns a batch on the device.
"""

from __future__ import annotations

import copy
import mmap
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData, HoldfastError
from ..hardware import cores

RESIDENT = 2**27  # bytes of a mapped file that may stay in the process's memory
FAULT = 2**16  # bytes that the system maps per page fault
AHEAD = 4  # batches decoded in advance
LARGEST_HEADER = 10_000  # bytes of a .npy header; numpy's own limit
READ = 2**24  # bytes per read when a fingerprint is computed


class Stored:
    """uint8 images (n, channels, height, width) on disk; `images[rows]` reads a batch."""

    shape: tuple[int, ...]
    device = torch.device("cpu")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        chosen = torch.arange(len(self))[rows] if isinstance(rows, slice) else rows.cpu()
        if not len(chosen):
            return torch.empty(0, *self.shape[1:], dtype=torch.uint8, device=self.device)
        return torch.from_numpy(self.read(chosen.numpy())).to(self.device)

    def to(self, device: torch.device | str) -> Stored:
        """Return a copy whose batches are moved to `device`."""
        moved = copy.copy(self)
        moved.device = torch.device(device)
        return moved

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return a copy of these rows."""
        raise NotImplementedError

    def expect(self, batches: Iterator[Tensor]) -> None:
        """Announce the batches that will be read next, in this order."""

    def sizes(self) -> list[int]:
        """Return the bytes on disk: one total, or one size per image file."""
        raise NotImplementedError

    def contents(self, rows: np.ndarray) -> Iterator[bytes]:
        """Yield the bytes on disk of these rows."""
        raise NotImplementedError


class Mapped(Stored):
    """The rows of a .npy file of any size; pages that were read are released again, which bounds memory."""

    def __init__(self, path: Path) -> None:
        self.array = open_npy(path)
        if self.array.dtype != np.uint8 or self.array.ndim != 4 or not self.array.size:
            raise BadData(
                f"{path} holds {self.array.dtype} of shape {self.array.shape}; images are bytes (uint8) of shape "
                f"(n, channels, height, width)."
            )
        self.shape = self.array.shape
        self._touched = 0

    def read(self, rows: np.ndarray) -> np.ndarray:
        batch = self.array[rows]  # a copy
        self._touched += max(batch.nbytes, len(rows) * FAULT)
        if self._touched > RESIDENT and hasattr(mmap, "MADV_DONTNEED"):
            self.array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
            self._touched = 0
        return batch

    def sizes(self) -> list[int]:
        return [self.array.nbytes]

    def contents(self, rows: np.ndarray) -> Iterator[bytes]:
        at_once = max(1, READ * len(self) // self.array.nbytes)
        return (self.read(rows[begin : begin + at_once]).tobytes() for begin in range(0, len(rows), at_once))


class Pictures(Stored):
    """Image files, scaled to one size; `workers` processes decode the announced batches in advance."""

    def __init__(self, paths: Sequence[Path], shape: tuple[int, int, int], workers: int | None = None) -> None:
        self.paths, self.shape = [str(path) for path in paths], (len(paths), *shape)
        self.workers = cores() if workers is None else workers
        self._pool: ProcessPoolExecutor | None = None
        self._coming: Iterator[Tensor] = iter(())
        self._begun: deque[tuple[np.ndarray, Future[np.ndarray]]] = deque()

    def read(self, rows: np.ndarray) -> np.ndarray:
        while self._begun:
            expected, future = self._begun.popleft()
            self._begin()
            if np.array_equal(expected, rows):
                with _report_killed_workers():
                    return future.result()
            future.cancel()  # another batch is read than was announced; try the next announced one
        return decode([self.paths[row] for row in rows], self.shape[1:])

    def expect(self, batches: Iterator[Tensor]) -> None:
        for _, future in self._begun:
            future.cancel()
        self._begun.clear()
        self._coming = batches
        for _ in range(max(AHEAD, self.workers) if self.workers else 0):
            self._begin()

    def _begin(self) -> None:
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.workers, spawn, initializer=_initialise_worker)
        for rows in self._coming:
            wanted = rows.cpu().numpy()
            with _report_killed_workers():
                future = self._pool.submit(decode, [self.paths[row] for row in wanted], self.shape[1:])
            self._begun.append((wanted, future))
            return

    def sizes(self) -> list[int]:
        try:
            return [os.stat(path).st_size for path in self.paths]
        except OSError as error:
            raise BadData(f"{error.filename} cannot be read: {error.strerror}") from error

    def contents(self, rows: np.ndarray) -> Iterator[bytes]:
        try:
            yield from (Path(self.paths[row]).read_bytes() for row in rows)
        except OSError as error:
            raise BadData(f"{error.filename} cannot be read: {error.strerror}") from error


@contextmanager
def _report_killed_workers() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise HoldfastError(
            "A process that decodes images was killed: from outside, because memory ran out, or by a damaged image. "
            "The last checkpoint is intact; give the same command to resume from it."
        ) from error


def _initialise_worker() -> None:
    """Make a decoding process ignore signals and end when its parent ends.

    Ctrl-C and Slurm's SIGTERM reach every process, but the run still needs its batch before it can save."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(0)


def decode(paths: Sequence[str], shape: tuple[int, ...]) -> np.ndarray:
    """Decode image files into (n, *shape) bytes."""
    from . import inputs

    return inputs.images(list(paths), shape).numpy()


def open_npy(path: Path) -> np.memmap:
    """Memory-map a .npy file; a header that claims more bytes than the file has is refused, never allocated."""
    if not path.is_file():
        raise BadData(f"There is no file {path}; write it with numpy.save.")
    try:
        with open(path, "rb") as file:
            start = file.read(12)
        length = int.from_bytes(start[8:10] if start[6:7] == b"\1" else start[8:], "little")
        if length > LARGEST_HEADER:
            raise ValueError(f"a header of {length:,} bytes")
        return np.lib.format.open_memmap(path, mode="r")  # never unpickles
    except Exception as error:  # numpy parses the header as a Python literal, which can raise many exceptions
        raise BadData(f"{path} cannot be read as a .npy array: {type(error).__name__}: {str(error)[:200]}") from error
