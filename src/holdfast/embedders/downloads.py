"""Say what a library is about to download, and how large it is. The library itself downloads it."""

from __future__ import annotations

import contextlib
import sys

from ..quantities import byte_size

OTHER_FORMATS = ("onnx/", "openvino/")  # the same weights again, which are not downloaded
TIMEOUT = 10.0  # seconds to wait for the size


def announce(embedder: str, repository: str | None) -> None:
    """Print that an embedder's files are downloaded, unless this disk has them or nothing may be downloaded."""
    size = None
    with contextlib.suppress(ImportError):  # the libraries that download bring it along
        import huggingface_hub as hub

        if hub.constants.HF_HUB_OFFLINE:
            return
        if repository and isinstance(hub.try_to_load_from_cache(repository, "config.json"), str):
            return
        size = _size(repository) if repository else None
    told = "of unknown size" if size is None else byte_size(size)
    print(f"{embedder} is downloaded once ({told}).", file=sys.stderr)


def _size(repository: str) -> int | None:
    """Return the bytes of a repository's safetensors, settings and vocabulary; None if the hub does not tell."""
    import huggingface_hub as hub

    try:
        files = hub.HfApi().model_info(repository, files_metadata=True, timeout=TIMEOUT).siblings or []
    except Exception:  # the download that follows names the reason
        return None
    wanted = [file for file in files if file.rfilename.endswith((".safetensors", ".json", ".txt", ".model"))
              and not file.rfilename.startswith(OTHER_FORMATS)]
    return sum(file.size or 0 for file in wanted) or None
