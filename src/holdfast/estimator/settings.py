"""Validate the parameters of an IncrementalClassifier and turn them into the settings of a model.

A model keeps the parameters of its first batch. Those in FREE may change between batches; other changes are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sklearn.utils import check_random_state
from torch import nn

from .. import backbones, files, hardware
from ..errors import BadConfig
from ..heads import HEADS
from ..heads.fixed import FixedOptions
from ..learning.augment import AUGMENTATIONS
from ..methods import recipes
from ..methods.replay import ReplayOptions
from ..runs.config import PROTOCOL
from ..solving.options import SolvedOptions

if TYPE_CHECKING:
    from .classifier import IncrementalClassifier
    from .model import Model
    from .solved import SolvedModel

FREE = ("lr", "epochs", "batch")  # may change between batches; all others are fixed for the model's life
# Not in `given`: the settings have the seed, the model has the embedder, and a file has no device.
ELSEWHERE = ("random_state", "device", "embedder", "offline", "cache")
REPLAY = ("balance", "distill", "distill_weight")  # passed to replay if given
METHODS = ("auto", "solved", "replay")
USUAL_MEMORY = 2000  # samples kept by replay if `memory` is not given; more with many classes
PER_CLASS = 20  # samples of each class that a growing memory has room for
MOST_BYTES = 512 << 20  # of a growing memory
CALIBRATION = 512  # limit on the samples that `solved` keeps for calibration
TRAINED = {  # parameters of training and their defaults; method="auto" is replay if one was changed
    "backbone": "auto", "head": "simplex", "recipe": "strong", "balance": None, "augment_memory": None,
    "policy": "class", "distill": None, "distill_weight": None, "vertex_probability": None, "epochs": "auto",
    "batch": 128, "lr": 0.001, "optimizer": "adam", "augment": "auto",
}


@dataclass(frozen=True)
class Settings:
    """Everything a model is built from and trained with."""

    backbone: str | nn.Module
    head: str
    slots: int
    vertex_probability: float | None  # of a fixed head on a sphere
    method: str  # "solved" or "replay"
    replay: ReplayOptions
    solved: SolvedOptions
    batch: int
    lr: float
    optimizer: str
    augment: str
    epochs: int | None  # passes over a batch; None chooses automatically
    held_back: float  # share of each class's samples, and of the memory, that is never trained on
    held_rows: int  # room for held-back samples at first
    grows: bool  # the memory grows with the number of classes
    seed: int


def read(clf: IncrementalClassifier, image: bool, method: str | None = None) -> Settings:
    """Validate the estimator's parameters and choose the defaults for images or vectors.

    `method` is that of an existing model: its parameters may have changed since they chose it."""
    given = {name: _python(value) for name, value in clf.get_params(deep=False).items()}
    given["method"] = method or given["method"]
    for name, value in {"augment": given["augment"], "augment_memory": given["augment_memory"]}.items():
        if not image and value not in ("auto" if name == "augment" else None, "none"):
            raise BadConfig(f"{name} is {value!r}, which is for images; vectors are learned as they are.")
    if isinstance(given["epochs"], str) and given["epochs"] != "auto":
        raise BadConfig(f"epochs is {given['epochs']!r}; it is 'auto' or a whole number.")
    augment = ("shift" if image else "none") if given["augment"] == "auto" else given["augment"]
    protocol = {"head": given["head"], "slots": given["slots"], "batch": given["batch"], "lr": given["lr"],
                "optimizer": given["optimizer"], "augment": augment,
                "epochs": None if given["epochs"] == "auto" else given["epochs"]}
    for option in PROTOCOL:
        if option.name in protocol:
            option.check(protocol[option.name])
    fixed = issubclass(HEADS.options(given["head"]), FixedOptions)
    if given["vertex_probability"] is not None and not fixed:
        raise BadConfig(f"vertex_probability is {given['vertex_probability']}, which needs a fixed head, not "
                        f"{given['head']!r}: leave one of them out.")
    if method is None and given["method"] == "solved" and given["vertex_probability"] is not None:
        raise BadConfig(f"vertex_probability is {given['vertex_probability']}, which is for trained vectors, but "
                        f"method is 'solved', whose vectors are frozen features: leave one of them out.")
    _check_augmentations(augment, given["augment_memory"])
    grows = given["memory"] is None
    memory = USUAL_MEMORY if grows else given["memory"]
    held_rows = rows_held(memory, given["held_back"])
    options = {"memory": memory - held_rows, "policy": given["policy"]}
    options |= {name: given[name] for name in REPLAY if given[name] is not None}
    options |= {"augment_memory": given["augment_memory"]} if given["augment_memory"] is not None else {}
    strong = {"augment_memory": "none", "distill": "features"}  # `augment` already applies to every image
    replay = ReplayOptions(**recipes.expand(given["recipe"], options, augment=augment, strong=strong))
    replay.check_with(SimpleNamespace(benchmark="the model", classes=0, method="replay", **protocol))
    chosen = _method(given, image)
    solved = SolvedOptions(
        width=given["width"], priors=given["priors"], keep_scatter=given["keep_scatter"],
        held=min(CALIBRATION, memory),
    )
    return Settings(
        backbone=backbone(clf, image, chosen), method=chosen, replay=replay, solved=solved,
        held_back=float(given["held_back"]), held_rows=held_rows, grows=grows,
        seed=_seed(given["random_state"]), vertex_probability=given["vertex_probability"], **protocol,
    )


def _method(given: dict[str, Any], image: bool) -> str:
    """Return the method: "auto" is "solved", unless a network or a parameter of training is given."""
    method, own = given["method"], isinstance(given["backbone"], nn.Module)
    if method not in METHODS:
        raise BadConfig(f"method is {method!r}; choose one of {', '.join(METHODS)}.")
    if method == "solved":
        if not issubclass(HEADS.options(given["head"]), FixedOptions):
            raise BadConfig(f"method is 'solved', which needs a fixed head, not {given['head']!r}: leave head out.")
        if not own and given["backbone"] != "auto":
            raise BadConfig(
                f"method is 'solved', which learns on frozen features, but backbone is {given['backbone']!r}, an "
                f"untrained network: leave backbone out, pass a pretrained module, or choose method='replay'."
            )
    if method != "auto":
        return method
    trained = own or any(given[name] != value for name, value in TRAINED.items())
    return "replay" if trained else "solved"


def backbone(clf: IncrementalClassifier, image: bool, method: str) -> str | nn.Module:
    """Return the requested backbone; "auto" depends on the kind of input and on the method."""
    if not isinstance(clf.backbone, str):
        return clf.backbone
    if clf.backbone == "auto":
        if method == "solved":
            return "patches" if image else "none"
        return "resnet20" if image else "mlp"
    backbones.check(clf.backbone)
    return clf.backbone


def given(clf: IncrementalClassifier) -> dict[str, Any]:
    """Return the parameters as JSON values, to save them and to detect later changes.

    A user's own network is represented by its printed structure; its weights are saved with the model."""
    values = {k: v for k, v in clf.get_params(deep=False).items() if k not in ELSEWHERE}
    network = clf.backbone if isinstance(clf.backbone, str) else repr(clf.backbone)
    return files.plain({**values, "backbone": network})


def follow(clf: IncrementalClassifier, model: Model | SolvedModel) -> None:
    """Apply changed FREE parameters to the model; raise BadConfig if another parameter changed."""
    now, image = given(clf), len(model.shape) == 3
    changed = [name for name in now if now[name] != model.given[name]]
    if isinstance(seed := _python(clf.random_state), int) and seed != model.settings.seed:
        changed.append("random_state")
    if hardware.choose_device(clf.device).type != model.device.type:
        changed.append("device")
    if fixed := [name for name in changed if name not in FREE]:
        raise BadConfig(
            f"{', '.join(fixed)} cannot change: the model was started with "
            f"{', '.join(f'{name}={_before(name, model)}' for name in fixed)}. Set it back, or start anew with fit."
        )
    if changed:
        new = read(clf, image)
        model.retune(lr=new.lr, epochs=new.epochs, batch=new.batch)
        model.given = now


def _check_augmentations(augment: Any, augment_memory: Any) -> None:
    for name, value in {"augment": augment, "augment_memory": augment_memory}.items():
        if callable(value):
            raise BadConfig(
                f"{name} is a function; register it under a name: "
                f"holdfast.learning.augment.register('mine')({getattr(value, '__name__', 'function')}), {name}='mine'."
            )
        AUGMENTATIONS[value or "none"]


def rows_held(memory: Any, share: Any) -> int:
    """Return the number of memory rows reserved for held-back samples."""
    if not isinstance(memory, int) or isinstance(memory, bool) or memory < 0:
        raise BadConfig(f"memory is {memory!r}; it must be a whole number, 0 or more.")
    if not isinstance(share, int | float) or not 0 <= share < 1:
        raise BadConfig(f"held_back is {share!r}; it is a share of the memory, 0 to below 1 (usually 0.1).")
    return int(memory * share)


def _before(name: str, model: Model | SolvedModel) -> str:
    known = {**model.given, "random_state": model.settings.seed, "device": model.device.type}
    text = repr(known[name])
    return text if len(text) <= 60 else f"{text[:57]}..."


def _seed(given: Any) -> int:
    seed = given if isinstance(given, int) else int(check_random_state(given).randint(2**31))
    next(option for option in PROTOCOL if option.name == "seed").check(seed)
    return seed


def _python(value: Any) -> Any:
    """Convert numpy's and torch's numbers to Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value
