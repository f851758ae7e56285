"""Run folders at any fsspec address (s3://, gs://, sftp://, ...), for machines without a common file system.

Each worker uses a folder on its own disk. It is copied from the address before the run, and to it after every save.
Such an address has no locks, so only one sweep may use it at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .. import files
from ..errors import BadConfig

SMALL = ("result.json", "failure.json", "metrics.jsonl")  # the files that a sweep reads


def is_address(text: str) -> bool:
    return "://" in text


class Share:
    """Copies between `OUT/RUN/...` on this disk and `ADDRESS/RUN/...`."""

    def __init__(self, address: str) -> None:
        import fsspec

        try:
            self.fs: Any
            self.fs, root = fsspec.core.url_to_fs(address)
        except (ImportError, ValueError) as error:
            raise BadConfig(f"The address {address!r} cannot be used: {error}") from error
        if "memory" in self.fs.protocol:  # the protocol is a name, or a tuple of names
            raise BadConfig(f"{address} is the memory of one process, unreadable to others; try file:///... or s3://...")
        self.root, self.address = str(root).rstrip("/"), address
        self._sent: dict[Path, tuple[int, int]] = {}  # size and time of each file already sent

    def check(self) -> None:
        """Write, read and delete a few bytes, so that a wrong address or key fails before the first run."""
        probe = f"{self.root}/.probe"
        try:
            self.fs.makedirs(self.root, exist_ok=True)
            self.fs.pipe_file(probe, b"holdfast")
            seen = self.fs.cat_file(probe)
            self.fs.rm_file(probe)
        except Exception as error:  # each fsspec driver raises its own kind
            raise BadConfig(f"{self.address} cannot be written and read: {type(error).__name__}: {error}") from error
        if seen != b"holdfast":
            raise BadConfig(f"{self.address} returns other bytes than were written.")

    def pull(self, folder: Path, only: Iterable[str] | None = None) -> None:
        """Download a run's files: JSON always, a checkpoint only if missing here. Delete nothing here."""
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
        """Upload new files, the result last; delete failures and checkpoints there that no longer exist here."""
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
        """Delete one file of a run at the address, if it exists."""
        there = f"{self.root}/{folder.name}/{name}"
        self.fs.invalidate_cache()
        if self.fs.exists(there):
            self.fs.rm_file(there)

    def put(self, named: dict[str, Path]) -> None:
        """Upload files under the given names."""
        self.fs.makedirs(self.root, exist_ok=True)
        for name, path in named.items():
            self.fs.put_file(str(path), f"{self.root}/{name}")


def _result_last(path: Path) -> tuple[bool, str]:
    return path.name == "result.json", path.name
