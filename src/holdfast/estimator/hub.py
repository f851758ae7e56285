"""A model on the Hugging Face Hub, and its card, which is written from the model itself. Needs the extra `hub`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData, ModelHubMixin, hf_hub_download

from .. import __version__
from .classifier import IncrementalClassifier
from .gate import held_accuracy
from .model_files import NAME

MOST = 100  # classes that a card lists

TEXT = """
# {title}

A classifier that learns new classes at any time, made with holdfast {version}.

| | |
|---|---|
| classes | {classes} of {slots} places |
| samples taught | {samples}, in {batches} batches |
| input | {shape}{embedder} |
| method | {method} |
| accuracy | {accuracy} |
| search index | {stability} |

**This file contains samples that the model was taught, and the names of its classes.** Share it as you would share the
data.

## Use it

```python
from holdfast import IncrementalClassifier

model = IncrementalClassifier.from_pretrained("{name}"{argument})
model.predict(samples)
model.partial_fit(new_samples, new_labels)   # learns on, without the old data
```

The weights are safetensors; nothing in the file is executed.

## Classes

{listed}
"""


class Published(ModelHubMixin, library_name="holdfast", tags=["holdfast", "class-incremental-learning"]):
    """An estimator as the Hub's mixin sees it."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def _save_pretrained(self, save_directory: Path) -> None:
        self.estimator.save(save_directory)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Published:
        where = {key: options.pop(key, None) for key in ("revision", "cache_dir", "token")}
        where |= {key: bool(options.pop(key, False)) for key in ("force_download", "local_files_only")}
        folder = Path(model_id)
        path = folder if folder.exists() else Path(hf_hub_download(model_id, NAME, **where))
        return cls(IncrementalClassifier.load(path, **options))

    def push_to_hub(self, repo_id: str, **options: Any) -> Any:
        self.name = repo_id
        return super().push_to_hub(repo_id, **options)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """Return the card: classes, data seen, accuracy on held-back samples, stability, how to use it."""
        data = ModelCardData(library_name="holdfast", tags=["holdfast", "class-incremental-learning"])
        return ModelCard(f"---\n{data.to_yaml()}\n---\n{card(self.estimator, getattr(self, 'name', 'FOLDER'))}")


def card(estimator: IncrementalClassifier, name: str) -> str:
    """Return the text of a model's card."""
    model, labels = estimator.model_, estimator.classes_.tolist()
    share, count = held_accuracy(model)
    listed = "\n".join(f"- {_plain(label)}" for label in labels[:MOST])
    more = f"\n- and {len(labels) - MOST} more" if len(labels) > MOST else ""
    size = " x ".join(map(str, model.shape))
    return TEXT.format(
        title=name.rsplit("/", 1)[-1], name=name, version=__version__, classes=len(labels),
        slots=model.settings.slots, samples=sum(record["samples"] for record in model.history),
        batches=len(model.history), method=model.settings.method,
        shape=f"vectors of {size} numbers" if len(model.shape) == 1 else f"images, {size} (channels, height, width)",
        embedder=f", made by `{_plain(model.embedder)}`" if model.embedder else "",
        argument=", embedder=..." if model.embedder and not isinstance(estimator.embedder, str) else "",
        accuracy="not measured: no held-back samples" if share is None
        else f"{100 * share:.1f} % of {count} held-back samples",
        stability=estimator.stability_.answer, listed=listed + more,
    )


def _plain(text: object) -> str:
    """Return text of the user without line breaks and marks that Markdown or HTML would read."""
    words = " ".join(str(text).split())
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in words)
