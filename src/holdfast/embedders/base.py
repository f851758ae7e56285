"""What an embedder does, and how one is known again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadInput

Watch = Callable[[int], None]  # called with the number of samples that were embedded


class Embedder:
    """Map samples to vectors. The same fingerprint means the same vectors."""

    kind = ""  # "sentence-transformers", "timm", "onnx" or "own"
    takes = "samples"  # "text", "images" or "samples"
    name = ""
    digest = ""  # of the weights and the preprocessing
    batch = 64  # samples at once; halved where the memory of the device does not suffice

    @property
    def fingerprint(self) -> str:
        """Name the embedder and its content: `sentence-transformers:all-MiniLM-L6-v2 (3f2a...)`."""
        return f"{self.kind}:{self.name} ({self.digest[:12]})"

    def __call__(self, samples: Sequence[Any], watch: Watch = lambda count: None) -> np.ndarray:
        """Return one float32 vector per sample, (n, d)."""
        if not len(samples):
            raise BadInput("There is nothing to embed: give at least one sample.")
        parts, start = [], 0
        while start < len(samples):
            part = samples[start : start + self.batch]
            try:
                vectors = self.embed(part)
            except (MemoryError, RuntimeError) as error:
                if len(part) == 1 or not _out_of_memory(error):
                    raise
                self.batch = len(part) // 2
                continue
            parts.append(self._checked(vectors, len(part), start))
            watch(len(part))
            start += len(part)
        return np.concatenate(parts)

    def embed(self, samples: Sequence[Any]) -> Any:
        """Return the vectors of one batch."""
        raise NotImplementedError

    def _checked(self, vectors: Any, count: int, start: int) -> np.ndarray:
        array = vectors.detach().cpu().numpy() if hasattr(vectors, "detach") else np.asarray(vectors)
        if array.ndim != 2 or len(array) != count:
            raise BadInput(
                f"The embedder {self.kind}:{self.name} gave an array of shape {array.shape} for {count} samples; "
                f"it must give one vector per sample."
            )
        array = array.astype(np.float32, copy=False)
        if not np.isfinite(array).all():
            row = start + int(np.flatnonzero(~np.isfinite(array).all(1))[0])
            raise BadInput(f"The embedder {self.kind}:{self.name} gave NaN or infinity for sample {row}: leave it out.")
        return array


def _out_of_memory(error: Exception) -> bool:
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError)


def same_content(one: str, other: str) -> bool:
    """Return True if two fingerprints are of the same kind and content; a folder may have another name by now."""
    return (one.partition(":")[0], one.rpartition(" ")[2]) == (other.partition(":")[0], other.rpartition(" ")[2])


def digest_of(parts: dict[str, Any]) -> str:
    """Return the SHA-256 of tensors and texts, by name."""
    seen = hashlib.sha256()
    for name in sorted(parts):
        value = parts[name]
        data = value.detach().cpu().contiguous().numpy().tobytes() if hasattr(value, "detach") else str(value).encode()
        seen.update(name.encode() + data)
    return seen.hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    seen = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            seen.update(piece)
    return seen.hexdigest()
