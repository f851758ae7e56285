"""Within an epoch Python never waits for a number: on a GPU it would stand still until all that was begun is done.

The fake device here is `meta`, whose tensors have shapes and no values: whatever reads one, or asks for a shape that
depends on one, fails there. What runs on it from step to step cannot have waited. On the CPU a spy looks for the same,
and sees what happens before a step and between two as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import make_tiny_config, make_tiny_stream, make_tiny_trainer
from holdfast.heads.base import Head
from holdfast.heads.polytopes import Polytope
from holdfast.learning.learner import Learner
from holdfast.learning.memory import Memory
from holdfast.learning.training import Stopped, Trainer, Watcher
from holdfast.methods import recipes
from holdfast.runs.build import make_trainer

META = torch.device("meta")
NEVER: dict[str, dict[str, Any]] = {
    "finetune": {"method": "finetune"},
    "joint": {"method": "joint"},
    "replay": {},
    "replay, strong": recipes.expand("strong", {}),
    "replay, logits": {"balance": True, "distill": "logits", "augment_memory": "shift"},
    "replay, expanding": {"head": "expanding"},
    "replay, cube": {"head": "cube"},
    "replay, augmented": {"augment": "crop-flip"},
    "ewc": {"method": "ewc", "strength": 1.0},
    "online-ewc": {"method": "online-ewc", "strength": 1.0},
    "si": {"method": "si", "strength": 1.0},
    "mas": {"method": "mas", "strength": 1.0},
    "agem": {"method": "agem"},
}
# GEM's quadratic programme is solved on the CPU, a step at a time; a reservoir that fills while a task is learned has
# to know which of its rows are replaced. Images on disk are not resident and are read by the CPU anyway.
WAIT: dict[str, dict[str, Any]] = {
    "gem": {"method": "gem"},
    "replay, stored during the task": {"store": "during"},
}


def hollow(thing: Any) -> Any:
    """The same with every tensor in it on the device without numbers."""
    if isinstance(thing, torch.Tensor):
        return torch.empty_like(thing, device=META)
    if isinstance(thing, Learner):
        return thing.to(META)
    if isinstance(thing, list):
        return [hollow(each) for each in thing]
    if isinstance(thing, dict):
        return {key: hollow(value) for key, value in thing.items()}
    if isinstance(thing, Memory):
        vars(thing).update(hollow(vars(thing)))
    return thing


def in_the_middle(**changes: Any) -> Trainer:
    """A trainer after the first step of the last task's first epoch, when memories and penalties are at work."""
    trainer = make_tiny_trainer(**changes)
    last = len(trainer.tasks) - 1
    trainer.watcher = Watcher(stop=lambda: trainer.at.task == last and trainer.at.step == 1)
    with pytest.raises(Stopped):
        trainer.run()
    return trainer


def hollowed(trainer: Trainer) -> Trainer:
    """The same trainer on the device without numbers."""
    learner, method, optimizer = trainer.learner, trainer.method, trainer.method.optimizer
    before = list(learner.parameters())
    learner.to(META)
    now = dict(zip(before, learner.parameters()))
    for group in optimizer.param_groups:
        group["params"] = [now[p] for p in group["params"]]
        group["fused"] = group["fused"] and isinstance(optimizer, torch.optim.Adam)  # there is no fused SGD on meta
    for parameter in list(optimizer.state):
        optimizer.state[now[parameter]] = hollow(optimizer.state.pop(parameter))
    held = {key: value for key, value in vars(method).items() if key not in ("learner", "parameters")}
    vars(method).update(hollow(held))
    if "parameters" in vars(method):
        method.parameters = [now[p] for p in method.parameters]  # type: ignore[attr-defined]
    if "chunks" in vars(method):  # gradient rows are views of the parameters' layout: to be made anew
        method.chunks = None  # type: ignore[attr-defined]
    trainer.tasks = trainer.stream.joined().to(META).tasks if method.joint else trainer.stream.to(META).tasks
    trainer.at.order, trainer.at.losses = hollow([trainer.at.order, trainer.at.losses])
    trainer.watcher = Watcher()
    trainer._finite = lambda losses: torch.zeros(1)  # type: ignore[method-assign]  # the one look at the end
    return trainer


def rest_of_the_epoch(trainer: Trainer) -> int:
    """How many steps of it were taken on the device without numbers."""
    done = trainer.at.step
    trainer._epoch(trainer.tasks[trainer.at.task])
    return trainer.at.records[-1]["steps"] - done


@pytest.mark.parametrize("changes", NEVER.values(), ids=NEVER)
def test_the_steps_of_an_epoch_need_no_number(changes: dict[str, Any]) -> None:
    assert rest_of_the_epoch(hollowed(in_the_middle(**changes))) > 0


@pytest.mark.parametrize("changes", WAIT.values(), ids=WAIT)
def test_what_does_wait_is_known(changes: dict[str, Any]) -> None:
    trainer = hollowed(in_the_middle(**changes))
    with pytest.raises((NotImplementedError, RuntimeError), match=r"Meta|meta"):
        rest_of_the_epoch(trainer)


class Waits(TorchDispatchMode):
    """Counts what makes Python wait for a device: numbers read, and shapes that depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masked = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        waits = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "item", "_unique2")
        if masked or name in waits:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "changes",
    [{"method": "finetune"}, {}, {"augment": "crop-flip"}, {"head": "cube"}, {"head": "expanding"}],
    ids=["finetune", "replay", "augmented", "cube", "expanding"],
)
def test_no_step_waits_for_a_number(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Polytope, "_outside", lambda self, slots: False)  # these two look at values on a CPU only
    monkeypatch.setattr(Head, "_columns", lambda self, slots: (torch.searchsorted(self.seen, slots), None))
    for name in ("tolist", "numpy", "__bool__", "__float__", "__int__"):
        original = getattr(torch.Tensor, name)

        def spy(self: torch.Tensor, *args: Any, _name: str = name, _original: Any = original) -> Any:
            waits.found.append(_name)
            return _original(self, *args)

        monkeypatch.setattr(torch.Tensor, name, spy)
    waits, steps = Waits(), 0
    trainer = make_tiny_trainer(**changes)
    observe, batch = trainer.method.observe, type(trainer.tasks[0].train).batch

    def watched_observe(images: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        nonlocal steps
        steps += 1
        return watched(observe, images, slots)

    def watched(part: Callable[..., Any], *given: Any) -> Any:
        before = list(waits.found)
        with waits:
            made = part(*given)
        assert waits.found == before, f"step {steps} waits: {waits.found[len(before):]}"
        return made

    trainer.method.observe = watched_observe  # type: ignore[method-assign]
    monkeypatch.setattr(type(trainer.tasks[0].train), "batch", lambda *given: watched(batch, *given))
    trainer.run()
    assert steps == sum(record.get("steps", 0) for record in trainer.at.records) > 0
    with waits:  # the spy does see what it should
        seen = len(waits.found)
        bool(torch.ones(2).sum() > 1)
        torch.ones(3)[torch.ones(3) > 0]
    assert len(waits.found) > seen + 1


def test_between_the_steps_of_an_epoch_nothing_is_read_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Polytope, "_outside", lambda self, slots: False)
    waits, at_step = Waits(), []
    trainer = make_tiny_trainer(watcher=Watcher(step=lambda samples: at_step.append(len(waits.found))))
    epoch, per_epoch = trainer._epoch, []

    def watched(task: Any) -> None:
        at_step.clear()
        with waits:
            epoch(task)
        per_epoch.append(at_step[-1] - at_step[0])

    trainer._epoch = watched  # type: ignore[method-assign]
    trainer.run()
    assert len(per_epoch) == 6 and set(per_epoch) == {0}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("changes", NEVER.values(), ids=NEVER)
def test_the_steps_of_an_epoch_never_make_a_gpu_wait(changes: dict[str, Any]) -> None:
    mode = torch.cuda.set_sync_debug_mode
    watcher = Watcher(stop=lambda: bool(mode("error")), step=lambda samples: mode("default"))
    trainer = make_trainer(make_tiny_config(**changes), make_tiny_stream(), torch.device("cuda"), watcher)
    try:
        trainer.run()
    finally:
        mode("default")
    assert all(tensor.is_cuda for tensor in (trainer.tasks[0].train.images, trainer.tasks[0].train.rows))
