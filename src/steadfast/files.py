"""Files are written whole or not at all, and read with care."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from .errors import BadFile

FORMAT = 1  # of tensor files; a newer one is refused


def write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary name beside `path`, to the disk, then rename: no reader ever sees a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def dumps(value: Any) -> str:
    """One line of JSON with sorted keys; a NaN becomes null, which every reader understands."""
    return json.dumps(plain(value), sort_keys=True, allow_nan=False)


def plain(value: Any) -> Any:
    """As JSON can hold it: keys are strings, tuples are lists, and a number that is not finite is None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """JSON with sorted keys and no NaN, whole or not at all."""
    write_whole(path, (json.dumps(plain(value), indent=1, sort_keys=True, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """JSON from a file, or BadFile that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(f"{path} cannot be read as JSON: {error}") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Tensors and a JSON state in one safetensors file, with a digest over both."""
    packed = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    text = json.dumps(state, sort_keys=True, allow_nan=False)
    metadata = {"format": str(FORMAT), "state": text, "digest": _digest(packed, text)}
    write_whole(path, safetensors.torch.save(packed, metadata=metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote; anything truncated, altered or foreign is refused, nothing is executed."""
    try:
        content = path.read_bytes()
        tensors = safetensors.torch.load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata = header["__metadata__"]
        version, text, digest = metadata["format"], metadata["state"], metadata["digest"]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadFile(f"{path} is not a steadfast tensor file, or it is damaged: {error}") from error
    if version != str(FORMAT):
        raise BadFile(f"{path} has format {version}, this steadfast reads format {FORMAT}: upgrade to read it.")
    if digest != _digest(tensors, text):
        raise BadFile(f"{path} is damaged: its content does not match its digest.")
    return tensors, json.loads(text)


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    seen = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        seen.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        seen.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return seen.hexdigest()
