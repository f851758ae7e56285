"""Files are written whole or not at all, and read with care."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from .errors import BadFile, CannotRead, CannotWrite, NewerFile

FORMAT = 1  # of tensor files; a newer one is refused
LARGEST_HEADER = 100_000_000  # bytes; safetensors' own limit
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # of a file system without such a thing


def write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary name beside `path`, to the disk, then rename: no reader ever sees a part.

    A link at either name is replaced and not followed: what it points to may be anybody's."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        make_folder(path.parent)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)  # of a process of the same number that was killed
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
    """With those above it; each new name to the disk as well."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in new:
        sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """The names in it to the disk, before anything older is deleted; not every system can, or may."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # it may be written to but not listed; on Windows no folder can be opened
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


def reserve(path: Path, size: int) -> None:
    """A new file of `size` zeros, all of which the disk has room for.

    One that is mapped and has not is found out when it is written to, and ends the process (SIGBUS)."""
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
    """What could not be written, why, and how to go on."""
    return CannotWrite(
        f"{path} cannot be written: {error.strerror or error}. What was saved before is intact; make room there, or "
        f"make the folder writable, and give the same command to go on from it."
    )


def cannot_read(path: Path, error: Exception) -> CannotRead:
    """What could not be read, why, and that nothing was done to it."""
    why = getattr(error, "strerror", None) or (f"no memory left ({_short(error)})" if _no_memory(error) else error)
    return CannotRead(
        f"{path} cannot be read: {why}. It may be whole, and is left as it is; see to the disk, the permissions or the "
        f"memory, and give the same command again."
    )


def _no_memory(error: Exception) -> bool:
    """Python's own error, or PyTorch's, which is a RuntimeError like any other."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def dumps(value: Any) -> str:
    """One line of JSON with sorted keys; a NaN becomes null, which every reader understands."""
    return json.dumps(plain(value), sort_keys=True, allow_nan=False)


def plain(value: Any) -> Any:
    """As JSON can hold it: keys are strings, tuples and arrays are lists, and a number that is not finite is None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "tolist"):  # numpy's and torch's arrays and numbers
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """JSON with sorted keys and no NaN, whole or not at all."""
    write_whole(path, (json.dumps(plain(value), indent=1, sort_keys=True, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """JSON from a file; BadFile names one that is not there or is no JSON, CannotRead one that may be good."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError) as error:
        raise BadFile(f"{path} cannot be read as JSON: {error}") from error
    except (OSError, MemoryError) as error:
        raise cannot_read(path, error) from error


def write_record(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON object that carries a digest of the rest of it."""
    rest = plain(value)
    write_json(path, {**rest, "digest": _json_digest(rest)})


def read_record(path: Path) -> Any:
    """What `write_record` wrote, without its digest; one that does not match is refused.

    A file without a digest (written by hand, or before there were any) is read as it is."""
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
    """Tensors and a JSON state in one safetensors file, with a digest over both."""
    packed = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    text = json.dumps(state, sort_keys=True, allow_nan=False)
    metadata = {"format": str(FORMAT), "state": text, "digest": _digest(packed, text)}
    write_whole(path, safetensors.torch.save(packed, metadata=metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote; anything truncated, altered or foreign is a BadFile, nothing is executed.

    A disk or a memory that fails is no fault of the file's: that is CannotRead."""
    try:
        content = _bounded(path)
        tensors = safetensors.torch.load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata = header["__metadata__"]
        version, text, digest = metadata["format"], metadata["state"], metadata["digest"]
    except Exception as error:  # a file can be wrong in any way
        if _not_its_fault(error):
            raise cannot_read(path, error) from error
        raise BadFile(f"{path} is not a steadfast tensor file, or it is damaged: {_short(error)}") from error
    if version != str(FORMAT):
        raise NewerFile(f"{path} has format {version[:20]}, this steadfast reads format {FORMAT}: upgrade to read it.")
    try:
        good, state = digest == _digest(tensors, text), json.loads(text)
    except Exception as error:
        if _not_its_fault(error):
            raise cannot_read(path, error) from error
        raise BadFile(f"{path} is damaged: {_short(error)}") from error
    if not good or not isinstance(state, dict):
        raise BadFile(f"{path} is damaged: its content does not match its digest.")
    return tensors, state


def _not_its_fault(error: Exception) -> bool:
    """Whether reading failed for want of a disk or of memory; a file that is not there is missing."""
    return _no_memory(error) or (isinstance(error, OSError) and not isinstance(error, FileNotFoundError))


def _bounded(path: Path) -> bytes:
    """The file's bytes, if the length of its header can be true: before anything of that length is read."""
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
    seen = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        seen.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        seen.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return seen.hexdigest()
