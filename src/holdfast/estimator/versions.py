"""The last few versions of a saved model: keep a new one, list them, go back to one.

    MODEL/model.safetensors                       the model in use
    MODEL/versions/000004.safetensors             versions, the one in use among them
    MODEL/versions/000005.rejected.safetensors    a model that the gate refused

The version in use is the one with the content of `model.safetensors`, usually the same file by a second name. So one
rename is the whole change, and a kill leaves the old model or the new one. A folder without
versions is one whose only model has no number yet.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from .. import files
from ..errors import BadFile, BadInput, RunLocked
from .model_files import NAME, save

if TYPE_CHECKING:
    from .classifier import IncrementalClassifier

FOLDER, LOCK = "versions", ".lock"
KEPT = 5  # versions that stay, the one in use not counted
KEPT_REJECTED = 2
ROOM = 100_000_000  # bytes: rough size of a model without the samples that replay keeps


@dataclass(frozen=True)
class Version:
    """One stored model, as far as its file's header tells."""

    number: int
    path: Path
    digest: str
    rejected: bool
    current: bool
    made: float  # seconds since 1970
    classes: int
    batches: int
    accuracy: float | None  # on held-back samples, 0..1, if it was measured
    parent: int | None  # the version that it was learned from


def history(folder: Path) -> list[Version]:
    """Return the versions in a model's folder, the oldest first; a model without a number counts as the newest."""
    if not (folder / NAME).exists():
        raise BadFile(f"There is no model in {folder}: the file {folder / NAME} does not exist.")
    stored = []
    for path in _stored(folder):
        with contextlib.suppress(BadFile):  # a damaged old version is no reason to stop
            stored.append(_read(path))
    digest = _header(folder / NAME)[0]
    same = [v for v in stored if v.digest == digest and not v.rejected]
    linked = [v for v in same if os.path.samefile(v.path, folder / NAME)]
    if not same:
        same = [_read(folder / NAME, number=_next(folder))]
        stored += same
    current = (linked or same)[-1]
    marked = [replace(v, current=v is current) for v in stored]
    return sorted(marked, key=lambda version: version.number)


def keep(estimator: IncrementalClassifier, folder: Path, *, rejected: bool = False) -> Version:
    """Write a model as the next version and put it into use, or keep it aside if it was rejected."""
    _number_current(folder)
    number = _next(folder)
    parent = _current(history(folder)).number if (folder / NAME).exists() else None
    path = folder / FOLDER / f"{number:06}{'.rejected' if rejected else ''}.safetensors"
    save(estimator, path.parent, path.name, parent)
    if not rejected:
        _use(path, folder)
    _prune(folder)
    return next(version for version in history(folder) if version.number == number)


def rollback(folder: Path, number: int | None = None) -> Version:
    """Put an older version into use, by default the one that the current one was learned from."""
    _number_current(folder)
    known = history(folder)
    current = _current(known)
    if number is None:
        older = [v for v in known if v.number < current.number and not v.rejected]
        wanted = [v for v in older if v.number == current.parent] or older
    else:
        wanted = [v for v in known if v.number == number]
    if not wanted:
        numbers = ", ".join(str(v.number) for v in known)
        what = "older version" if number is None else f"version {number}"
        raise BadInput(f"There is no {what} to go back to; {current.number} is in use, and kept are: {numbers}.")
    chosen = wanted[-1]
    files.read_tensors(chosen.path)  # a damaged version must not replace a good one
    if chosen.rejected:
        path = chosen.path.with_name(f"{chosen.number:06}.safetensors")
        os.replace(chosen.path, path)
        files.sync_folder(path.parent)
        chosen = _read(path)
    _use(chosen.path, folder)
    return next(version for version in history(folder) if version.number == chosen.number)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time change a model; remove a new folder again if nothing was written to it."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise files.cannot_write(folder, error) from error
    check_room(folder)
    lock = folder / LOCK
    try:
        with filelock.FileLock(lock, timeout=0):
            for path in [*folder.glob(f".{NAME}.*.part"), *(folder / FOLDER).glob(".*.part")]:
                path.unlink(missing_ok=True)  # left by a killed process
            yield
    except filelock.Timeout:
        raise RunLocked(f"Another process is adding to {folder}; wait for it, or stop it.") from None
    finally:
        if made and {path.name for path in folder.iterdir()} <= {lock.name}:
            with contextlib.suppress(OSError):
                lock.unlink(missing_ok=True)
                for path in made:
                    path.rmdir()


def check_room(folder: Path, more: int = 0) -> None:
    """Raise CannotWrite if the disk has no room for a next version that keeps `more` bytes of new samples."""
    current = folder / NAME
    files.check_room(folder, max(ROOM, current.stat().st_size if current.exists() else 0) + more)


def _number_current(folder: Path) -> None:
    """Give the model in use a number, if it was saved by an older holdfast or from Python."""
    if (folder / NAME).exists():
        current = _current(history(folder))
        if current.path == folder / NAME:
            _link(folder / NAME, folder / FOLDER / f"{current.number:06}.safetensors")


def _current(known: list[Version]) -> Version:
    return next(version for version in known if version.current)


def _use(path: Path, folder: Path) -> None:
    _link(path, folder / NAME)


def _link(source: Path, target: Path) -> None:
    """Give a file a second name in one step; copy it where the file system has no links."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        files.make_folder(target.parent)
        part.unlink(missing_ok=True)
        try:
            os.link(source, part)
        except OSError:
            shutil.copy2(source, part)
            with open(part, "rb") as copied:
                os.fsync(copied.fileno())
        os.replace(part, target)
        part.unlink(missing_ok=True)  # a rename between two names of one file does nothing
        files.sync_folder(target.parent)
    except OSError as error:
        raise files.cannot_write(target, error) from error


def _prune(folder: Path) -> None:
    """Delete the oldest versions beyond KEPT; the one in use stays."""
    known = [version for version in history(folder) if not version.current]
    for kind, limit in ((False, KEPT), (True, KEPT_REJECTED)):
        for version in [each for each in known if each.rejected == kind][:-limit]:
            version.path.unlink(missing_ok=True)


def _stored(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).glob("[0-9]*.safetensors"))


def _next(folder: Path) -> int:
    return max((int(path.name[:6]) for path in _stored(folder)), default=0) + 1


def _read(path: Path, number: int | None = None) -> Version:
    digest, state = _header(path)
    past = state.get("history") or [{}]
    accuracy = past[-1].get("accuracy")
    return Version(
        number=int(path.name[:6]) if number is None else number, path=path, digest=digest,
        rejected=".rejected" in path.name, current=False, made=path.stat().st_mtime,
        classes=len(state["labels"]["slots"]), batches=int(state["taught"]),
        accuracy=None if accuracy is None else accuracy / 100, parent=state.get("parent"),
    )


def _header(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the digest and the state in a model file's header, without reading its tensors."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(files.LARGEST_HEADER, path.stat().st_size):
                raise ValueError(f"a header of {length:,} bytes")
            metadata = json.loads(file.read(length))["__metadata__"]
        state = json.loads(metadata["state"])
        len(state["labels"]["slots"]), int(state["taught"])
        return metadata["digest"], state
    except OSError as error:
        raise files.cannot_read(path, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadFile(f"{path} is not a model that can be read: {type(error).__name__}: {error}") from error
