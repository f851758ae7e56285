"""Within an epoch Python never waits for a number: on a GPU it would stand still until all that was begun is done.

The fake device here is `meta`, whose tensors have shapes and no values: whatever reads one, or asks for a shape that
depends on one, fails there. What runs on it from step to step cannot have waited.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conftest import make_tiny_config, make_tiny_stream, make_tiny_trainer
from steadfast import experiment
from steadfast.learner import Learner
from steadfast.memory import Memory
from steadfast.methods import recipe
from steadfast.training import Stopped, Trainer, Watcher

META = torch.device("meta")
NEVER: dict[str, dict[str, Any]] = {
    "finetune": {"method": "finetune"},
    "joint": {"method": "joint"},
    "replay": {},
    "replay, strong": {"recipe": "strong"},
    "replay, logits": {"balance": True, "distill": "logits", "vary": "shift"},
    "replay, expanding": {"head": "expanding"},
    "replay, cube": {"head": "cube"},
    "replay, augmented": {"augment": "crop-flip"},
    "ewc": {"method": "ewc", "strength": 1.0},
    "online-ewc": {"method": "online-ewc", "strength": 1.0},
    "si": {"method": "si", "strength": 1.0},
    "mas": {"method": "mas", "strength": 1.0},
    "agem": {"method": "agem", "memory": 12},
}
# GEM's quadratic programme is solved on the CPU, a step at a time; a reservoir that fills while a task is learned has
# to know which of its rows are replaced. Images on disk are not resident and are read by the CPU anyway.
WAIT: dict[str, dict[str, Any]] = {
    "gem": {"method": "gem", "memory": 12},
    "replay, insertion during the task": {"insert": "during"},
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


def test_a_batchs_frequencies_are_those_of_counting() -> None:
    slots = torch.tensor([3, 0, 3, 3, 1])
    expected = torch.tensor([1, 1, 0.5, 3, 0.5]).log()
    torch.testing.assert_close(recipe.log_frequency(slots, 5, 0.5), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("changes", NEVER.values(), ids=NEVER)
def test_the_steps_of_an_epoch_never_make_a_gpu_wait(changes: dict[str, Any]) -> None:
    mode = torch.cuda.set_sync_debug_mode
    watcher = Watcher(stop=lambda: bool(mode("error")), step=lambda samples: mode("default"))
    trainer = experiment.make_trainer(make_tiny_config(**changes), make_tiny_stream(), torch.device("cuda"), watcher)
    try:
        trainer.run()
    finally:
        mode("default")
    assert all(tensor.is_cuda for tensor in (trainer.tasks[0].train.images, trainer.tasks[0].train.rows))
