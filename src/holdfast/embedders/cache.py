"""Vectors on disk, by the sample's content and the embedder's fingerprint, so that nothing is embedded twice.

One SQLite file: a transaction is whole or not at all, whatever process is killed, and several processes may share it.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from PIL import Image

from ..data import inputs
from ..errors import CannotWrite
from .base import Embedder, Watch

LIMIT = 2_000_000_000  # bytes; beyond it, the vectors that were not used for longest are deleted
WAIT = 60.0  # seconds to wait for another process that writes


class Cache:
    """A file of vectors. `get` and `put` take keys; `size` and `clear` are for people."""

    def __init__(self, path: Path | None = None, limit: int = LIMIT) -> None:
        self.path = path or platformdirs.user_cache_path("holdfast") / "vectors.sqlite"
        self.limit = limit

    @contextlib.contextmanager
    def _open(self) -> Any:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=WAIT)) as base:
                base.execute("PRAGMA journal_mode=WAL")
                base.execute(
                    "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, embedder TEXT, used REAL, vector BLOB)"
                )
                yield base
        except (OSError, sqlite3.DatabaseError) as error:
            raise CannotWrite(
                f"The cache of vectors {self.path} cannot be used: {error}. `holdfast cache --clear` replaces a "
                f"damaged file; `learn --no-cache` does without."
            ) from error

    def get(self, keys: Sequence[bytes]) -> dict[bytes, np.ndarray]:
        """Return the vectors that are known of these keys."""
        found: dict[bytes, np.ndarray] = {}
        with self._open() as base, base:
            for start in range(0, len(keys), 500):
                part = list(keys[start : start + 500])
                marks = ",".join("?" * len(part))
                for key, blob in base.execute(f"SELECT key, vector FROM vectors WHERE key IN ({marks})", part):
                    found[key] = np.frombuffer(blob, np.float32)
                base.execute(f"UPDATE vectors SET used=? WHERE key IN ({marks})", [time.time(), *part])
        return found

    def put(self, embedder: str, vectors: dict[bytes, np.ndarray]) -> None:
        """Keep these vectors, all of them or none; then make room if the file has grown beyond its limit."""
        now = time.time()
        rows = [(key, embedder, now, vector.astype(np.float32).tobytes()) for key, vector in vectors.items()]
        with self._open() as base, base:
            base.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", rows)
            total = base.execute("SELECT COALESCE(SUM(LENGTH(vector)), 0) FROM vectors").fetchone()[0]
            if total > self.limit:
                count = base.execute("SELECT COUNT(*) FROM vectors").fetchone()[0]
                drop = int(count * (1 - 0.8 * self.limit / total)) + 1
                base.execute("DELETE FROM vectors WHERE key IN (SELECT key FROM vectors ORDER BY used LIMIT ?)", [drop])

    def size(self) -> dict[str, tuple[int, int]]:
        """Return (vectors, bytes) for each embedder."""
        with self._open() as base:
            rows = base.execute("SELECT embedder, COUNT(*), SUM(LENGTH(vector)) FROM vectors GROUP BY embedder")
            return {name: (count, size) for name, count, size in rows}

    def clear(self) -> None:
        """Delete every vector, and the file if it is damaged."""
        try:
            with self._open() as base:
                with base:
                    base.execute("DELETE FROM vectors")
                base.execute("VACUUM")
        except CannotWrite as error:
            if isinstance(error.__cause__, OSError | sqlite3.OperationalError):  # not damaged, but locked or forbidden
                raise
            for end in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + end).unlink(missing_ok=True)


class Cached:
    """An embedder that asks the cache first. A vector comes back with the bits that were stored.

    The missing samples are embedded in batches of their own. So where an embedder's rounding depends on the batch, as a
    padded transformer's does, a partly filled cache gives vectors that differ from uncached ones in the last bits."""

    def __init__(self, embedder: Embedder, cache: Cache | None = None) -> None:
        self.embedder, self.cache = embedder, cache or Cache()

    def __call__(self, samples: Sequence[Any], watch: Watch = lambda count: None) -> np.ndarray:
        images = self.embedder.takes == "images"
        keys = [key_of(sample, self.embedder.fingerprint, images=images) for sample in samples]
        found: dict[bytes, np.ndarray] = {}
        with _or_without_it():
            found = self.cache.get(list(dict.fromkeys(keys)))
        missing = {key: row for row, key in enumerate(keys) if key not in found}  # equal samples once
        watch(len(samples) - len(missing))
        rows = list(missing.values())
        step = max(self.embedder.batch, 256)
        for start in range(0, len(rows), step):  # kept as it goes: a kill loses one portion at most
            part = rows[start : start + step]
            made = self.embedder([samples[row] for row in part], watch)
            fresh = {keys[row]: vector for row, vector in zip(part, made)}
            with _or_without_it():
                self.cache.put(self.embedder.fingerprint, fresh)
            found |= fresh
        return np.stack([found[key] for key in keys])


@contextlib.contextmanager
def _or_without_it() -> Iterator[None]:
    """Warn of a cache that cannot be used, and go on: the vectors are the same."""
    try:
        yield
    except CannotWrite as error:
        warnings.warn(str(error), stacklevel=4)


def key_of(sample: Any, fingerprint: str, *, images: bool = False) -> bytes:
    """Return the SHA-256 of a sample's content and the embedder's fingerprint; of `images`, a string is a path."""
    seen = hashlib.sha256(fingerprint.encode() + b"\0")
    if isinstance(sample, str) and not images:
        seen.update(b"text\0" + sample.encode())
    elif isinstance(sample, str | Path):
        seen.update(b"file\0" + Path(sample).read_bytes())
    elif isinstance(sample, Image.Image):
        picture = inputs.as_picture(sample, "in a list")  # as an embedder sees it: palette and rotation applied
        seen.update(f"image\0{picture.size}".encode() + picture.tobytes())
    elif hasattr(sample, "shape"):  # an array, or a tensor, whose axes are read in another order
        array = np.asarray(inputs.plain(sample))
        seen.update(f"{type(sample).__name__}\0{array.dtype}{array.shape}".encode() + array.tobytes())
    else:
        seen.update(b"value\0" + repr(sample).encode())
    return seen.digest()
