"""A trainer's whole state as tensors and JSON, and back.

A checkpoint's digest and its run's hash are checked where the file is read (`runs/folder.py`); what passes is trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .compatibility import Galleries

if TYPE_CHECKING:
    from .training import Trainer

POSITION = ("task", "begun", "epoch", "step", "seconds", "records", "accuracies")  # the fields saved as JSON


def state(trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the learner, optimizer, method, generator and position of a trainer."""
    at, method = trainer.at, trainer.method
    tensors: dict[str, Tensor] = {f"learner.{k}": v for k, v in trainer.learner.state_dict().items()}
    for index, slot in method.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": torch.as_tensor(v) for k, v in slot.items()}
    tensors |= {f"method.{k}": v for k, v in method.state().items()}
    tensors["generator"] = trainer.generator.get_state()
    for name in ("order", "losses"):
        value = getattr(at, name)
        tensors |= {} if value is None else {f"at.{name}": value}
    for name in ("features", "directions"):
        values = getattr(at, name)
        tensors |= {f"at.{name}": torch.stack(values)} if values else {}
    galleries, searches = at.galleries.state()
    tensors |= {f"gallery.{k}": v for k, v in galleries.items()}
    plain = {name: getattr(at, name) for name in POSITION} | {"compatibility": searches}
    plain["rates"] = [group["lr"] for group in method.optimizer.param_groups]  # a method may change them
    return tensors, plain


def load(trainer: Trainer, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
    """Restore what `state` returned. Raise ValueError if the position is outside the trainer's stream."""
    from .training import Position

    device, method = trainer.learner.shift.device, trainer.method
    at = Position(**{name: plain[name] for name in POSITION})
    if not 0 <= at.task <= len(trainer.tasks) or not 0 <= at.epoch < trainer.epochs:
        raise ValueError(f"task {at.task + 1} of {len(trainer.tasks)}, epoch {at.epoch + 1} of {trainer.epochs}")
    trainer.learner.load_state_dict(_part(tensors, "learner."))
    _load_optimizer(method.optimizer, _part(tensors, "optimizer."))
    method.load(_part(tensors, "method."))
    trainer.generator.set_state(tensors["generator"])
    for group, rate in zip(method.optimizer.param_groups, plain["rates"]):
        group["lr"] = rate
    at.order, at.losses = (tensors[n].to(device) if n in tensors else None for n in ("at.order", "at.losses"))
    at.features, at.directions = (list(tensors[n]) if n in tensors else [] for n in ("at.features", "at.directions"))
    at.galleries = Galleries.from_state(_part(tensors, "gallery."), plain["compatibility"])
    trainer.at = at


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _load_optimizer(optimizer: torch.optim.Optimizer, flat: dict[str, Tensor]) -> None:
    whole = optimizer.state_dict()
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in flat.items():
        index, key = name.split(".", 1)
        slots.setdefault(int(index), {})[key] = value
    whole["state"] = slots
    optimizer.load_state_dict(whole)
    for parameter, slot in optimizer.state.items():
        for key, value in slot.items():  # restore the parameter's memory layout
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                slot[key] = torch.empty_like(parameter).copy_(value)


def not_finite(learner: torch.nn.Module) -> list[str]:
    """List the weights and batch norm statistics that have a NaN or an infinite value."""
    named = {k: v for k, v in (*learner.named_parameters(), *learner.named_buffers()) if v.is_floating_point()}
    finite = torch.stack([value.isfinite().all() for value in named.values()]).tolist()  # one wait for the GPU
    return [name for name, good in zip(named, finite) if not good]
