"""The embedder of an IncrementalClassifier: opened once, checked against the model, watched while it works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..embedders import Cached, Embedder, open_embedder
from ..embedders.base import same_content
from ..errors import BadConfig, BadInput
from ..learning.training import Watcher
from .model import Model
from .solved import SolvedModel


class Embedding:
    """Adds the embedder. `watch` is called with the number of samples after each part that was embedded."""

    embedder: Any
    offline: bool
    cache: bool
    device: str
    watch: Callable[[int], None] | None = None

    def check_embedder(self, model: Model | SolvedModel | None = None) -> Embedder:
        """Return the embedder; raise BadConfig if the model was taught with another one."""
        embedder, model = self._open_embedder(), model or getattr(self, "model_", None)
        if model is not None and not same_content(model.embedder or "", embedder.fingerprint):
            raise BadConfig(
                f"This model was taught with the embedder {model.embedder or 'none'}, not with {embedder.fingerprint}: "
                f"vectors of another embedder mean something else. Use that one, or begin a new model.")
        return embedder

    def share_embedder(self, other: Embedding) -> None:
        """Use the embedder that `other` has opened, instead of opening it again."""
        self.embedder, self.cache = other.embedder, other.cache
        if other.embedder is not None:
            self._opened = self.embedder, other._open_embedder()

    def _open_embedder(self) -> Embedder:
        named, opened = self.__dict__.get("_opened", (None, None))
        if opened is None or named is not self.embedder:  # set_params may have named another
            opened = open_embedder(self.embedder, offline=self.offline, device=self.device)
            self._opened = self.embedder, opened
        return opened

    def _vectors(self, X: Any, model: Model | SolvedModel | None, watcher: Watcher) -> np.ndarray:
        """Embed samples by the embedder, which must be the one that the model, if there is one, was taught with."""
        embedder = self._open_embedder() if model is None else self.check_embedder(model)
        if isinstance(X, str | Path):
            raise BadInput(f"This is a single sample ({str(X)[:60]!r}); give a list of them.")
        through = Cached(embedder) if self.cache and embedder.kind != "own" else embedder
        return through(X := list(X), self.watch or watcher.embedding(len(X)))
