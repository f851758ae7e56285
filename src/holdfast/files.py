"""Write files atomically, and read JSON and tensors with validation."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import BadFile, CannotRead, CannotWrite, NewerFile
from .quantities import byte_size

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1  # version of our tensor files; a newer one is refused
LARGEST_HEADER = 100_000_000  # bytes; safetensors' own limit
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # the file system cannot sync a folder


def write_whole(path: Path, content: bytes) -> None:
    """Write a temporary file beside `path`, flush it to disk, then rename it: readers never see a partial file.

    A symbolic link at either name is replaced, not followed, because its target may belong to someone else."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        make_folder(path.parent)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)  # left by a killed process with the same number
        with open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, and flush each new name to disk."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in new:
        sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, where the system supports and permits it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder without read permission; on Windows every folder
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


def reserve(path: Path, size: int) -> None:
    """Create a file of `size` zeros and allocate all its blocks now.

    Without that, writing to the memory-mapped file on a full disk would kill the process (SIGBUS)."""
    try:
        make_folder(path.parent)
        path.unlink(missing_ok=True)
        with open(path, "xb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                for start in range(0, size, 1 << 20):
                    file.write(bytes(min(1 << 20, size - start)))
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> CannotWrite:
    """Return the error that says what could not be written, why, and how to continue."""
    return CannotWrite(
        f"{path} cannot be written: {error.strerror or error}. What was saved before is intact; free some space or "
        f"make the folder writable, then give the same command again."
    )


def check_room(folder: Path, need: int) -> None:
    """Raise CannotWrite if the disk of `folder` has fewer than `need` free bytes; called before hours of work."""
    there = next((each for each in (folder, *folder.parents) if each.exists()), Path("/"))
    try:
        free = shutil.disk_usage(there).free
    except OSError:  # the file system does not report it
        return
    if free < need:
        raise CannotWrite(
            f"{folder} has room for {byte_size(free)}, but about {byte_size(need)} will be written there: "
            f"make room, or choose another place. Nothing was started."
        )


def cannot_read(path: Path, error: Exception) -> CannotRead:
    """Return the error that says what could not be read and why, and that the file is unchanged."""
    why = getattr(error, "strerror", None) or (f"no memory left ({_short(error)})" if _no_memory(error) else error)
    return CannotRead(
        f"{path} cannot be read: {why}. The file may be good and was left unchanged; check the disk, the permissions "
        f"and the free memory, then give the same command again."
    )


def _no_memory(error: Exception) -> bool:
    """Return True if memory ran out; PyTorch raises a plain RuntimeError for that."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def dumps(value: Any) -> str:
    """Return one line of JSON with sorted keys; NaN becomes null, since JSON has no NaN."""
    return json.dumps(plain(value), sort_keys=True, allow_nan=False)


def plain(value: Any) -> Any:
    """Convert a value for JSON: keys to strings, tuples and arrays to lists, NaN and infinity to None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "tolist"):  # numpy's and torch's arrays and numbers
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_json(text: str) -> Any:
    """Parse JSON; raise ValueError for anything else, also if it is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys and without NaN, atomically."""
    write_whole(path, (json.dumps(plain(value), indent=1, sort_keys=True, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON; raise BadFile if the file is missing or not JSON, CannotRead if the disk or memory failed."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError) as error:
        raise BadFile(f"{path} cannot be read as JSON: {error}") from error
    except (OSError, MemoryError) as error:
        raise cannot_read(path, error) from error


def write_record(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object with a digest of its content."""
    rest = plain(value)
    write_json(path, {**rest, "digest": _json_digest(rest)})


def read_record(path: Path) -> Any:
    """Read what `write_record` wrote, without the digest; raise BadFile if the digest does not match.

    A file without a digest (written by hand or by an old version) is accepted."""
    value = read_json(path)
    if not isinstance(value, dict) or "digest" not in value:
        return value
    digest = value.pop("digest")
    try:
        good = digest == _json_digest(value)
    except RecursionError as error:
        raise BadFile(f"{path} cannot be read: it is nested too deep.") from error
    if not good:
        raise BadFile(f"{path} is damaged: its content does not match its digest.")
    return value


def _json_digest(value: Any) -> str:
    return hashlib.sha256(dumps(value).encode()).hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and a JSON state to one safetensors file, with a digest over both."""
    import safetensors.torch

    packed = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    text = json.dumps(state, sort_keys=True, allow_nan=False)
    metadata = {"format": str(FORMAT), "state": text, "digest": _digest(packed, text)}
    write_whole(path, safetensors.torch.save(packed, metadata=metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote, without executing anything.

    Raise BadFile if it is truncated, altered or foreign, CannotRead if the disk or memory failed."""
    import safetensors.torch

    try:
        content = _read_bounded(path)
        tensors = safetensors.torch.load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata = header["__metadata__"]
        version, text, digest = metadata["format"], metadata["state"], metadata["digest"]
    except Exception as error:  # a damaged file can raise anything
        if _disk_or_memory_failed(error):
            raise cannot_read(path, error) from error
        raise BadFile(f"{path} is not a holdfast tensor file, or it is damaged: {_short(error)}") from error
    if version != str(FORMAT):
        raise NewerFile(f"{path} has format {version[:20]}, this holdfast reads format {FORMAT}: upgrade to read it.")
    try:
        good, state = digest == _digest(tensors, text), json.loads(text)
    except Exception as error:
        if _disk_or_memory_failed(error):
            raise cannot_read(path, error) from error
        raise BadFile(f"{path} is damaged: {_short(error)}") from error
    if not good or not isinstance(state, dict):
        raise BadFile(f"{path} is damaged: its content does not match its digest.")
    return tensors, state


def _disk_or_memory_failed(error: Exception) -> bool:
    """Return True if the disk or the memory failed rather than the file; a missing file returns False."""
    return _no_memory(error) or (isinstance(error, OSError) and not isinstance(error, FileNotFoundError))


def _read_bounded(path: Path) -> bytes:
    """Read a file after checking the header length it claims, so that a false length allocates nothing."""
    with open(path, "rb") as file:
        start = file.read(8)
        length, size = int.from_bytes(start, "little"), os.fstat(file.fileno()).st_size
        if len(start) < 8 or length > min(size - 8, LARGEST_HEADER):
            raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
        file.seek(0)
        return file.read(size)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    import torch

    seen = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        seen.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        seen.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return seen.hexdigest()
