"""Parse verified bytes into uint8 tensors: idx (MNIST's format) and CIFAR's binary records, from gzip and tar.

Every size and count in a header is compared with the bytes present. Nothing is unpickled.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import BadData
from .published import SIDE, Entry, Packed, Part

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

_TAR_SLACK = 1 << 20  # headers, padding and the small text files beside the parts


def gunzip(data: bytes, part: Part) -> bytes:
    """Decompress a gzip file that must hold exactly `part.size` bytes; stop at one byte more."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        content = unpacker.decompress(data, part.size + 1)
    except zlib.error as error:
        raise BadData(f"{part.name}: the gzip data is broken ({error})") from error
    if len(content) != part.size:
        seen = f"more than {part.size:,}" if len(content) > part.size else f"only {len(content):,}"
        raise BadData(f"{part.name}: unpacks to {seen} bytes, {part.size:,} wanted")
    if not unpacker.eof or unpacker.unused_data:
        raise BadData(f"{part.name}: the gzip data does not end where the content does")
    return content


class _Bounded(io.RawIOBase):
    """A reader that raises after `limit` bytes, against archives that decompress without end."""

    def __init__(self, source: gzip.GzipFile, limit: int) -> None:
        self.source, self.left = source, limit

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > self.left + 1:
            size = self.left + 1
        chunk = self.source.read(size)
        self.left -= len(chunk)
        if self.left < 0:
            raise BadData("the archive unpacks to more than it should hold")
        return chunk


def untar(data: bytes, packed: Packed, folder: str) -> dict[str, bytes]:
    """Return the parts of a .tar.gz by name; accept only regular members with the expected name and size."""
    wanted = {f"{folder}/{part.name}": part for part in packed.parts}
    found: dict[str, bytes] = {}
    limit = sum(part.size for part in packed.parts) + _TAR_SLACK
    try:
        stream = _Bounded(gzip.GzipFile(fileobj=io.BytesIO(data)), limit)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                part = wanted.get(member.name)
                if part is None:
                    continue
                if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
                    raise BadData(f"{packed.file}: {member.name} is not a regular file")
                if member.size != part.size:
                    raise BadData(
                        f"{packed.file}: {member.name} has {member.size:,} bytes, {part.size:,} wanted"
                    )
                if part.name in found:
                    raise BadData(f"{packed.file}: {member.name} is there twice")
                content = archive.extractfile(member)
                assert content is not None  # a regular member
                found[part.name] = content.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise BadData(f"{packed.file}: the archive is broken ({error})") from error
    missing = [name for name, part in wanted.items() if part.name not in found]
    if missing:
        raise BadData(f"{packed.file}: {', '.join(missing)} not in the archive")
    return found


def idx(data: bytes, name: str, dimensions: int) -> np.ndarray:
    """Parse an idx file of unsigned bytes: a big-endian header (type, dimensions, sizes), then the values."""
    import numpy as np

    head = 4 + 4 * dimensions
    if len(data) < head:
        raise BadData(f"{name}: {len(data)} bytes are fewer than the {head} of an idx header")
    magic, *shape = struct.unpack(f">{1 + dimensions}I", data[:head])
    if magic != 0x0800 + dimensions:
        raise BadData(f"{name}: the idx header says {magic:#010x}, {0x0800 + dimensions:#010x} wanted")
    wanted = 1
    for size in shape:
        wanted *= size
    if wanted != len(data) - head:
        raise BadData(
            f"{name}: the idx header promises {' x '.join(map(str, shape))} = {wanted:,} bytes, "
            f"{len(data) - head:,} are there"
        )
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def _idx_split(parts: Mapping[str, bytes], names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Return the images, padded with zeros to 32x32, and the labels."""
    import numpy as np
    import torch

    images, labels = idx(parts[names[0]], names[0], 3), idx(parts[names[1]], names[1], 1)
    count, height, width = images.shape
    if (height, width) != (28, 28):
        raise BadData(f"{names[0]}: images of {height}x{width}, 28x28 wanted")
    if count != len(labels):
        raise BadData(f"{names[0]} has {count:,} images, {names[1]} {len(labels):,} labels")
    padded = torch.zeros(count, 1, SIDE, SIDE, dtype=torch.uint8)
    padded.numpy()[:, 0, 2:-2, 2:-2] = images
    return padded, torch.from_numpy(labels.astype(np.int64))


def _cifar_split(
    parts: Mapping[str, bytes], names: tuple[str, ...], label_bytes: int
) -> tuple[Tensor, Tensor]:
    """Concatenate batches of records; each record is the label bytes, then 3 x 32 x 32 pixels."""
    import numpy as np
    import torch

    record = label_bytes + 3 * SIDE * SIDE
    for name in names:
        if not parts[name] or len(parts[name]) % record:
            raise BadData(f"{name}: {len(parts[name]):,} bytes are not whole records of {record}")
    counts = [len(parts[name]) // record for name in names]
    images = torch.empty(sum(counts), 3, SIDE, SIDE, dtype=torch.uint8)
    labels = torch.empty(sum(counts), dtype=torch.int64)
    start = 0
    for name, count in zip(names, counts):
        rows = np.frombuffer(parts[name], np.uint8).reshape(count, record)
        images.view(-1, record - label_bytes).numpy()[start : start + count] = rows[:, label_bytes:]
        labels.numpy()[start : start + count] = rows[:, label_bytes - 1]
        start += count
    return images, labels


def split(entry: Entry, parts: Mapping[str, bytes], names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Return images (n, channels, 32, 32) uint8 and labels (n,) int64 from the parts called `names`."""
    if entry.form == "idx":
        images, labels = _idx_split(parts, names)
    else:
        images, labels = _cifar_split(parts, names, entry.label_bytes)
    if len(labels) and int(labels.max()) >= len(entry.classes):
        raise BadData(f"{names[-1]}: label {int(labels.max())}, but there are {len(entry.classes)} classes")
    return images, labels
