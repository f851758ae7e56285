"""Images that stay on disk: a memory-mapped array, or a folder of files that processes decode ahead.

They stand where a resident tensor of images stands in `Samples`: indexed by rows they give a batch, on the device.
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

from .errors import BadData, SteadfastError
from .performance import cores

RESIDENT = 2**27  # bytes of a mapped file that may stay in the process's memory
FAULT = 2**16  # bytes that the system maps around each one touched
AHEAD = 4  # batches decoded before they are asked for
LARGEST_HEADER = 10_000  # bytes, of a .npy file; numpy's own limit
READ = 2**24  # bytes that are read at once for it


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
        """The same images; batches of them go to `device`."""
        moved = copy.copy(self)
        moved.device = torch.device(device)
        return moved

    def read(self, rows: np.ndarray) -> np.ndarray:
        """These rows, as an array of its own."""
        raise NotImplementedError

    def expect(self, batches: Iterator[Tensor]) -> None:
        """These batches will be asked for next, in this order."""

    def sizes(self) -> list[int]:
        """Bytes on disk: of all images together, or of each."""
        raise NotImplementedError

    def contents(self, rows: np.ndarray) -> Iterator[bytes]:
        """What lies on disk of these rows, in turn."""
        raise NotImplementedError


class Mapped(Stored):
    """The rows of a .npy file; what was read is given back to the system, so the file may be of any size."""

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
    """Image files, scaled to one size; the batches that training expects are decoded ahead by `workers` processes."""

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
                with _while_they_live():
                    return future.result()
            future.cancel()  # something else was asked for first; go on with what follows
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
            self._pool = ProcessPoolExecutor(self.workers, spawn, initializer=_serve)
        for rows in self._coming:
            wanted = rows.cpu().numpy()
            with _while_they_live():
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
def _while_they_live() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise SteadfastError(
            "A process that decodes images has ended before its time: killed from outside, for want of memory, or by a "
            "picture. The last checkpoint is intact; give the same command to go on from it."
        ) from error


def _serve() -> None:
    """In a process that decodes: it ends with the one it works for, however that ends, and not before.

    A Ctrl-C of the terminal and a SIGTERM of Slurm reach every process; the run still needs its batch to save."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(0)


def decode(paths: Sequence[str], shape: tuple[int, ...]) -> np.ndarray:
    """Image files to (n, *shape) bytes."""
    from . import inputs

    return inputs.images(list(paths), shape).numpy()


def open_npy(path: Path) -> np.memmap:
    """A .npy file, whose header is believed only as far as there are bytes for it: nothing of its size is made."""
    if not path.is_file():
        raise BadData(f"There is no file {path}; write it with numpy.save.")
    try:
        with open(path, "rb") as file:
            start = file.read(12)
        length = int.from_bytes(start[8:10] if start[6:7] == b"\1" else start[8:], "little")
        if length > LARGEST_HEADER:
            raise ValueError(f"a header of {length:,} bytes")
        return np.lib.format.open_memmap(path, mode="r")  # it knows no pickles
    except Exception as error:  # a header is parsed as Python is, and fails in as many ways
        raise BadData(f"{path} cannot be read as a .npy array: {type(error).__name__}: {str(error)[:200]}") from error
