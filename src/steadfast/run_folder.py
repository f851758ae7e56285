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
from .errors import BadFile, CannotWrite, RunLocked

Result = dict[str, Any]
PATIENCE = 0.5  # seconds to wait for a run's lock: a sweep that looks whether it is held holds it for an instant


def checkpoint_number(path: Path) -> int:
    """Of checkpoint-000012.safetensors, 12."""
    return int(path.stem[11:])


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
        """Newest first. What has no number, as a copy that someone made, is none of them."""
        found = [path for path in self.path.glob("checkpoint-*.safetensors") if path.stem[11:].isdecimal()]
        return sorted(found, key=checkpoint_number, reverse=True)

    def lock(self) -> AbstractContextManager[Any]:
        """One process a run folder, for a `with`; the system frees the lock of a process that died.

        That of a machine that died on NFS is freed by the server: after its lease (version 4), or never (version 3).
        Nobody can tell such a lock from a live one, so none is broken here: its holder is named, a human decides.
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
                return nullcontext()  # finished, in a folder that is read-only: there is nothing to write
            if isinstance(error, CannotWrite):
                raise
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
            if wrong := [] if result is None else _unshowable(result):
                raise BadFile(f"{self.result} is no whole result: {', '.join(wrong)} is missing, or no number.")
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


def _unshowable(result: Result) -> list[str]:
    """What cannot be shown of a result, as one written by hand may be; a digest would have told."""
    matrix, averages = result.get("accuracy_matrix"), result.get("average_accuracy")
    rows = matrix if isinstance(matrix, list) and all(isinstance(row, list) and row for row in matrix) else []
    good = {
        "accuracy_matrix": bool(rows) and all(_number(value) for row in rows for value in row),
        "average_accuracy": isinstance(averages, list) and len(averages) == len(rows) and all(map(_number, averages)),
        **{name: _number(result.get(name)) for name in ("final_average_accuracy", "forgetting", "seconds")},
        "mean_drift": "mean_drift" in result and isinstance(result["mean_drift"], int | float | None),
        "mean_head_drift": result.get("mean_drift") is None or _number(result.get("mean_head_drift")),
    }
    return [name for name, fine in good.items() if not fine]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e300
