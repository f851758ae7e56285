"""Images that stay on disk: a memory-mapped array, or a folder of files that processes decode ahead.

They stand where a resident tensor of images stands in `Samples`: indexed by rows they give a batch, on the device.
An address, `arrays:FOLDER` or `images:FOLDER`, names such a data set wherever a data set or a benchmark is named.
"""

from __future__ import annotations

import copy
import hashlib
import json
import mmap
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .data import Dataset
from .errors import BadData, BadInput

RESIDENT = 2**27  # bytes of a mapped file that may stay in the process's memory
FAULT = 2**16  # bytes that the system maps around each one touched
AHEAD = 4  # batches decoded before they are asked for
MEASURED = 1000  # images that mean and deviation are taken from, and the fingerprint of more than WHOLE
LARGEST_HEADER = 10_000  # bytes, of a .npy file; numpy's own limit
WHOLE = 2**28  # bytes of images that a fingerprint is taken of as a whole
READ = 2**24  # bytes that are read at once for it
KINDS = ("arrays", "images")
Parts = tuple[tuple["Stored", "Stored"], list[Tensor], tuple[str, ...]]  # (train, test) images, labels; class names
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")


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
        self.array = _mapped(path)
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
            self.array._mmap.madvise(mmap.MADV_DONTNEED)
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
        self.workers = len(os.sched_getaffinity(0)) if workers is None else workers
        self._pool: ProcessPoolExecutor | None = None
        self._coming: Iterator[Tensor] = iter(())
        self._begun: deque[tuple[np.ndarray, Future[np.ndarray]]] = deque()

    def read(self, rows: np.ndarray) -> np.ndarray:
        while self._begun:
            expected, future = self._begun.popleft()
            self._begin()
            if np.array_equal(expected, rows):
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


def address(text: str) -> tuple[str, Path] | None:
    """What `arrays:FOLDER` or `images:FOLDER` names, None if it is neither; the folder absolute, so that a run that
    is named by it is of one folder, from wherever it is started."""
    kind, colon, folder = text.partition(":")
    if not colon or kind not in KINDS:
        return None
    if not folder:
        raise BadData(f"{text!r} names no folder; write it like {kind}:/data/birds.")
    return kind, Path(os.path.abspath(os.path.expanduser(folder)))


def class_names(kind: str, folder: Path) -> tuple[str, ...]:
    """The classes of such a data set, without reading an image."""
    return _array_parts(folder)[2] if kind == "arrays" else _picture_classes(folder)


def fingerprint(kind: str, folder: Path) -> str:
    """Of such a data set as it is now."""
    return _fingerprint(*(_array_parts(folder) if kind == "arrays" else _picture_parts(folder)))


def open_arrays(folder: Path | str) -> Dataset:
    """A data set of train_images.npy, train_labels.npy, test_images.npy, test_labels.npy and, maybe, classes.txt."""
    return _dataset(Path(folder), _array_parts(Path(folder)))


def _dataset(folder: Path, parts: Parts) -> Dataset:
    (train, test), labels, classes = parts
    mean, std = _statistics(train)
    return Dataset(folder.name, train, labels[0], test, labels[1], classes, mean, std, _fingerprint(*parts))  # type: ignore[arg-type]


def _array_parts(folder: Path) -> Parts:
    _must_be(folder, "train_images.npy, train_labels.npy, test_images.npy and test_labels.npy")
    train, test = Mapped(folder / "train_images.npy"), Mapped(folder / "test_images.npy")
    labels = [_labels(folder / "train_labels.npy", len(train)), _labels(folder / "test_labels.npy", len(test))]
    count, samples = int(max(part.max() for part in labels)) + 1, len(train) + len(test)
    if (names := folder / "classes.txt").exists():
        try:
            classes = tuple(names.read_text(encoding="utf-8").removesuffix("\n").split("\n")[:count])
        except (OSError, ValueError) as error:
            raise BadData(f"{names} cannot be read as one name a line: {error}") from error
    elif count > samples:
        raise BadData(
            f"There is a label {count - 1} in {folder}, and only {samples} samples: number the classes from 0 on "
            f"without gaps, or name each in a classes.txt."
        )
    else:
        classes = tuple(map(str, range(count)))
    if len(classes) < count or train.shape[1:] != test.shape[1:]:
        seen = f"labels up to {count - 1}, {len(classes)} names, images of {train.shape[1:]} and {test.shape[1:]}"
        raise BadData(f"The files in {folder} do not fit together: {seen}.")
    return (train, test), labels, classes


def open_pictures(folder: Path | str, size: int = 64, workers: int | None = None) -> Dataset:
    """A data set of files train/CLASS/... and test/CLASS/..., read in colour and scaled to `size` a side."""
    return _dataset(Path(folder), _picture_parts(Path(folder), size, workers))


def _picture_parts(folder: Path, size: int = 64, workers: int | None = None) -> Parts:
    classes = _picture_classes(folder)
    (train, train_labels), (test, test_labels) = (_files(folder / part, classes) for part in ("train", "test"))
    images = Pictures(train, (3, size, size), workers), Pictures(test, (3, size, size), workers)
    return images, [torch.tensor(train_labels), torch.tensor(test_labels)], classes


def _picture_classes(folder: Path) -> tuple[str, ...]:
    _must_be(folder, "images in train/CLASS and test/CLASS")
    classes = tuple(sorted(path.name for path in (folder / "train").glob("*/") if path.is_dir()))
    if not classes:
        raise BadData(f"{folder / 'train'} has no folders; put each class's images into train/CLASS and test/CLASS.")
    return classes


def _must_be(folder: Path, holding: str) -> None:
    if not folder.is_dir():
        raise BadData(f"There is no folder {folder} here; name one that holds {holding}.")


def _files(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    found = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES and path.is_file()
    ]
    if not found:
        raise BadData(f"{folder} has no images of the classes {', '.join(classes[:5])}.")
    return [path for path, _ in found], [label for _, label in found]


def _mapped(path: Path) -> np.memmap:
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


def _labels(path: Path, count: int) -> Tensor:
    labels = _mapped(path)
    if labels.dtype.kind not in "iu" or labels.shape != (count,) or not 0 <= labels.min() <= labels.max() < 2**63:
        raise BadData(f"{path} holds {labels.dtype} of shape {labels.shape}; labels are {count} whole numbers from 0.")
    return torch.from_numpy(labels.astype(np.int64))


def _statistics(images: Stored) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation a channel, of some images evenly over all of them."""
    some = _evenly(images)
    sums = torch.zeros(2, images.shape[1], dtype=torch.float64)
    parts: Iterable[Tensor] = some.split(50)
    for part in parts:
        try:
            pixels = images[part].double() / 255
        except BadInput as error:
            raise BadData(str(error)) from error
        sums += torch.stack([pixels.mean((2, 3)).sum(0), pixels.square().mean((2, 3)).sum(0)])
    mean, square = sums / len(some)
    return tuple(mean.tolist()), tuple((square - mean.square()).clamp(min=0.0025).sqrt().tolist())


def _fingerprint(images: tuple[Stored, Stored], labels: list[Tensor], classes: tuple[str, ...]) -> str:
    """By which a run knows its data again: class names, labels, sizes, and the images' bytes.

    Of more than WHOLE bytes only MEASURED images evenly over all of them, so that it is soon done for data of any size.
    What files are called does not count, but for their order."""
    seen = hashlib.sha256(json.dumps(classes).encode())
    for part, of in zip(images, labels):
        sizes = part.sizes()
        seen.update(json.dumps([part.shape, sizes]).encode() + of.numpy().astype("<i8").tobytes())
        for content in part.contents(np.arange(len(part)) if sum(sizes) <= WHOLE else _evenly(part).numpy()):
            seen.update(content)
    return seen.hexdigest()


def _evenly(images: Stored) -> Tensor:
    """MEASURED rows evenly over all of them, or all."""
    return torch.linspace(0, len(images) - 1, min(MEASURED, len(images))).long()
