"""`IncrementalClassifier`: classes as they come, behind scikit-learn's fit and predict."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from .. import experiment, inputs, performance
from ..benchmarks import Benchmark
from ..config import Config
from ..errors import BadConfig
from ..training import Watcher
from . import labels, stability
from .model import Model, assemble


class IncrementalClassifier(ClassifierMixin, BaseEstimator):
    """Teach it classes as they come; it predicts among all so far, and its vectors stay where they are.

    Parameters
    ----------
    backbone : the network: "auto" (vectors: "mlp", images: "resnet20"), a name of `steadfast.backbones.names()`,
        "timm:NAME", or any `torch.nn.Module` (it is copied; its weights are where training starts).
    head : the classifier; "simplex" is fixed and pre-allocated, "expanding" the usual one.
    slots : how many classes there is room for, over the model's whole life.
    memory : how many samples are remembered in all.
    recipe : how the remembered samples are used: "strong", or "paper" for the published method.
    policy : which samples are remembered: "class" (as many of each), "herding", "reservoir", "task".
    distill : None is as the recipe has it ("strong": "features", "paper": "none"). "features" holds the vectors of
        remembered samples where they were before each batch, so that an index of them stays good; "logits" likewise
        their logits when stored; "none" lets them move.
    distill_weight : how strongly; by default 5 for features and 0.5 for logits.
    epochs : passes over each batch given; "auto" makes it about 150 updates, 5 to 100 passes.
    batch, lr, optimizer : of the updates; half of a batch is remembered samples.
    augment : "auto" (images: "shift"), "none", "shift", "crop-flip".
    image_size : height and width to bring images to, a number or a pair; by default the first batch's.
    normalise : "auto" (by the first batch's mean and deviation), or (mean, deviation), each a number or one a
        channel (a feature, for vectors), of pixels as 0..1: what a pretrained network was trained with, say.
    held_back : the share of the memory that is never trained on; stability and "none of these" are measured with
        it. A class gives at most this share of its samples, so one with few samples gives none.
    random_state : the same number gives the same model. None draws a new one for each new model.
    device : "auto" (a GPU if there is one), "cpu", "cuda", ...

    Attributes
    ----------
    classes_ : the labels so far, sorted; the columns of `predict_proba`.
    stability_ : how far the last `partial_fit` moved the vectors, and what to do about an index of them.
    model_ : everything learned (`steadfast.estimator.model.Model`).
    """

    def __init__(
        self,
        backbone: str | nn.Module = "auto",
        head: str = "simplex",
        slots: int = 1000,
        memory: int = 2000,
        *,
        recipe: str = "strong",
        policy: str = "class",
        distill: str | None = None,
        distill_weight: float | None = None,
        epochs: int | str = "auto",
        batch: int = 128,
        lr: float = 0.001,
        optimizer: str = "adam",
        augment: str = "auto",
        image_size: int | tuple[int, int] | None = None,
        normalise: str | tuple[Any, Any] = "auto",
        held_back: float = 0.1,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
    ) -> None:
        self.backbone = backbone
        self.head = head
        self.slots = slots
        self.memory = memory
        self.recipe = recipe
        self.policy = policy
        self.distill = distill
        self.distill_weight = distill_weight
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.optimizer = optimizer
        self.augment = augment
        self.image_size = image_size
        self.normalise = normalise
        self.held_back = held_back
        self.random_state = random_state
        self.device = device

    # Learning.

    def fit(self, X: Any, y: Any, *, watcher: Watcher | None = None) -> IncrementalClassifier:
        """Start anew and learn all of this at once."""
        return self._teach(X, y, None, watcher)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, *, watcher: Watcher | None = None
    ) -> IncrementalClassifier:
        """Learn more: new classes, more samples of old ones, or both. An error leaves the model as it was.

        `classes` need not be announced; it is there because scikit-learn's callers may pass it.
        """
        return self._teach(X, y, getattr(self, "model_", None), watcher)

    def _teach(self, X: Any, y: Any, before: Model | None, watcher: Watcher | None) -> IncrementalClassifier:
        attributes = dict(vars(self))
        try:
            performance.keep_freed_memory()
            data = self._read(X, before)
            names = labels.read(y, len(data))
            after = self._begin(data) if before is None else before.copy()
            after.teach(data, names, watcher)
            self.stability_ = stability.measure(before, after)
            after.history[-1]["stability"] = self.stability_.to_json()
            self.model_, self.classes_ = after, after.labels.classes()
        except BaseException:
            self.__dict__ = attributes
            raise
        return self

    def _begin(self, data: Tensor) -> Model:
        image = data.ndim == 4
        backbone = self.backbone
        if isinstance(backbone, str) and backbone == "auto":
            backbone = "resnet20" if image else "mlp"
        config = self._config(backbone, image)
        epochs = None if self.epochs == "auto" else config.epochs
        if isinstance(self.normalise, str) and self.normalise == "auto":
            mean, std = inputs.statistics(data)
        else:
            mean, std = inputs.given_statistics(self.normalise, data.shape[1])
        return assemble(
            config, backbone, tuple(data.shape[1:]), mean, std, held=self._held(), share=self.held_back,
            epochs=epochs, device=experiment.choose_device(self.device),
        )

    def _config(self, backbone: str | nn.Module, image: bool) -> Config:
        """A run's config, filled in and checked as a run's is: one's own data are a benchmark without a name."""
        if not 0 <= self.held_back < 1:
            raise BadConfig(f"held_back is {self.held_back}; it is a share of the memory, 0 to below 1 (usually 0.1).")
        if isinstance(self.epochs, str) and self.epochs != "auto":
            raise BadConfig(f"epochs is {self.epochs!r}; it is 'auto' or a whole number.")
        if self.augment not in ("auto", "none") and not image:
            raise BadConfig(f"augment is {self.augment!r}, which is for images; vectors are learned as they are.")
        augment = ("shift" if image else "none") if self.augment == "auto" else self.augment
        name = backbone if isinstance(backbone, str) else "mlp"  # a network of one's own has no name; not used then
        kept = self.memory - self._held()
        own = Benchmark("own data", "own data", "split", 1, 1, name, 1, kept, augment=augment, shift=augment)
        seed = self.random_state
        if not isinstance(seed, int):
            seed = int(check_random_state(seed).randint(2**31))
        config = Config(
            own.name, head=self.head, slots=self.slots, memory=kept, policy=self.policy, backbone=name,
            epochs=None if self.epochs == "auto" else int(self.epochs), batch=self.batch, optimizer=self.optimizer,
            lr=self.lr, seed=seed, augment=augment, recipe=self.recipe,
        ).resolved(own)
        distill = config.distill if self.distill is None else self.distill  # after the recipe, so that "none" is kept
        return replace(config, distill=distill, distill_weight=self.distill_weight).resolved(own)

    def _held(self) -> int:
        return int(self.memory * self.held_back)

    # Using.

    def predict(self, X: Any, *, reject: float | None = None) -> np.ndarray:
        """The most likely label of each.

        With `reject`, None where it is probably none of the classes: by a threshold on `novelty` that about this
        share of known samples is refused at (0.05, say), calibrated on the held-back ones.
        """
        model, embedded = self._embed(X)
        found = self.classes_[model.logits(embedded).argmax(1).cpu().numpy()]
        if reject is None:
            return found
        found = found.astype(object)
        found[(model.novelty(embedded) > model.threshold(reject)).cpu().numpy()] = None
        return found

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, classes) probabilities among the classes so far, in the order of `classes_`."""
        model, embedded = self._embed(X)
        return model.logits(embedded).double().softmax(1).cpu().numpy()

    def novelty(self, X: Any) -> np.ndarray:
        """How little each is any of the classes so far, 0..1: the share of the softmax on the empty slots."""
        model, embedded = self._embed(X)
        return model.novelty(embedded).cpu().numpy()

    def embed(self, X: Any, *, unit: bool = False) -> np.ndarray:
        """(n, dim) vectors in the space of the class directions, for a search index; of length one if asked."""
        _, embedded = self._embed(X)
        return (F.normalize(embedded, dim=1) if unit else embedded).cpu().numpy()

    def forget(self, label: Any) -> IncrementalClassifier:
        """Unlearn a class: its samples are deleted, its slot is free for another, it is never predicted again."""
        check_is_fitted(self, "model_")
        after = self.model_.copy()
        after.forget(label)
        self.model_, self.classes_ = after, after.labels.classes()
        return self

    def _embed(self, X: Any) -> tuple[Model, Tensor]:
        check_is_fitted(self, "model_")
        if not len(self.classes_):
            raise BadConfig("Every class has been forgotten: teach one with partial_fit first.")
        return self.model_, self.model_.embed(self._read(X, self.model_))

    def _read(self, X: Any, model: Model | None) -> Tensor:
        shape = None if model is None else model.learner.shape
        if inputs.are_images(X):
            if shape is not None and len(shape) == 1:
                raise BadConfig(f"These are images, but the model learned from vectors of {shape[0]} numbers.")
            return inputs.images(X, shape, self.image_size)
        if shape is not None and len(shape) == 3:
            raise BadConfig(f"These are vectors, but the model learned from images of {shape}.")
        checked = validate_data(self, inputs.plain(X), dtype=np.float32, reset=model is None)
        return inputs.vectors(checked)

    # Keeping.

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the model into `folder`, whole or not at all; what was there stays until the new one is there."""
        from . import model_files

        check_is_fitted(self, "model_")
        return model_files.save(self, Path(folder))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write an ONNX file: stored inputs (bytes for images) to `embedding` and `probabilities`. Extra `onnx`."""
        from . import onnx_export

        check_is_fitted(self, "model_")
        return onnx_export.export(self.model_, Path(path))

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], *, device: str = "auto", backbone: nn.Module | None = None
    ) -> IncrementalClassifier:
        """What `save` wrote. A model with a network of your own needs it again as `backbone`; it gets its weights."""
        from . import model_files

        return model_files.load(cls, Path(folder), device=device, backbone=backbone)
