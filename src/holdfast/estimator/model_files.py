"""Save and load a model as one safetensors file with JSON in its header. Nothing is ever unpickled.

It is one file so that one rename replaces a model atomically. It holds the estimator's parameters, from which the
model is rebuilt, and the learned tensors. A name in the file is looked up, never imported or downloaded.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from .. import __version__, backbones, files, hardware
from ..embedders import absolute
from ..errors import BadConfig, BadFile, NewerFile
from . import settings, solved
from .labels import Labels
from .model import Model, assemble
from .solved import SolvedModel
from .stability import Stability

if TYPE_CHECKING:
    from .classifier import IncrementalClassifier

KIND, FORMAT = "holdfast.IncrementalClassifier", 1
NAME = "model.safetensors"
PLAIN_TIMM = re.compile(r"timm:[A-Za-z0-9_.]+")  # no hub or folder prefix, so that a file cannot trigger a download


def save(estimator: IncrementalClassifier, folder: Path, name: str = NAME, parent: int | None = None) -> Path:
    """Write the estimator's parameters and its model into a file of `folder`; return the file's path.

    `parent` is the number of the version that this one was learned from."""
    model = estimator.model_
    tensors, position = model.state()
    normalised = model.frozen if isinstance(model, SolvedModel) else model.learner
    tensors |= {"normalise.shift": normalised.shift, "normalise.scale": normalised.scale}
    named = backbones.unweighted(estimator.backbone) if isinstance(estimator.backbone, str) else None
    state = {
        "kind": KIND, "model_format": FORMAT, "holdfast": __version__,
        "parameters": {**model.given, "backbone": named,
                       "random_state": model.settings.seed,
                       "embedder": absolute(estimator.embedder)},
        "embedder": model.embedder,
        "own_backbone": type(estimator.backbone).__name__ if named is None else None,
        "shape": list(model.shape), "labels": model.labels.to_json(),
        "taught": model.taught, "history": model.history, "parent": parent,
        "position": position, "stability": estimator.stability_.to_json(),
        "features": getattr(estimator, "n_features_in_", None),
        "feature_names": [str(n) for n in getattr(estimator, "feature_names_in_", [])],
    }
    files.write_tensors(folder / name, tensors, files.plain(state))
    return folder / name


def load(
    cls: type[IncrementalClassifier], folder: Path, *, device: str = "auto", backbone: nn.Module | None = None
) -> IncrementalClassifier:
    """Read what `save` wrote; raise BadFile for anything unknown or damaged."""
    path = folder / NAME if folder.is_dir() or not folder.exists() else folder
    if not path.exists():
        raise BadFile(f"There is no model in {folder}: the file {path} does not exist.")
    tensors, state = files.read_tensors(path)
    _check_kind(path, state)
    where = hardware.choose_device(device)
    with _as_bad_file(path):
        shape, own, parameters = tuple(state["shape"]), state["own_backbone"], dict(state["parameters"])
    _check_network(folder, tensors, backbone, own, shape)
    with _as_bad_file(path):
        for name in ("image_size", "normalise"):  # JSON has no tuples
            parameters[name] = tuple(parameters[name]) if isinstance(parameters[name], list) else parameters[name]
        estimator = cls(**{**parameters, "backbone": backbone or _known(parameters["backbone"])}, device=device)
        model = _model(estimator, tensors, state, shape, where)
        estimator.model_, estimator.classes_ = model, model.labels.classes()
        estimator.stability_ = Stability.from_json(state["stability"])
        if state["features"] is not None:
            estimator.n_features_in_ = int(state["features"])
        if state["feature_names"]:
            estimator.feature_names_in_ = np.array(state["feature_names"], dtype=object)
    return estimator


def _model(
    estimator: IncrementalClassifier, tensors: dict[str, Tensor], state: dict[str, Any], shape: tuple[int, ...],
    device: Any,
) -> Model | SolvedModel:
    """Build the model from the estimator's parameters and load the learned tensors."""
    shift, scale = tensors.pop("normalise.shift").flatten(), tensors.pop("normalise.scale").flatten()
    unit = 255 if len(shape) == 3 else 1
    mean, std = (shift / unit).tolist(), (1 / (scale * unit)).tolist()
    method = "solved" if "solver" in state["position"] else "replay"
    chosen = settings.read(estimator, len(shape) == 3, method)
    model: Model | SolvedModel
    if chosen.method == "solved":
        model = solved.assemble(chosen, shape, mean, std, device=device)
        normalised: nn.Module = model.frozen
    else:
        model = assemble(chosen, shape, mean, std, device=device)
        normalised = model.learner
    for name, value in (("shift", shift), ("scale", scale)):  # the saved values, exact to the bit
        buffer: Tensor = getattr(normalised, name)
        buffer.copy_(value.view_as(buffer))
    model.labels = Labels.from_json(model.settings.slots, state["labels"])
    model.load(tensors, state["position"])
    model.taught, model.history = int(state["taught"]), list(state["history"])
    model.given, model.embedder = settings.given(estimator), state["embedder"]
    return model


def _check_kind(path: Path, state: dict[str, Any]) -> None:
    if state.get("kind") != KIND:
        raise BadFile(f"{path} is not a model of IncrementalClassifier.")
    seen = state.get("model_format")
    if seen == FORMAT:
        return
    text = f"{path} has model format {seen!r}, written by holdfast {state.get('holdfast')}; this is {__version__}"
    if isinstance(seen, int) and seen > FORMAT:
        raise NewerFile(f"{text}, which reads format {FORMAT}: upgrade to read it.")
    raise BadFile(f"{text}, and no holdfast has written such a format.")


@contextmanager
def _as_bad_file(path: Path) -> Iterator[None]:
    """Turn any exception inside the block into a BadFile."""
    try:
        yield
    except Exception as error:
        raise BadFile(f"{path} is not a model that can be read: {type(error).__name__}: {error}") from error


def _check_network(
    folder: Path, tensors: dict[str, Tensor], backbone: nn.Module | None, own: str | None, shape: tuple[int, ...]
) -> None:
    """Raise BadConfig if the caller's network does not match the file."""
    if backbone is None:
        if own is not None:
            raise BadConfig(
                f"The model in {folder} was trained with a network of yours ({own}): "
                f"pass one built the same way, load(folder, backbone=network); it receives the weights."
            )
        return
    if own is None:
        raise BadConfig(f"backbone is a {type(backbone).__name__}, but the model in {folder} has one: leave it out.")
    network = backbones.build(copy.deepcopy(backbone), shape)
    wanted = {f"learner.backbone.{k}": v.shape for k, v in network.state_dict().items()}
    if wanted != {k: v.shape for k, v in tensors.items() if k.startswith("learner.backbone.")}:
        raise BadConfig(
            f"backbone is a {type(backbone).__name__} whose weights differ in name or shape from those of the {own} in "
            f"{folder}: pass a network built the same way."
        )


def _known(name: Any) -> str:
    if not isinstance(name, str) or not (name == "auto" or name in backbones.names() or PLAIN_TIMM.fullmatch(name)):
        raise ValueError(f"there is no backbone called {name!r}")
    return name
