"""Search for data files and verify each copy by SHA-256 before it is used.

A copy is read once; the same bytes are hashed, unpacked and parsed, so it cannot change in between.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import platformdirs

from ..errors import BadData
from .parse import gunzip, untar
from .published import Entry, Packed, Part, belongs_elsewhere

VARIABLE = "HOLDFAST_DATA"


@dataclass(frozen=True)
class Place:
    """A folder to search, and the setting that named it: `--data`, `HOLDFAST_DATA` or `cache`."""

    where: str
    folder: Path


@dataclass(frozen=True)
class Found:
    """One file of a data set and its status; `detail` says what is wrong with a damaged copy."""

    file: str
    sha256: str
    path: Path | None
    status: Literal["ok", "missing", "damaged"]
    where: str | None
    detail: str = ""


@dataclass
class Search:
    """The result of a search: one row per copy, the verified parts and their origin, and the files still missing."""

    entry: Entry
    places: list[Place]
    rows: list[Found] = field(default_factory=list)
    parts: dict[str, bytes] = field(default_factory=dict)
    origin: dict[str, Path] = field(default_factory=dict)
    wanted: list[Packed] = field(default_factory=list)

    @property
    def damaged(self) -> list[Found]:
        """Return the copies that were refused."""
        return [row for row in self.rows if row.status == "damaged"]

    def instead_of(self, bad: Found) -> list[Path]:
        """Return the copies that were used in place of a damaged one."""
        parts = [
            part.name
            for packed in self.entry.packed
            for part in packed.parts
            if bad.file in (part.name, packed.file)
        ]
        return sorted({self.origin[name] for name in parts if name in self.origin})


def cache_folder() -> Path:
    """Return the user's cache folder, which has the layout of any other data folder."""
    return platformdirs.user_cache_path("holdfast")


def places(root: str | Path | None = None) -> list[Place]:
    """Return the folders to search, in order; raise BadData if the user named one that does not exist."""
    named = [("--data", root), (VARIABLE, os.environ.get(VARIABLE))]
    found = [Place(where, Path(folder).expanduser()) for where, folder in named if folder]
    for place in found:
        if not place.folder.is_dir():
            raise BadData(f"{place.where} names {place.folder}, which is not a folder: create it, or name another.")
    return [*found, Place("cache", cache_folder())]


def _read(path: Path, known: tuple[tuple[int, str], ...]) -> tuple[bytes, str, int]:
    """Return content, sha256 and size of a file; a file of unexpected size is hashed in chunks, without its content."""
    sizes = {size for size, _ in known}
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size in sizes:
            content = file.read(max(sizes) + 1)
            return content, hashlib.sha256(content).hexdigest(), len(content)
        digest, size = hashlib.sha256(), 0
        while piece := file.read(1 << 20):
            digest.update(piece)
            size += len(piece)
    return b"", digest.hexdigest(), size


def _unpack(content: bytes, source: Part | Packed, entry: Entry) -> dict[str, bytes]:
    """Return the parts of a verified file, each checked against its own checksum."""
    if isinstance(source, Part):
        return {source.name: content}
    if entry.form == "idx":
        parts = {part.name: gunzip(content, part) for part in source.parts}
    else:
        parts = untar(content, source, entry.folders[0])
    for part in source.parts:
        seen = hashlib.sha256(parts[part.name]).hexdigest()
        if seen != part.sha256:
            raise BadData(f"{part.name} inside has sha256 {seen}, {part.sha256} wanted")
    return parts


def _examine(
    path: Path, source: Part | Packed, entry: Entry, where: str
) -> tuple[Found, dict[str, bytes]] | None:
    """Verify and unpack one copy; return None if it is absent or a valid file of another data set."""
    file = source.name if isinstance(source, Part) else source.file
    known = ((source.size, source.sha256),) if isinstance(source, Part) else source.known
    try:
        if not path.is_file():
            return None
        content, seen, size = _read(path, known)
        if (size, seen) in known:
            return Found(file, seen, path, "ok", where), _unpack(content, source, entry)
        if belongs_elsewhere(seen, entry):
            return None
        problem = f"sha256 {seen} and {size:,} bytes; wanted {known[0][1]} and {known[0][0]:,} bytes"
    except (OSError, BadData) as error:
        problem = str(error)
    return Found(file, known[0][1], path, "damaged", where, problem), {}


def _copies(entry: Entry, packed: Packed, looked: list[Place]) -> Iterator[tuple[Path, Part | Packed, str]]:
    """Yield the possible paths of a file and its parts in search order; in each place unpacked parts come first."""
    for place in looked:
        sources: list[Part | Packed] = [*packed.parts, packed]
        for source in sources:
            name = source.name if isinstance(source, Part) else source.file
            for folder in entry.folders:
                yield place.folder / folder / name, source, place.where


def search(entry: Entry, root: str | Path | None = None) -> Search:
    """Search for every part of a data set; report a damaged copy and try the next one."""
    result = Search(entry, places(root))
    for packed in entry.packed:
        lacking, refused = {part.name for part in packed.parts}, set[str]()
        for path, source, where in _copies(entry, packed, result.places):
            gives = {source.name} if isinstance(source, Part) else {part.name for part in packed.parts}
            copy = _examine(path, source, entry, where) if gives & lacking else None
            if copy is None:
                continue
            row, parts = copy
            result.rows.append(row)
            refused |= gives if row.status == "damaged" else set()
            for name in parts.keys() & lacking:
                result.parts[name], result.origin[name] = parts[name], path
            lacking -= parts.keys()
        if lacking:
            result.wanted.append(packed)
            result.rows += _missing(packed, lacking - refused)
    return result


def _missing(packed: Packed, absent: set[str]) -> list[Found]:
    """Return one row for the packed file if all its parts are missing, else one row per missing part."""
    if len(absent) == len(packed.parts):
        return [Found(packed.file, packed.sha256, None, "missing", None)]
    return [Found(part.name, part.sha256, None, "missing", None) for part in packed.parts if part.name in absent]
