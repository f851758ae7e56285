"""Texts by a model of sentence-transformers. Extra `text`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import hardware
from ..errors import BadConfig, BadInput
from .base import Embedder, digest_of
from .downloads import announce


class Sentences(Embedder):
    """A name of the hub or a folder. Only safetensors are loaded, and no code of the model is executed."""

    kind, takes = "sentence-transformers", "text"
    batch = 256  # sentence-transformers sorts these by length; Ctrl-C and the progress bar wait for so many

    def __init__(self, name: str, *, offline: bool = False, device: str = "auto") -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise BadConfig(
                "A text embedder needs sentence-transformers, which is not installed: pip install 'holdfast[text]'"
            ) from error
        from transformers.utils import logging

        logging.disable_progress_bar()  # ours counts samples
        local = Path(name).expanduser()
        if not local.is_dir() and (local.is_absolute() or name.startswith(".")):
            raise BadConfig(
                f"There is no folder {local} with a text embedder; name the folder where it is now, with --embedder "
                f"sentence-transformers:FOLDER or load(folder, embedder=...)."
            )
        self.name = local.name if local.is_dir() else name
        if not local.is_dir() and not offline:
            announce(f"sentence-transformers:{name}", name if "/" in name else f"sentence-transformers/{name}")
        try:
            self.model = SentenceTransformer(
                str(local) if local.is_dir() else name, device=str(hardware.choose_device(device)),
                local_files_only=offline or local.is_dir(), trust_remote_code=False,
                model_kwargs={"use_safetensors": True},
            )
        except Exception as error:  # the library raises many kinds
            raise BadConfig(_why(name, offline, error)) from error
        self.model.eval()
        self.digest = digest_of({**self.model.state_dict(), **_preprocessing(self.model)})

    def embed(self, samples: Sequence[Any]) -> Any:
        for row, text in enumerate(samples):
            if not isinstance(text, str):
                raise BadInput(f"Sample {row} is a {type(text).__name__}; a text embedder takes strings.")
        return self.model.encode(list(samples), show_progress_bar=False, normalize_embeddings=True)


def _preprocessing(model: Any) -> dict[str, Any]:
    """Return what besides the weights decides a vector; not the library's description, which changes with releases."""
    pooling = [_pooling(module) for module in model]
    return {
        "modules": [type(module).__name__ for module in model], "pooling": pooling,
        "length": model.max_seq_length, "prompt": (model.prompts or {}).get(model.default_prompt_name),
        "vocabulary": sorted(model.tokenizer.get_vocab().items()),
    }


def _pooling(module: Any) -> str:
    """Return how a module pools the vectors of words: "mean", "cls", "cls+mean"; "" if it does not."""
    if hasattr(module, "get_pooling_mode_str"):  # before release 6 of sentence-transformers
        return str(module.get_pooling_mode_str())
    mode = getattr(module, "pooling_mode", "")
    return mode if isinstance(mode, str) else "+".join(mode)


def _why(name: str, offline: bool, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
    remedy = "give a folder that holds the model, or leave --offline out" if offline else (
        "check the name, give a folder that holds the model, or, if it exists only as a pickle, convert it once with "
        "model.save_pretrained(folder, safe_serialization=True)"
    )
    return f"The embedder sentence-transformers:{name} cannot be opened: {reason}. To mend it, {remedy}."
