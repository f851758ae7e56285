"""A model in one file: safetensors, with everything else as JSON in its header. Nothing is ever unpickled.

One file, so that one rename replaces a model whole. Whatever a file claims is checked against its own tensors before
anything of that size is built; a name in it is looked up, never imported or fetched.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import __version__, backbones, experiment, files, inputs
from ..benchmarks import Benchmark
from ..config import Config
from ..errors import BadConfig, BadFile, NewerFile
from ..learner import Learner
from . import settings
from .labels import Labels
from .model import Model, assemble
from .stability import Stability

if TYPE_CHECKING:
    from .classifier import IncrementalClassifier

KIND, FORMAT = "steadfast.IncrementalClassifier", 1
NAME = "model.safetensors"
MOST_SIDE = 1 << 14  # pixels a side, or numbers a vector times as many
PLAIN_TIMM = re.compile(r"timm:[A-Za-z0-9_.]+")  # no hub, no folder: nothing is fetched for a file's sake


def save(estimator: IncrementalClassifier, folder: Path) -> Path:
    """The model's parameters and everything it learned, into `folder`; returns the file."""
    model: Model = estimator.model_
    tensors, position = model.trainer().state()
    tensors |= {"normalise.shift": model.learner.shift, "normalise.scale": model.learner.scale}
    tensors |= {f"held.{k}": v for k, v in model.held.state().items()}
    own = not isinstance(estimator.backbone, str)
    state = {
        "kind": KIND, "model_format": FORMAT, "steadfast": __version__,
        "parameters": {**model.given, "backbone": None if own else estimator.backbone},
        "config": model.config.to_json(), "own_backbone": type(estimator.backbone).__name__ if own else None,
        "shape": list(model.learner.shape), "labels": model.labels.to_json(), "epochs": model.epochs,
        "share": model.share, "held": model.held.capacity, "taught": model.taught, "history": model.history,
        "position": position, "stability": estimator.stability_.to_json(),
        "features": getattr(estimator, "n_features_in_", None),
        "feature_names": [str(n) for n in getattr(estimator, "feature_names_in_", [])],
    }
    files.write_tensors(folder / NAME, tensors, files.plain(state))
    return folder / NAME


def load(
    cls: type[IncrementalClassifier], folder: Path, *, device: str = "auto", backbone: nn.Module | None = None
) -> IncrementalClassifier:
    """What `save` wrote; anything unknown, damaged or contradictory is a BadFile."""
    path = folder / NAME if folder.is_dir() or not folder.exists() else folder
    if not path.exists():
        raise BadFile(f"There is no model in {folder}: it would be the file {path}.")
    tensors, state = files.read_tensors(path)
    if not isinstance(state, dict) or state.get("kind") != KIND:
        raise BadFile(f"{path} holds no model of IncrementalClassifier.")
    _check_format(path, state)
    where = experiment.choose_device(device)
    with _its_own_fault(path):
        shape, own = _shape(state["shape"]), state["own_backbone"]
        if not (own is None or isinstance(own, str)):
            raise ValueError(f"a network called {own!r}")
    _check_network(folder, tensors, backbone, own, shape)
    with _its_own_fault(path):
        _check_finite(tensors)
        model = _model(tensors, state, shape, backbone, where)
        estimator = cls(**{**state["parameters"], "backbone": backbone or state["parameters"]["backbone"]})
        estimator.set_params(random_state=model.config.seed, device=device)
        for pair in ("image_size", "normalise"):  # JSON knows no tuples
            if isinstance(value := getattr(estimator, pair), list):
                estimator.set_params(**{pair: tuple(value)})
        _check_parameters(estimator, model)
        model.given = settings.given(estimator)
        estimator.model_, estimator.classes_ = model, model.labels.classes()
        estimator.stability_ = Stability.from_json(state["stability"])
        if state["features"] is not None:
            estimator.n_features_in_ = int(state["features"])
        if state["feature_names"]:
            import numpy as np

            estimator.feature_names_in_ = np.array(state["feature_names"], dtype=object)
    return estimator


@contextmanager
def _its_own_fault(path: Path) -> Iterator[None]:
    """A file can be wrong in any way, and within this all of them are the file's fault."""
    try:
        yield
    except Exception as error:
        raise BadFile(f"{path} is not a model that can be read: {type(error).__name__}: {error}") from error


def _model(
    tensors: dict[str, Tensor], state: dict[str, Any], shape: tuple[int, ...], backbone: nn.Module | None,
    device: torch.device,
) -> Model:
    config = Config.from_json(state["config"])
    assert config.backbone and config.memory is not None
    config = config.resolved(Benchmark(config.benchmark, "own data", "split", 1, 1, config.backbone, 1, config.memory))
    epochs = state["epochs"]
    if config.method != "replay" or not (epochs is None or (type(epochs) is int and epochs > 0)):
        raise ValueError("its training is of no kind that is known")
    name: str | nn.Module = backbone if backbone is not None else _known_backbone(config.backbone)
    shift, scale = tensors.pop("normalise.shift").flatten(), tensors.pop("normalise.scale").flatten()
    if len(shift) != shape[0] or len(scale) != shape[0] or not bool((shift.isfinite() & scale.isfinite()).all()):
        raise ValueError("the normalisation does not fit the inputs")
    if not 0 <= state["share"] < 1:
        raise ValueError("the held-back share is no share")
    held = {k.removeprefix("held."): tensors.pop(k) for k in list(tensors) if k.startswith("held.")}
    memory = {k.removeprefix("method.memory."): v for k, v in tensors.items() if k.startswith("method.memory.")}
    assert config.slots and config.memory is not None
    _check_memory(memory, config.memory, shape, config.slots)
    room = state.get("held", len(held["images"]))  # which once was saved with all of its rows
    if type(room) is not int:
        raise ValueError(f"{room!r} samples to hold back")
    _check_memory(held, room, shape, config.slots)
    with torch.device("meta"):  # of any size, it costs nothing
        if isinstance(name, str) and not _fits(backbones.build(name, shape), tensors):
            raise ValueError(f"its weights are not those of a {name}")
    if sum(t.numel() for k, t in tensors.items() if k.startswith("learner.head.")) < config.slots.bit_length():
        raise ValueError(f"its weights do not make a head of {config.slots} slots")
    _check_head(tensors, config)
    unit = 255 if len(shape) == 3 else 1
    model = assemble(
        config, name, shape, (shift / unit).tolist(), (1 / (scale * unit)).tolist(), held=room,
        share=float(state["share"]), epochs=epochs, device=device,
    )
    model.learner.shift.copy_(shift.view_as(model.learner.shift))
    model.learner.scale.copy_(scale.view_as(model.learner.scale))
    model.trainer().load(tensors, state["position"])
    model.held.load(held)
    for memory_notes in (model.held.notes, model.memory.notes):
        if "stored" in memory_notes and memory_notes["stored"].shape[1:] != (model.learner.head.dim,):
            raise ValueError("its stored vectors are of another space")
    model.labels = Labels.from_json(config.slots, state["labels"])
    model.taught, model.history = int(state["taught"]), [_record(values) for values in state["history"]]
    if sorted(model.labels.slots.values()) != model.learner.head.seen.tolist():
        raise ValueError("its labels and its head disagree on the slots in use")
    return model


def _record(values: dict[str, Any]) -> dict[str, Any]:
    """One batch of the history, whose report is drawn and whose accuracy is shown."""
    if "stability" in values:
        Stability.from_json(values["stability"])
    if not isinstance(values.get("accuracy"), int | float | None):
        raise ValueError("an accuracy that is no number")
    return dict(values)


def _check_format(path: Path, state: dict[str, Any]) -> None:
    seen = state.get("model_format")
    if seen == FORMAT:
        return
    text = f"{path} has model format {seen!r}, written by steadfast {state.get('steadfast')}; this is {__version__}"
    if isinstance(seen, int) and seen > FORMAT:
        raise NewerFile(f"{text}, which reads format {FORMAT}: upgrade to read it.")
    raise BadFile(f"{text}, and no steadfast has written such a format.")


def _check_network(
    folder: Path, tensors: dict[str, Tensor], backbone: nn.Module | None, own: str | None, shape: tuple[int, ...]
) -> None:
    """What is wrong with the network that the caller gives is no fault of the file's."""
    if backbone is None:
        if own is not None:
            raise BadConfig(
                f"The model in {folder} has a network of its own ({own}): "
                f"give one like it, load(folder, backbone=network), to receive the weights."
            )
        return
    if own is None:
        raise BadConfig(f"backbone is a {type(backbone).__name__}, but the model in {folder} needs none: leave it out.")
    if not _fits(backbones.build(copy.deepcopy(backbone), shape), tensors):
        raise BadConfig(
            f"backbone is a {type(backbone).__name__} whose weights are not named or shaped as those of the {own} in "
            f"{folder}: give a network built as that one was."
        )


def _fits(network: nn.Module, tensors: dict[str, Tensor]) -> bool:
    """Whether the file's weights are those of this network, by their names and shapes."""
    wanted = {f"learner.backbone.{k}": v.shape for k, v in network.state_dict().items()}
    return wanted == {k: v.shape for k, v in tensors.items() if k.startswith("learner.backbone.")}


def _check_finite(tensors: dict[str, Tensor]) -> None:
    """Weights and samples; an optimizer's running sums may overflow in training that went well.

    In remembered logits, NaN is a slot that was not in use."""
    for name, tensor in tensors.items():
        if name.startswith("optimizer.") or not tensor.is_floating_point():
            continue
        fine = ~tensor.isinf() if name == "method.memory.notes.logits" else tensor.isfinite()
        if not bool(fine.all()):
            raise ValueError(f"there are NaN or infinite values in {name}")


def _check_parameters(estimator: IncrementalClassifier, model: Model) -> None:
    """The parameters say what the model is: `get_params` and the next batch go by them."""
    wrong = settings.contradictions(estimator, model)
    shape, learner = model.learner.shape, model.learner
    if estimator.image_size is not None and len(shape) == 3 and inputs.pair(estimator.image_size) != shape[1:]:
        wrong.append(f"image_size is {estimator.image_size} and {shape[1:]}")
    if estimator.normalise != "auto":
        mean, std = inputs.given_statistics(estimator.normalise, shape[0])
        twin = Learner(nn.Identity(), learner.head, shape, mean, std)
        if not (torch.equal(twin.shift, learner.shift.cpu()) and torch.equal(twin.scale, learner.scale.cpu())):
            wrong.append("normalise is not what the inputs are normalised with")
    if wrong:
        raise ValueError(f"its parameters and its model disagree: {'; '.join(wrong)}")


def _known_backbone(name: Any) -> str:
    if not isinstance(name, str) or not (name in backbones.names() or PLAIN_TIMM.fullmatch(name)):
        raise ValueError(f"there is no backbone called {name!r}")
    return name


def _shape(values: Any) -> tuple[int, ...]:
    shape = tuple(values)
    if len(shape) not in (1, 3) or any(type(side) is not int or side < 1 for side in shape):
        raise ValueError(f"inputs of shape {shape}")
    if max(shape) > (MOST_SIDE if len(shape) == 3 else MOST_SIDE**2):
        raise ValueError(f"inputs of shape {shape}")
    return shape


def _check_memory(state: dict[str, Tensor], capacity: int, shape: tuple[int, ...], slots: int) -> None:
    """The tensors are of one length, and no longer than the config says: `Memory.load` checks the rest."""
    count, rows = int(state["counts"][0]), len(state["images"])
    if state["images"].shape[1:] != shape or not 0 <= count <= rows <= capacity:
        raise ValueError("its memory is not of the size it claims")
    if state["slots"].shape != (rows,) or state["tasks"].shape != (rows,):
        raise ValueError("its memory is not of the size it claims")
    if count and not 0 <= int(state["slots"][:count].min()) <= int(state["slots"][:count].max()) < slots:
        raise ValueError("its memory holds slots that do not exist")
    if any(len(v) != rows for k, v in state.items() if k.startswith("notes.")):
        raise ValueError("its memory's notes are not of the size it claims")


def _check_head(tensors: dict[str, Tensor], config: Config) -> None:
    """A head is built only if the file holds parameters of its size."""
    from .. import heads

    assert config.head and config.slots
    widths = [t.shape[-1] for k, t in tensors.items() if k.startswith("learner.head.") and t.dim() == 2]
    with torch.device("meta"):
        head = heads.build(config.head, widths[0], config.slots, over=config.over, embedding=config.embedding)
    for name, parameter in head.named_parameters():
        if tensors[f"learner.head.{name}"].shape != parameter.shape:
            raise ValueError(f"its head is no {config.head} of {config.slots} slots")
