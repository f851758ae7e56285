"""A run's folder: its files, its lock and its result."""

from __future__ import annotations

import os
import platform
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from .. import files
from ..errors import BadFile, CannotWrite, RunLocked
from . import results
from .config import Config
from .shown import Result

PATIENCE = 0.5  # seconds to wait for a run's lock, since a sweep takes it for an instant to test it


def checkpoint_number(path: Path) -> int:
    """Return the number in a checkpoint's name: 12 for checkpoint-000012.safetensors."""
    return int(path.stem[11:])


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run. Every file in it is written atomically."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.jsonl"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints, newest first; files without a number, such as copies, are ignored."""
        found = [path for path in self.path.glob("checkpoint-*.safetensors") if path.stem[11:].isdecimal()]
        return sorted(found, key=checkpoint_number, reverse=True)

    def lock(self) -> AbstractContextManager[Any]:
        """Lock the folder for one process, as a context manager; raise RunLocked if another process holds it.

        The system frees the lock of a dead process. On NFS the server frees the lock of a dead machine after its
        lease (version 4) or never (version 3). Such a lock looks like a live one, so it is never broken here: the
        error names the holder, and the user decides.
        """
        try:
            files.make_folder(self.path)
            lock = filelock.FileLock(self.path / ".lock", timeout=PATIENCE)
            held = lock.acquire()
            try:
                files.write_whole(self.path / ".holder", f"process {os.getpid()} on {platform.node()}".encode())
            except CannotWrite:
                lock.release()
                raise
            return held
        except filelock.Timeout:
            raise RunLocked(
                f"{self.holder()} is working on {self.path}; wait for it, stop it, or choose another --out. "
                f"If that machine is gone for good, delete {self.path / '.lock'}."
            ) from None
        except OSError as error:
            if self.result.exists():
                return nullcontext()  # finished, in a read-only folder: nothing has to be written
            if isinstance(error, CannotWrite):
                raise
            raise files.cannot_write(self.path, error) from error

    def holder(self) -> str:
        """Return the process that holds the lock, or the last one that did."""
        try:
            return (self.path / ".holder").read_text(errors="replace").strip()[:200] or "Another process"
        except OSError:
            return "Another process"

    def tidy(self) -> None:
        """Delete temporary files of killed processes."""
        for path in self.path.glob(".*.part"):
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete the result and the checkpoints, so that the run starts anew."""
        for path in (self.result, *self.checkpoints()):
            path.unlink(missing_ok=True)

    def read_result(self) -> Result | None:
        """Return the result, or None if the run is not finished; raise BadFile if it does not match its digest."""
        if not self.result.exists():
            return None
        result = files.read_record(self.result)
        if not isinstance(result, dict):
            raise BadFile(f"{self.result} is not a result.")
        return Result(result)

    def finished(self, config: Config) -> Result | None:
        """Return the result if the run is finished; rename a damaged one to `.damaged` with a warning."""
        try:
            result = self.read_result()
            if result is not None and result.get("hash") == config.hash:
                results.check(config, result)
        except BadFile as error:
            warnings.warn(f"{error} Computing it again from the last checkpoint, or from the start.", stacklevel=3)
            self.result.rename(self.result.with_suffix(".damaged"))
            return None
        if result is not None and result.get("hash") != config.hash:
            raise BadFile(
                f"{self.result} is the result of another run, {result.get('hash')!r}, not of {config.hash}: "
                f"move it to its own folder, or start anew with --fresh."
            )
        return result
