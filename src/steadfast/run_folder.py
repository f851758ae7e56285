"""A run's folder: what lies in it, who is working in it, and whether it is finished."""

from __future__ import annotations

import os
import platform
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from . import files
from .config import Config
from .errors import BadFile, RunLocked

Result = dict[str, Any]
PATIENCE = 0.5  # seconds to wait for a run's lock: a sweep that looks whether it is held holds it for an instant


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps its things. Every file in it is written whole or not at all."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    def checkpoints(self) -> list[Path]:
        """Newest first."""
        return sorted(self.path.glob("checkpoint-*.safetensors"), reverse=True)

    def lock(self) -> AbstractContextManager[Any]:
        """One process a run folder, for a `with`; the system frees the lock of a process that died.

        That of a machine that died on NFS is freed by the server: after its lease (version 4), or never (version 3).
        Nobody can tell such a lock from a live one, so none is broken here: its holder is named, a human decides.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            held = filelock.FileLock(self.path / ".lock", timeout=PATIENCE).acquire()
            (self.path / ".holder").write_text(f"process {os.getpid()} on {platform.node()}")
            return held
        except filelock.Timeout:
            raise RunLocked(
                f"{self.holder()} is working on {self.path}; wait for it, stop it, or choose another --out. "
                f"If that machine is gone for good, delete {self.path / '.lock'}."
            ) from None
        except OSError as error:
            if self.result.exists():
                return nullcontext()  # finished, in a folder that is read-only: there is nothing to write
            raise files.cannot_write(self.path, error) from error

    def holder(self) -> str:
        """Who works on it now, or did last."""
        try:
            return (self.path / ".holder").read_text(errors="replace").strip()[:200] or "Another process"
        except OSError:
            return "Another process"

    def tidy(self) -> None:
        """Delete what a killed process had half written."""
        for path in self.path.glob(".*.part"):
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget what was done here: the next run starts anew."""
        for path in (self.result, *self.checkpoints()):
            path.unlink(missing_ok=True)

    def read_result(self) -> Result | None:
        """The result, if the run is finished; one that does not match its digest is refused."""
        if not self.result.exists():
            return None
        result = files.read_record(self.result)
        if not isinstance(result, dict):
            raise BadFile(f"{self.result} holds no result.")
        return result

    def finished(self, config: Config) -> Result | None:
        """As `read_result`; a damaged one is named and put aside, and made again from the last checkpoint."""
        try:
            result = self.read_result()
        except BadFile as error:
            warnings.warn(f"{error} Making it again from the last checkpoint, or anew.", stacklevel=3)
            self.result.rename(self.result.with_suffix(".damaged"))
            return None
        if result is not None and result.get("hash") != config.hash:
            raise BadFile(
                f"{self.result} is the result of another run, {result.get('hash')!r}, not of {config.hash}: "
                f"move it to where it belongs, or start anew with --fresh."
            )
        return result
