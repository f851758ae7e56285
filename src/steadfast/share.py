"""Run folders at any fsspec address (s3://, gs://, sftp://, ...), for machines without a common file system.

Each worker works in a folder of its own disk; this copies it from the address before and to it after every save.
There are no locks at such an address: one sweep at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import files
from .errors import BadConfig

SMALL = ("result.json", "failure.json", "metrics.jsonl")  # what a sweep looks at


def is_address(text: str) -> bool:
    return "://" in text


class Share:
    """`ADDRESS/RUN/...` beside `OUT/RUN/...`."""

    def __init__(self, address: str) -> None:
        import fsspec

        try:
            self.fs: Any
            self.fs, root = fsspec.core.url_to_fs(address)
        except (ImportError, ValueError) as error:
            raise BadConfig(f"The address {address!r} cannot be used: {error}") from error
        if "memory" in self.fs.protocol:  # a name, or a tuple of names
            raise BadConfig(f"{address} is the memory of one process, which no other sees; try file:///... or s3://...")
        self.root, self.address = str(root).rstrip("/"), address
        self._sent: dict[Path, tuple[int, int]] = {}  # size and time of what is there already

    def check(self) -> None:
        """Write, read and delete a few bytes, so that a wrong address or key is told before the first run."""
        probe = f"{self.root}/.probe"
        try:
            self.fs.makedirs(self.root, exist_ok=True)
            self.fs.pipe_file(probe, b"steadfast")
            seen = self.fs.cat_file(probe)
            self.fs.rm_file(probe)
        except Exception as error:  # each fsspec driver raises its own kind
            raise BadConfig(f"{self.address} cannot be written and read: {type(error).__name__}: {error}") from error
        if seen != b"steadfast":
            raise BadConfig(f"{self.address} gives back other bytes than were written there.")

    def pull(self, folder: Path, only: Iterable[str] | None = None) -> None:
        """Bring a run's files here: JSON always, a checkpoint if it is not here yet. Nothing here is deleted."""
        at = f"{self.root}/{folder.name}"
        self.fs.invalidate_cache()
        names = {path.rsplit("/", 1)[-1] for path in self.fs.ls(at, detail=False)} if self.fs.exists(at) else set()
        for name in sorted(names if only is None else names.intersection(only)):
            here = folder / name
            if here.suffix in (".json", ".jsonl") or not here.exists():
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise files.cannot_write(folder, error) from error
                part = folder / f".{name}.{os.getpid()}.part"
                self.fs.get_file(f"{at}/{name}", str(part))
                os.replace(part, here)

    def push(self, folder: Path) -> None:
        """Send what is new, the result last; take away what is no longer here (a failure that is mended, say)."""
        at = f"{self.root}/{folder.name}"
        self.fs.makedirs(at, exist_ok=True)
        here = sorted((p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")), key=_result_last)
        for path in here:
            now = (path.stat().st_size, path.stat().st_mtime_ns)
            if self._sent.get(path) != now:
                self.fs.put_file(str(path), f"{at}/{path.name}")
                self._sent[path] = now
        self.fs.invalidate_cache()
        kept = {path.name for path in here}
        for there in self.fs.ls(at, detail=False):
            name = there.rsplit("/", 1)[-1]
            if name not in kept and name.startswith(("failure", "checkpoint")):
                self.fs.rm_file(there)

    def remove(self, folder: Path, name: str) -> None:
        """Take one file of a run away, if it is there."""
        there = f"{self.root}/{folder.name}/{name}"
        self.fs.invalidate_cache()
        if self.fs.exists(there):
            self.fs.rm_file(there)

    def put(self, named: dict[str, Path]) -> None:
        """Send single files, under these names."""
        self.fs.makedirs(self.root, exist_ok=True)
        for name, path in named.items():
            self.fs.put_file(str(path), f"{self.root}/{name}")


def _result_last(path: Path) -> tuple[bool, str]:
    return path.name == "result.json", path.name
