"""The parameters of an IncrementalClassifier: read as a run's config, and held to once a model has begun.

The model is the truth about itself. What can change between two batches is taken over from the parameters; any other
change is refused, rather than ignored and then saved as if it were so.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from sklearn.utils import check_random_state
from torch import nn

from .. import experiment, files
from ..benchmarks import Benchmark
from ..config import Config
from ..errors import BadConfig

if TYPE_CHECKING:
    from .classifier import IncrementalClassifier
    from .model import Model

FREE = ("lr", "epochs", "batch")  # may change between two batches; all others are for the model's life
ELSEWHERE = ("random_state", "device")  # not of what is learned: the config has the seed, and a file no device


def config(clf: IncrementalClassifier, image: bool) -> Config:
    """A run's config, filled in and checked as a run's is: one's own data are a benchmark without a name."""
    given = {name: _python(value) for name, value in clf.get_params(deep=False).items()}
    epochs, augment, vary = given["epochs"], given["augment"], given["vary"]
    if isinstance(epochs, str) and epochs != "auto":
        raise BadConfig(f"epochs is {epochs!r}; it is 'auto' or a whole number.")
    for name, value in {"augment": augment, "vary": vary}.items():
        if not image and value not in ("auto" if name == "augment" else None, "none"):
            raise BadConfig(f"{name} is {value!r}, which is for images; vectors are learned as they are.")
    augment = ("shift" if image else "none") if augment == "auto" else augment
    network = backbone(clf, image)
    name = network if isinstance(network, str) else "mlp"  # a network of one's own has no name; not used then
    kept = given["memory"] - held(clf)
    own = Benchmark("own data", "own data", "split", 1, 1, name, 1, kept, augment=augment, vary=augment)
    return Config(
        own.name, head=given["head"], slots=given["slots"], memory=kept, policy=given["policy"], backbone=name,
        epochs=None if epochs == "auto" else epochs, batch=given["batch"], optimizer=given["optimizer"],
        lr=given["lr"], seed=_seed(given["random_state"]), augment=augment, recipe=given["recipe"],
        balance=given["balance"], vary=vary, distill=given["distill"], distill_weight=given["distill_weight"],
    ).resolved(own)


def backbone(clf: IncrementalClassifier, image: bool) -> str | nn.Module:
    """The network that is asked for; "auto" depends on what comes."""
    if isinstance(clf.backbone, str) and clf.backbone == "auto":
        return "resnet20" if image else "mlp"
    return clf.backbone


def held(clf: IncrementalClassifier) -> int:
    """How many samples of the memory are held back."""
    memory, share = _python(clf.memory), _python(clf.held_back)
    if not isinstance(memory, int) or isinstance(memory, bool) or memory < 0:
        raise BadConfig(f"memory is {memory!r}; it must be a whole number, 0 or more.")
    if not isinstance(share, int | float) or not 0 <= share < 1:
        raise BadConfig(f"held_back is {share!r}; it is a share of the memory, 0 to below 1 (usually 0.1).")
    return int(memory * share)


def epochs(clf: IncrementalClassifier) -> int | None:
    """Passes over a batch; None for as many as are needed."""
    return None if isinstance(clf.epochs, str) else _python(clf.epochs)


def given(clf: IncrementalClassifier) -> dict[str, Any]:
    """The parameters as JSON can hold them: what is saved, and what a later change is told by.

    A network of one's own stands there as its structure, printed: its weights are the model's business."""
    values = {k: v for k, v in clf.get_params(deep=False).items() if k not in ELSEWHERE}
    return files.plain({**values, "backbone": _printed(clf.backbone)})


def follow(clf: IncrementalClassifier, model: Model) -> None:
    """Take over into the model what changed of FREE since it began; any other change is a BadConfig."""
    now, image = given(clf), len(model.learner.shape) == 3
    changed = [name for name in now if now[name] != model.given[name]]
    if isinstance(seed := _python(clf.random_state), int) and seed != model.config.seed:
        changed.append("random_state")
    if experiment.choose_device(clf.device).type != model.device.type:
        changed.append("device")
    if fixed := [name for name in changed if name not in FREE]:
        raise BadConfig(
            f"{', '.join(fixed)} cannot change: the model has begun with "
            f"{', '.join(f'{name}={_before(name, model)}' for name in fixed)}. Set it back, or start anew with fit."
        )
    if changed:
        new = config(clf, image)
        model.retune(replace(model.config, lr=new.lr, epochs=new.epochs, batch=new.batch), epochs(clf))
        model.given = now


def contradictions(clf: IncrementalClassifier, model: Model) -> list[str]:
    """What the parameters say otherwise than the model is, as a file that someone has altered might."""
    wanted = config(clf, len(model.learner.shape) == 3)
    pairs = [(f.name, getattr(wanted, f.name), getattr(model.config, f.name)) for f in fields(Config)]
    pairs += [("epochs", epochs(clf), model.epochs), ("held_back", clf.held_back, model.share)]
    pairs += [("held_back", held(clf), model.held.capacity)]
    rates = [group["lr"] for group in model.method.optimizer.param_groups]
    pairs += [("lr", wanted.lr, rate) for rate in rates]
    return [f"{name} is {said!r} and {true!r}" for name, said, true in pairs if said != true]


def _before(name: str, model: Model) -> str:
    known = {**model.given, "random_state": model.config.seed, "device": model.device.type}
    text = repr(known[name])
    return text if len(text) <= 60 else f"{text[:57]}..."


def _seed(given: Any) -> int:
    return given if isinstance(given, int) else int(check_random_state(given).randint(2**31))


def _printed(network: str | nn.Module) -> str:
    return network if isinstance(network, str) else repr(network)


def _python(value: Any) -> Any:
    """numpy's and torch's numbers as Python's own, which a config is made of."""
    return value.tolist() if hasattr(value, "tolist") else value
