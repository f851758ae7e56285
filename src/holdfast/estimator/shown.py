"""How an IncrementalClassifier looks in a notebook: its parameters, then what it has learned."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator

from ..markup import table

MOST = 20  # classes that are listed


class Shown(BaseEstimator):
    """Adds a table of the learned classes below scikit-learn's own picture of an estimator."""

    def _repr_html_inner(self) -> str:
        return str(super()._repr_html_inner()) + self._learned()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] += self._learned()
        return bundle

    def _learned(self) -> str:
        """Return a table of classes and samples, or "" if nothing was learned yet."""
        model = getattr(self, "model_", None)
        if model is None:
            return ""
        batches = {label: at for at, record in enumerate(model.history, 1) for label in reversed(record["classes"])}
        labels = [label for label in model.labels.slots if label in batches]
        rows = [(label, model.labels.slots[label], batches[label]) for label in labels[:MOST]]
        more = f" and {len(labels) - MOST} more." if len(labels) > MOST else ""
        samples = sum(record["samples"] for record in model.history)
        told = f"{len(labels)} classes, {samples} samples in {len(model.history)} batches ({model.settings.method})."
        return table(("class", "slot", "last taught in batch"), rows, told, more + self.stability_.answer)
