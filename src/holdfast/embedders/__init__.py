"""Embedders: samples to vectors by a model that others trained. Each adapter is imported only when it is used.

| written | takes | extra |
|---|---|---|
| `sentence-transformers:NAME_OR_FOLDER` | texts | `text` |
| `timm:NAME`, or `timm:NAME@FILE.safetensors` | images | `timm` |
| `onnx:FILE`, or `onnx:FILE?size=224&mean=0.5&std=0.5` | images or vectors | `onnx` |
| any callable, any `torch.nn.Module` | whatever it takes | none |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import BadConfig, nearest
from .base import Embedder
from .cache import Cache, Cached

__all__ = ["KINDS", "Cache", "Cached", "Embedder", "absolute", "open_embedder"]
KINDS = ("sentence-transformers", "timm", "onnx")


def open_embedder(named: Any, *, offline: bool = False, device: str = "auto") -> Embedder:
    """Open an embedder by its name (see above), or wrap a callable or a module."""
    if isinstance(named, Embedder):
        return named
    if not isinstance(named, str):
        from .own import Own

        return Own(named, device=device)
    kind, colon, rest = named.partition(":")
    if kind not in KINDS:
        raise nearest("kind of embedder", kind, KINDS)
    if not colon or not rest:
        raise BadConfig(f"The embedder {named!r} names no model; write it like {kind}:NAME.")
    if kind == "sentence-transformers":
        from .sentences import Sentences

        return Sentences(rest, offline=offline, device=device)
    if kind == "timm":
        from .photographs import Photographs

        return Photographs(rest, offline=offline, device=device)
    from .graphs import Graph

    return Graph(rest)


def absolute(named: Any) -> str | None:
    """Return the name of an embedder with its file or folder as an absolute path; None for one without a name.

    So a saved model finds its embedder from every working directory."""
    if not isinstance(named, str):
        return None
    kind, _, rest = named.partition(":")
    before, mark, after = rest.partition("@") if kind == "timm" else rest.partition("?")
    local = Path(after if kind == "timm" else before).expanduser()
    if (kind == "timm" and not after) or not local.exists():
        return named
    return f"{kind}:{before}@{local.absolute()}" if kind == "timm" else f"{kind}:{local.absolute()}{mark}{after}"
