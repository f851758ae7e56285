"""`IncrementalClassifier`: incremental learning of new classes with scikit-learn's fit and predict."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from .. import hardware
from ..data import inputs, others
from ..embedders.base import same_content
from ..errors import BadConfig
from ..learning.training import Watcher
from . import labels, settings, solved
from .embedding import Embedding
from .model import Model, assemble
from .progress import Progress
from .sharing import Shared
from .shown import Shown
from .solved import SolvedModel


class IncrementalClassifier(ClassifierMixin, Embedding, Shared, Shown):
    """A classifier that learns new classes at any time and predicts among all classes so far.

    Parameters
    ----------
    backbone : the network. "auto" is none for vectors and "patches" for images: frozen features from patches of the
        first batch (with method="replay": "mlp" and "resnet20"). A name from `holdfast.backbones.names()` or
        "timm:NAME" is trained from random weights, "timm:NAME@published" or "timm:NAME@FILE.safetensors" from those.
        A `torch.nn.Module` is copied and trained from its own weights.
    head : the classifier. "simplex" is fixed and pre-allocated; "expanding" is the usual trainable one.
    slots : the largest number of classes over the model's life.
    memory : the number of samples kept in total. None keeps 2,000, or 20 per class if that is more, in at most 512 MB.
        "solved" keeps at most 512 samples, only for calibration.
    embedder : a model that others trained, which turns samples into vectors: "sentence-transformers:NAME_OR_FOLDER" for
        texts, "timm:NAME" or "onnx:FILE" for images, or any function or torch module (`holdfast.embedders`). X is then
        a list of texts, images or paths. The model refuses any other embedder than the one it was taught with.
    offline, cache : never download an embedder; keep its vectors on disk, so that no sample is embedded twice.
    method : "replay" trains the network and rehearses samples from memory. "solved" freezes the network and solves
        for the classifier in closed form from sums over the features: exact, in milliseconds, without forgetting.
        "auto" is "solved", unless a network or a parameter of training is given. `method_` holds the choice.
    width, priors, keep_scatter : options of "solved". The number of random features (None: chosen from the data);
        "uniform" or "empirical" class priors; whether to keep d x d numbers per class, which makes `forget` exact.
    recipe : how "replay" uses its memory. "paper" is the published method; "strong" adds `balance` and `distill`.
    balance : balanced softmax, which removes the bias towards classes that are frequent in a batch. None takes the
        recipe's value ("strong": True, "paper": False).
    augment_memory : additional augmentation of images from memory: None or "none", "shift", "crop-flip", or a name
        registered with `holdfast.learning.augment.register`.
    policy : how samples for the memory are chosen: "class" (the same number per class), "herding", "reservoir",
        "task".
    distill : None takes the recipe's value ("strong": "features", "paper": "none"). "features" keeps the vectors of
        samples in memory close to where they were before the batch, so that an index of them stays valid. "contrast"
        keeps them nearer to there than to other classes. "logits" keeps their logits close to the stored ones. "none"
        lets them move.
    distill_weight : the weight of that loss; by default 5 for features, 9 for contrast and 0.5 for logits.
    vertex_probability : puts the vectors of a fixed head on a sphere, so small that a sample exactly at its vertex has
        this probability, such as 0.99. Vectors then turn less (docs/staying-put.md). None leaves their length free.
    epochs : passes over each batch; "auto" chooses 5 to 100 passes, for about 150 updates.
    batch, lr, optimizer : of the updates; half of each update comes from memory.
    augment : augmentation of all images: "auto" ("shift"), "none", "shift", "crop-flip", or a name registered with
        `holdfast.learning.augment.register`.
    image_size : the size to which images are resized, a number or (height, width); by default the first batch's.
    normalise : "auto" (mean and deviation of the first batch) or (mean, deviation) of pixels as 0..1, each one number
        or one per channel (per feature for vectors). Give the values of a pretrained network here.
    held_back : the share of the memory that is never trained on. It serves to measure stability and to calibrate
        `reject`. Each class gives at most this share of its samples, so a class with few samples may give none.
    random_state : the same number gives the same model; None draws a new seed per model.
    device : "auto" (a GPU if there is one), "cpu", "cuda", ...

    Attributes
    ----------
    classes_ : the labels so far, sorted; the columns of `predict_proba`.
    stability_ : how far the last `partial_fit` moved the vectors, and what to do with an index of them.
    model_ : everything learned (`holdfast.estimator.model.Model` or `holdfast.estimator.solved.SolvedModel`).
    """

    def __init__(
        self,
        backbone: str | nn.Module = "auto",
        head: str = "simplex",
        slots: int = 1000,
        memory: int | None = None,
        *,
        embedder: Any = None,
        offline: bool = False,
        cache: bool = True,
        method: str = "auto",
        width: int | None = None,
        priors: str = "uniform",
        keep_scatter: bool = False,
        recipe: str = "strong",
        balance: bool | None = None,
        augment_memory: str | None = None,
        policy: str = "class",
        distill: str | None = None,
        distill_weight: float | None = None,
        vertex_probability: float | None = None,
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
        self.embedder = embedder
        self.offline = offline
        self.cache = cache
        self.method = method
        self.width = width
        self.priors = priors
        self.keep_scatter = keep_scatter
        self.recipe = recipe
        self.balance = balance
        self.augment_memory = augment_memory
        self.policy = policy
        self.distill = distill
        self.distill_weight = distill_weight
        self.vertex_probability = vertex_probability
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

    def fit(self, X: Any, y: Any = None, *, watcher: Watcher | None = None) -> IncrementalClassifier:
        """Discard the current model and learn these samples.

        X and y are arrays or lists; or X is a data set of another library, with its labels (`holdfast.data.others`).
        `watcher` hears of the progress; `holdfast.progress` makes one that shows a bar."""
        return self._teach(X, y, None, watcher)

    def partial_fit(
        self, X: Any, y: Any = None, classes: Any = None, *, watcher: Watcher | None = None,
        progress: Progress | None = None,
    ) -> IncrementalClassifier:
        """Learn new classes, more samples of known classes, or both. An error leaves the model unchanged.

        `lr`, `epochs` and `batch` may be changed with `set_params` between calls. Any other changed parameter is
        refused, because the model is already built with it; `fit` starts a new model. `classes` is accepted for
        scikit-learn's callers and ignored. `progress` (`holdfast.estimator.progress.Progress`) names a file that keeps
        the training state of an interrupted batch of "replay"; the same call goes on from it to the same bits.
        """
        return self._teach(X, y, getattr(self, "model_", None), watcher, progress)

    def _teach(
        self, X: Any, y: Any, before: Model | SolvedModel | None, watcher: Watcher | None,
        progress: Progress | None = None,
    ) -> IncrementalClassifier:
        attributes = dict(vars(self))
        try:
            hardware.keep_freed_memory()
            after = None if before is None else before.copy()
            if after is not None:
                settings.follow(self, after)
            X, y = others.labelled(X, y)
            data = self._read(X, before, watcher)
            names = labels.read(y, len(data))
            after = after or self._begin(data)
            after.teach(data, names, watcher, progress)
            self.stability_ = after.stability(before)  # type: ignore[arg-type]
            after.history[-1]["stability"] = self.stability_.to_json()
            self.model_, self.classes_ = after, after.labels.classes()
        except BaseException:
            self.__dict__ = attributes
            raise
        return self

    def _begin(self, data: Tensor) -> Model | SolvedModel:
        chosen = settings.read(self, image=data.ndim == 4)
        if isinstance(self.normalise, str) and self.normalise == "auto":
            mean, std = inputs.statistics(data)
        else:
            mean, std = inputs.given_statistics(self.normalise, data.shape[1])
        device = hardware.choose_device(self.device)
        build = solved.assemble if chosen.method == "solved" else assemble
        model = build(chosen, tuple(data.shape[1:]), mean, std, device=device)
        if isinstance(model, SolvedModel):
            model.begin(data)
        model.given = settings.given(self)
        model.embedder = self._open_embedder().fingerprint if self.embedder is not None else None
        return model

    @property
    def method_(self) -> str:
        """Return the method of this model: "solved" or "replay"."""
        check_is_fitted(self, "model_")
        return self.model_.settings.method

    # Using.

    def predict(self, X: Any, *, reject: float | None = None) -> np.ndarray:
        """Return the most likely label of each sample.

        With `reject`, return None for samples that probably belong to no known class. The threshold on `novelty` is
        calibrated on held-back samples, so that about this share of known samples (such as 0.05) is rejected.
        """
        model, embedded = self._embed(X)
        found = self.classes_[model.logits(embedded).argmax(1).cpu().numpy()]
        if reject is None:
            return found
        found = found.astype(object)
        found[(model.novelty(embedded) > model.threshold(reject)).cpu().numpy()] = None
        return found

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities (n, classes) among the known classes, in the order of `classes_`."""
        model, embedded = self._embed(X)
        return model.chances(embedded).cpu().numpy()

    def novelty(self, X: Any) -> np.ndarray:
        """Return a score per sample; larger means less like any known class.

        For "replay" it is the softmax probability of the empty slots, 0..1; for "solved" the relative Mahalanobis
        distance."""
        model, embedded = self._embed(X)
        return model.novelty(embedded).cpu().numpy()

    def embed(self, X: Any, *, unit: bool = False) -> np.ndarray:
        """Return vectors (n, dim) for a search index, of length one with `unit`.

        They are the outputs of the junction for "replay", and the frozen features for "solved"."""
        return self.as_vectors(self.embed_tensor(X), unit=unit)

    def embed_tensor(self, X: Any) -> Tensor:
        """Return the same vectors as a tensor on the model's device, as `model_` takes them."""
        return self._embed(X)[1]

    @staticmethod
    def as_vectors(embedded: Tensor, *, unit: bool) -> np.ndarray:
        """Return embedded samples as an array, of length one with `unit`."""
        return (F.normalize(embedded.double(), dim=1, eps=1e-300).float() if unit else embedded).cpu().numpy()

    def forget(self, label: Any, X: Any = None) -> IncrementalClassifier:
        """Remove a class: delete its samples and free its slot; it is never predicted again.

        A solved model then equals one that never saw it if it has `keep_scatter=True`, or if X has all its samples
        again; otherwise the covariance still contains the class. What replay learned stays in its weights."""
        check_is_fitted(self, "model_")
        after = self.model_.copy()
        if X is None:
            after.forget(label)
        elif isinstance(after, SolvedModel):
            after.forget(label, after.embed(self._read(X, after)))
        else:
            raise BadConfig("X is given, but only a solved model can forget by its samples: leave X out.")
        report = after.stability_without(self.stability_)
        self.model_, self.classes_, self.stability_ = after, after.labels.classes(), report
        return self

    def merge(self, other: IncrementalClassifier) -> IncrementalClassifier:
        """Add what another solved model learned, exactly as if this one had learned its samples.

        Both need the same parameters and the same features. So several machines can each learn a part of a large
        data set, and the models are merged."""
        for each in (self, other):
            check_is_fitted(each, "model_")
        mine, theirs = self.model_.copy(), other.model_
        if not isinstance(mine, SolvedModel) or not isinstance(theirs, SolvedModel):
            raise BadConfig("Only models of the method 'solved' can be merged: trained weights do not add up.")
        if differ := [name for name in mine.given if mine.given[name] != theirs.given.get(name)]:
            raise BadConfig(f"The models differ in {', '.join(differ)}: start both with the same parameters.")
        if not same_content(mine.embedder or "", theirs.embedder or ""):
            raise BadConfig(f"The models were taught with the embedders {mine.embedder or 'none'} and "
                            f"{theirs.embedder or 'none'}, whose vectors do not mix: teach both with the same one.")
        mine.merge(theirs)
        self.model_, self.classes_, self.stability_ = mine, mine.labels.classes(), mine.stability()
        return self

    def _embed(self, X: Any) -> tuple[Model | SolvedModel, Tensor]:
        check_is_fitted(self, "model_")
        if not len(self.classes_):
            raise BadConfig("Every class has been forgotten: teach one with partial_fit first.")
        return self.model_, self.model_.embed(self._read(X, self.model_))

    def _read(self, X: Any, model: Model | SolvedModel | None, watcher: Watcher | None = None) -> Tensor:
        X = others.samples(X)
        if self.embedder is not None:
            return inputs.vectors(self._vectors(X, model, watcher or Watcher()))
        if model is not None and model.embedder is not None:
            raise BadConfig(f"This model was taught with the embedder {model.embedder}: load(folder, embedder=...).")
        shape = None if model is None else model.shape
        if inputs.are_images(X):
            if shape is not None and len(shape) == 1:
                raise BadConfig(f"These are images, but the model learned from vectors of {shape[0]} numbers.")
            return inputs.images(X, shape, self.image_size)
        if shape is not None and len(shape) == 3:
            raise BadConfig(f"These are vectors, but the model learned from images of {shape}.")
        inputs.check_finite(inputs.plain(X))
        checked = validate_data(self, inputs.plain(X), dtype=np.float32, reset=model is None)
        return inputs.vectors(checked)

    # Keeping.

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the model into `folder` atomically; a previous model stays until the new one is complete."""
        from . import model_files

        check_is_fitted(self, "model_")
        settings.follow(self, self.model_)
        return model_files.save(self, Path(folder))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write an ONNX file that maps raw inputs (uint8 for images) to `embedding` and `probabilities`.

        It needs the extra `onnx`."""
        from . import onnx_export

        check_is_fitted(self, "model_")
        return onnx_export.export(self.model_, Path(path))

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], *, device: str = "auto", backbone: nn.Module | None = None,
        embedder: Any = None, offline: bool = False,
    ) -> IncrementalClassifier:
        """Read what `save` wrote. If the model was trained with your own network, pass one like it as `backbone`."""
        from . import model_files

        estimator = model_files.load(cls, Path(folder), device=device, backbone=backbone)
        estimator.embedder = estimator.embedder if embedder is None else embedder
        estimator.offline = offline
        return estimator

