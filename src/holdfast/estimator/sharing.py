"""`save_pretrained`, `from_pretrained` and `push_to_hub` of the estimator; the Hub's library is imported when used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from ..errors import BadConfig

if TYPE_CHECKING:
    from .classifier import IncrementalClassifier


class Shared:
    """Adds the Hugging Face Hub's three verbs. They need the extra `hub`."""

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """Write the model as safetensors and a model card, README.md, into a folder; a card that exists is kept."""
        _published(self).save_pretrained(Path(folder))
        return Path(folder)

    @classmethod
    def from_pretrained(
        cls, name: str | os.PathLike[str], *, revision: str | None = None, token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None, local_files_only: bool = False, **options: Any,
    ) -> IncrementalClassifier:
        """Load a model from a folder, or from the Hub by its `OWNER/NAME`. `options` are those of `load`."""
        published = _library().from_pretrained(
            str(name), revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only, **options
        )
        return published.estimator

    def push_to_hub(
        self, name: str, *, private: bool = True, token: str | None = None, branch: str | None = None,
        message: str = "Upload a holdfast model",
    ) -> str:
        """Upload the model and its card to the Hub as `OWNER/NAME`; return the address of the commit.

        A model contains samples that it was taught. The repository is therefore private, unless you say
        `private=False`."""
        made = _published(self).push_to_hub(name, private=private, token=token, branch=branch, commit_message=message)
        return str(made)


def _published(estimator: Any) -> Any:
    check_is_fitted(estimator, "model_")
    return _library()(estimator)


def _library() -> Any:
    try:
        from .hub import Published
    except ImportError as error:
        raise BadConfig(f"The Hub needs {error.name}, which is missing: pip install 'holdfast[hub]'") from error
    return Published
