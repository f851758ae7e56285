"""Tiny data sets under the real ones' names, and the formats they come in."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from holdfast.data import DATASETS, published
from holdfast.data.published import Entry, Packed, Part

NOWHERE = "http://127.0.0.1:9/"  # the discard port: refused at once


def use(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an entry in the place of the published one with its name."""
    monkeypatch.setitem(DATASETS._things, entry.name, entry)
    every = tuple(entry if each.name == entry.name else each for each in published.EVERY)
    monkeypatch.setattr(published, "EVERY", every)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def idx_contents(seed: int) -> dict[str, bytes]:
    rng = np.random.default_rng(seed)
    contents = {}
    for prefix, count in (("train", 7), ("t10k", 3)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        contents[f"{prefix}-images-idx3-ubyte"] = idx_bytes(images)
        contents[f"{prefix}-labels-idx1-ubyte"] = idx_bytes(rng.integers(0, 10, count, dtype=np.uint8))
    return contents


def tar_bytes(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@dataclasses.dataclass
class Fake:
    """A tiny data set under a real one's name: its entry, its unpacked parts, its files as distributed."""

    entry: Entry
    parts: dict[str, bytes]
    files: dict[str, bytes]

    def write(self, root: Path, folder: str, *, packed: bool) -> Path:
        target = root / folder
        target.mkdir(parents=True, exist_ok=True)
        for name, content in (self.files if packed else self.parts).items():
            (target / name).write_bytes(content)
        return root


def fake_idx(name: str, seed: int) -> Fake:
    parts = idx_contents(seed)
    files = {f"{part}.gz": gzip.compress(content, mtime=0) for part, content in parts.items()}
    packed = tuple(
        Packed(f"{part}.gz", len(files[f"{part}.gz"]), sha256(files[f"{part}.gz"]), (_part(part, content),))
        for part, content in parts.items()
    )
    return Fake(dataclasses.replace(DATASETS[name], packed=packed, addresses=(NOWHERE,)), parts, files)


def fake_cifar(name: str, seed: int) -> Fake:
    real = DATASETS[name]
    rng = np.random.default_rng(seed)
    parts = {}
    for part in (*real.train, *real.test):
        records = rng.integers(0, 256, (4, real.label_bytes + 3072), dtype=np.uint8)
        records[:, : real.label_bytes] = rng.integers(0, 10, (4, real.label_bytes))
        parts[part] = records.tobytes()
    file = real.packed[0].file
    archive = tar_bytes({f"{real.folders[0]}/{part}": content for part, content in parts.items()})
    packed = Packed(file, len(archive), sha256(archive), tuple(_part(*item) for item in parts.items()))
    return Fake(dataclasses.replace(real, packed=(packed,), addresses=(NOWHERE,)), parts, {file: archive})


def _part(name: str, content: bytes) -> Part:
    return Part(name, len(content), sha256(content))
