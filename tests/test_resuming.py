"""A checkpoint with a right digest over wrong content is refused by name before a step is taken."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import make_tiny_trainer
from steadfast import experiment, files
from steadfast.errors import BadFile, LossNotFinite
from steadfast.run_folder import RunFolder
from steadfast.training import Stopped, Trainer, Watcher

State = tuple[dict[str, torch.Tensor], dict[str, Any]]


def stopped(steps: int = 5, **changes: Any) -> tuple[Trainer, State]:
    """By default one step into the first epoch of the second of three tasks."""
    left = iter(range(steps))
    trainer = make_tiny_trainer(watcher=Watcher(stop=lambda: next(left, None) is None), **changes)
    with pytest.raises(Stopped):
        trainer.run()
    tensors, plain = trainer.state()
    return trainer, ({k: v.clone() for k, v in tensors.items()}, json.loads(json.dumps(plain)))


@pytest.fixture(scope="module")
def replay() -> tuple[Trainer, State]:
    return stopped(backbone="mlp")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"step": 10**6}, "step 1000001 of 3"), ({"step": -1}, "step 0 of 3"), ({"step": 1.5}, "no place"),
        ({"step": True}, "no place"), ({"task": 99}, "task 100 of 3"), ({"task": -1}, "task 0 of 3"),
        ({"task": 2}, "order|accuracies"), ({"epoch": "x"}, "no place"), ({"epoch": 2}, "epoch 3 of 2"),
        ({"begun": False}, "not begun"), ({"begun": 1}, "no place"), ({"records": {}}, "records that are none"),
        ({"records": [{}] * 3}, "records that are not those"), ({"seconds": math.inf}, "inf seconds"),
        ({"accuracies": [[200.0]]}, "accuracies"), ({"accuracies": [[50.0], [50.0, 50.0]]}, "accuracies"),
        ({"accuracies": [[1.5]]}, "two accounts"), ({"rates": [math.nan]}, "learning rates"),
        ({"rates": []}, "learning rates"),
    ],
)
def test_a_place_that_is_not_in_the_stream_is_refused(
    wrong: dict[str, Any], told: str, replay: tuple[Trainer, State]
) -> None:
    trainer, (tensors, plain) = replay
    with pytest.raises(ValueError, match=told):
        trainer.load(tensors, {**plain, **wrong})
    trainer.load(tensors, plain)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("at.order", torch.full((12,), 10**6), "an order"), ("at.order", torch.zeros(12, dtype=torch.long), "an order"),
        ("at.order", torch.arange(11), "an order"), ("at.order", torch.arange(12.0), "an order"),
        ("at.losses", torch.zeros(2), "losses"), ("at.losses", torch.full((3,), math.nan), "losses"),
        ("at.features", torch.zeros(2, 6, 9), "directions"), ("at.directions", torch.zeros(1, 6, 8), "directions"),
        ("method.memory.counts", torch.tensor([10**9, 10**9]), "a memory of"),
        ("method.memory.slots", torch.full((12,), 5), "not come yet"),
        ("method.memory.tasks", torch.full((12,), 2), "not come yet"),
        ("learner.head._extra_state", torch.tensor([0, 1]), "in use|not come"),
        ("learner.head._extra_state", torch.tensor([0, 1, 2, 99]), "in use"),
        ("learner.head._extra_state", torch.tensor([3, 2, 1, 0]), "in use"),
        ("optimizer.0.exp_avg", torch.zeros(3), "an optimizer's exp_avg"),
        ("learner.head.junction.bias", torch.full((9,), math.nan), "not finite in head.junction.bias"),
    ],
)
def test_a_tensor_that_is_not_the_runs_is_refused(
    name: str, value: torch.Tensor, told: str, replay: tuple[Trainer, State]
) -> None:
    trainer, (tensors, plain) = replay
    assert name in tensors
    if name == "learner.head._extra_state" and len(value) == 2:  # a fixed head opens no column, and would not notice
        trainer, (tensors, plain) = stopped(backbone="mlp", head="expanding")
    with pytest.raises(ValueError, match=told):
        trainer.load({**tensors, name: value}, plain)


@pytest.mark.parametrize("name", ["optimizer.0.exp_avg", "at.losses", "at.order"])
def test_a_tensor_that_is_missing_is_missed(name: str, replay: tuple[Trainer, State]) -> None:
    trainer, (tensors, plain) = replay
    with pytest.raises(ValueError, match=r"an optimizer's state of|has not begun"):
        trainer.load({k: v for k, v in tensors.items() if k != name}, plain)


@pytest.mark.parametrize(
    ("changes", "without", "told"),
    [
        ({"distill": "features"}, "method.before.", "nothing to distil"),
        ({"distill": "logits"}, "method.memory.notes.", "logits"),
        ({"method": "si", "strength": 1.0}, "method.paths.", "paths"),
        ({"method": "ewc", "strength": 1.0}, "method.anchors.", "without anchors"),
        ({"method": "ewc", "strength": 1.0}, "method.anchors.head", "shaped as the parameters"),
    ],
)
def test_what_a_method_cannot_go_on_without_is_missed(changes: dict[str, Any], without: str, told: str) -> None:
    _, (tensors, plain) = stopped(backbone="mlp", **changes)
    kept = {k: v for k, v in tensors.items() if not k.startswith(without)}
    assert len(kept) < len(tensors)
    fresh = make_tiny_trainer(backbone="mlp", **changes)
    with pytest.raises((ValueError, KeyError), match=told):
        fresh.load(kept, plain)
    make_tiny_trainer(backbone="mlp", **changes).load(tensors, plain)


def test_the_file_is_named_and_left_where_it_is(replay: tuple[Trainer, State], tmp_path: Path) -> None:
    trainer, (tensors, plain) = replay
    path = tmp_path / "checkpoint-000001.safetensors"
    files.write_tensors(path, tensors, {**plain, "step": 10**6})
    with pytest.raises(BadFile, match=r"checkpoint-000001.*step 1000001 of 3.*--fresh"):
        experiment.restore(trainer, RunFolder(tmp_path))
    assert list(tmp_path.iterdir()) == [path]


def test_learning_rates_that_a_method_changed_are_taken_up_again() -> None:
    trainer, _ = stopped(backbone="mlp")
    trainer.method.optimizer.param_groups[0]["lr"] = 0.0625
    again = make_tiny_trainer(backbone="mlp")
    again.load(*trainer.state())
    assert [group["lr"] for group in again.method.optimizer.param_groups] == [0.0625]


def test_statistics_that_are_not_finite_are_not_saved() -> None:
    trainer, _ = stopped(backbone="lenet")
    norm = next(m for m in trainer.learner.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm))
    assert norm.running_var is not None
    norm.running_var.fill_(math.inf)
    with pytest.raises(LossNotFinite, match=r"finite but the weights are not \(.*running_var"):
        trainer._finite(torch.zeros(1))
