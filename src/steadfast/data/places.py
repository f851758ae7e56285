"""Where data files are looked for, and what is found there: each copy is hashed before a byte of it is used.

A copy is read once, and those bytes are hashed, unpacked and parsed: no gap in which it could change.
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
from .catalog import Entry, Packed, Part, belongs_elsewhere
from .parse import gunzip, untar

VARIABLE = "STEADFAST_DATA"


@dataclass(frozen=True)
class Place:
    """A folder to look in, and what the user calls it: `--data`, `STEADFAST_DATA` or `cache`."""

    where: str
    folder: Path


@dataclass(frozen=True)
class Found:
    """One file of a data set: a good copy, a damaged one, or none at all; `detail` says what is wrong."""

    file: str
    sha256: str
    path: Path | None
    status: Literal["ok", "missing", "damaged"]
    where: str | None
    detail: str = ""


@dataclass
class Search:
    """What a search brought: a row for each copy, the verified parts and their origin, and what is wanted."""

    entry: Entry
    places: list[Place]
    rows: list[Found] = field(default_factory=list)
    parts: dict[str, bytes] = field(default_factory=dict)
    origin: dict[str, Path] = field(default_factory=dict)
    wanted: list[Packed] = field(default_factory=list)

    @property
    def damaged(self) -> list[Found]:
        """The copies that were refused."""
        return [row for row in self.rows if row.status == "damaged"]

    def instead_of(self, bad: Found) -> list[Path]:
        """The copies that gave what a refused one should have given."""
        parts = [
            part.name
            for packed in self.entry.packed
            for part in packed.parts
            if bad.file in (part.name, packed.file)
        ]
        return sorted({self.origin[name] for name in parts if name in self.origin})


def cache_folder() -> Path:
    """The user's cache folder, laid out like any other data folder."""
    return platformdirs.user_cache_path("steadfast")


def places(root: str | Path | None = None) -> list[Place]:
    """The folders to look in, in order; one that the user named must exist."""
    named = [("--data", root), (VARIABLE, os.environ.get(VARIABLE))]
    found = [Place(where, Path(folder).expanduser()) for where, folder in named if folder]
    for place in found:
        if not place.folder.is_dir():
            raise BadData(f"{place.where} names {place.folder}, which is not a folder: make it, or drop it.")
    return [*found, Place("cache", cache_folder())]


def _read(path: Path, known: tuple[tuple[int, str], ...]) -> tuple[bytes, str, int]:
    """Content, sha256 and size of a file; one of an unknown size is hashed in pieces and not kept."""
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
    """The parts in a verified file, each checked against its own checksum."""
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
    """One copy, verified and unpacked; None if it is not there or is a good file of another data set."""
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


def _copies(
    entry: Entry, packed: Packed, part: Part, looked: list[Place]
) -> Iterator[tuple[Path, bool, str]]:
    """Where a part may be, in the order to try (path, packed?, where): in each place unpacked first."""
    for place in looked:
        for is_packed, name in ((False, part.name), (True, packed.file)):
            for folder in entry.folders:
                yield place.folder / folder / name, is_packed, place.where


def search(entry: Entry, root: str | Path | None = None) -> Search:
    """Look for every part of a data set, in order; a damaged copy is reported and the next one tried."""
    result = Search(entry, places(root))
    seen: set[Path] = set()  # an archive is met once for each of its parts
    for packed in entry.packed:
        refused: set[str] = set()
        for part in packed.parts:
            for path, is_packed, where in _copies(entry, packed, part, result.places):
                if part.name in result.parts:
                    break
                if path in seen:
                    continue
                seen.add(path)
                copy = _examine(path, packed if is_packed else part, entry, where)
                if copy is None:
                    continue
                row, parts = copy
                result.rows.append(row)
                if row.status == "damaged":
                    refused |= {one.name for one in packed.parts} if is_packed else {part.name}
                for name in parts.keys() - result.parts.keys():
                    result.parts[name], result.origin[name] = parts[name], path
        lacking = [part for part in packed.parts if part.name not in result.parts]
        if lacking:
            result.wanted.append(packed)
            absent = [part for part in lacking if part.name not in refused]
            if len(absent) == len(packed.parts):
                result.rows.append(Found(packed.file, packed.sha256, None, "missing", None))
            else:
                result.rows += [Found(part.name, part.sha256, None, "missing", None) for part in absent]
    return result


def locate(entry: Entry, root: str | Path | None = None) -> list[Found]:
    """What is found where: each refused copy and each good one, or a row that says a file is missing."""
    return search(entry, root).rows
