"""`IncrementalClassifier`: classes as they come, behind scikit-learn's fit and predict."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from .. import experiment, inputs, performance
from ..errors import BadConfig
from ..training import Watcher
from . import labels, settings, stability
from .model import Model, assemble


class IncrementalClassifier(ClassifierMixin, BaseEstimator):
    """Teach it classes as they come; it predicts among all so far, and its vectors stay where they are.

    Parameters
    ----------
    backbone : the network: "auto" (vectors: "mlp", images: "resnet20"), a name of `steadfast.backbones.names()`,
        "timm:NAME" (these start untrained), or any `torch.nn.Module` (it is copied; its weights are where training
        starts, so a pretrained one is given like this).
    head : the classifier; "simplex" is fixed and pre-allocated, "expanding" the usual one.
    slots : how many classes there is room for, over the model's whole life.
    memory : how many samples are remembered in all.
    recipe : how the remembered samples are used: "paper" as published, "strong" with `balance` and `distill` too.
    balance : balanced softmax, by which a class gains nothing by being frequent in a batch; None is as the recipe
        has it ("strong": True, "paper": False).
    vary : how remembered images are varied before each use, besides `augment`, which varies all: None or "none",
        "shift", "crop-flip", or a name given with `steadfast.augment.register`.
    policy : which samples are remembered: "class" (as many of each), "herding", "reservoir", "task".
    distill : None is as the recipe has it ("strong": "features", "paper": "none"). "features" holds the vectors of
        remembered samples where they were before each batch, so that an index of them stays good; "logits" likewise
        their logits when stored; "none" lets them move.
    distill_weight : how strongly; by default 5 for features and 0.5 for logits.
    epochs : passes over each batch given; "auto" makes it about 150 updates, 5 to 100 passes.
    batch, lr, optimizer : of the updates; half of a batch is remembered samples.
    augment : how images are varied, new and remembered: "auto" ("shift"), "none", "shift", "crop-flip", or a name given
        with `steadfast.augment.register`.
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
        balance: bool | None = None,
        vary: str | None = None,
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
        self.balance = balance
        self.vary = vary
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

        `lr`, `epochs` and `batch` may be changed with `set_params` before it; another parameter that has changed is
        refused, since the model is built of it already (`fit` starts anew with it).
        `classes` need not be announced; it is there because scikit-learn's callers may pass it.
        """
        return self._teach(X, y, getattr(self, "model_", None), watcher)

    def _teach(self, X: Any, y: Any, before: Model | None, watcher: Watcher | None) -> IncrementalClassifier:
        attributes = dict(vars(self))
        try:
            performance.keep_freed_memory()
            after = None if before is None else before.copy()
            if after is not None:
                settings.follow(self, after)
            data = self._read(X, before)
            names = labels.read(y, len(data))
            after = after or self._begin(data)
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
        config = settings.config(self, image)
        if isinstance(self.normalise, str) and self.normalise == "auto":
            mean, std = inputs.statistics(data)
        else:
            mean, std = inputs.given_statistics(self.normalise, data.shape[1])
        model = assemble(
            config, settings.backbone(self, image), tuple(data.shape[1:]), mean, std, held=settings.held(self),
            share=float(self.held_back), epochs=settings.epochs(self), device=experiment.choose_device(self.device),
        )
        model.given = settings.given(self)
        return model

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
        return model.chances(embedded).cpu().numpy()

    def novelty(self, X: Any) -> np.ndarray:
        """How little each is any of the classes so far, 0..1: the share of the softmax on the empty slots."""
        model, embedded = self._embed(X)
        return model.novelty(embedded).cpu().numpy()

    def embed(self, X: Any, *, unit: bool = False) -> np.ndarray:
        """(n, dim) vectors in the space of the class directions, for a search index; of length one if asked."""
        _, embedded = self._embed(X)
        return (F.normalize(embedded, dim=1) if unit else embedded).cpu().numpy()

    def forget(self, label: Any) -> IncrementalClassifier:
        """Unlearn a class: its samples are deleted, its slot is free for another, it is never predicted again.

        `stability_` is measured again without it, as for an index that its vectors have been taken out of."""
        check_is_fitted(self, "model_")
        after = self.model_.copy()
        after.forget(label)
        report = stability.measure_again(self.stability_, after)
        self.model_, self.classes_, self.stability_ = after, after.labels.classes(), report
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
        settings.follow(self, self.model_)
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
