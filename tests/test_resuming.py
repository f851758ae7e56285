"""A run that is stopped at any step resumes to the same bits: every method, every head, every option."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import assert_same_bits, bits, make_tiny_trainer, needed
from holdfast import files
from holdfast.errors import BadFile, LossNotFinite
from holdfast.heads import HEADS
from holdfast.learning.memory import POLICIES
from holdfast.learning.training import Stopped, Trainer, Watcher
from holdfast.methods import METHODS, recipes
from holdfast.runs import experiment
from holdfast.runs.folder import RunFolder
from holdfast.testing import check_method

EVERY_OPTION: dict[str, dict[str, Any]] = {
    **{f"replay with {head}": {"head": head} for head in HEADS},
    **{f"replay by {policy}": {"policy": policy} for policy in POLICIES},
    "replay with augmentation": {"augment": "shift"},
    "replay in bf16": {"precision": "bf16"},
    "replay with a schedule": {"schedule": "1"},
    "replay, balanced": {"balance": True},
    "replay, memory augmented": {"augment_memory": "shift"},
    "replay, three from memory": {"memory_batch": 3},
    "replay, logits distilled": {"distill": "logits"},
    "replay, features distilled": {"distill": "features"},
    "replay, contrast distilled": {"distill": "contrast"},
    "replay, stored during": {"store": "during"},
    "replay, stored during, logits distilled": {"store": "during", "distill": "logits"},
    "replay, stored during, features distilled": {"store": "during", "distill": "features"},
    "replay, strong": recipes.expand("strong", {}),
    "finetune with sgd": {"method": "finetune", "optimizer": "sgd", "head": "orthoplex"},
    "ewc, sampled": {"method": "ewc", "strength": 1.0, "importance": "sample", "importance_samples": 10},
    "gem with replay": {"method": "gem", "gem_replay": True},
    "gem with adam": {"method": "gem", "optimizer": "adam"},
}


def assert_resumes(path: Path, every: int, **changes: Any) -> None:
    """Run it whole, and with a stop after each `every` steps: every round is a new trainer that takes `every` steps
    from the file that the last one left."""
    whole = make_tiny_trainer(**changes)
    whole.run()
    stops = 0
    while True:
        done: list[int] = []
        watcher = Watcher(step=done.append, stop=lambda done=done: len(done) == every)
        trainer = make_tiny_trainer(watcher=watcher, **changes)
        trainer.save = lambda trainer: files.write_tensors(path, *trainer.state())
        if stops:
            trainer.load(*files.read_tensors(path))
        try:
            trainer.run()
            break
        except Stopped:
            stops += 1
    assert stops == (sum(record.get("steps", 0) for record in whole.at.records) - 1) // every > 2
    assert_same_bits(bits(trainer), bits(whole))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_its_promises(method: str) -> None:
    """With every head; stopped at every step it ends in the bits of an undisturbed run."""
    few = {"solved": {"width": 30}, "ranpac": {"projections": 30}}  # random features take time
    check_method(method, **needed(method), **few.get(method, {}))


@pytest.mark.parametrize("changes", EVERY_OPTION.values(), ids=EVERY_OPTION)
def test_with_every_option_a_stopped_run_ends_in_the_bits_of_an_undisturbed_one(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    assert_resumes(tmp_path / "checkpoint", every=3, **changes)


State = tuple[dict[str, torch.Tensor], dict[str, Any]]


def stopped(steps: int = 5, **changes: Any) -> tuple[Trainer, State]:
    """A trainer one step into the first epoch of the second of three tasks, and its state as a file would hold it."""
    left = iter(range(steps))
    trainer = make_tiny_trainer(watcher=Watcher(stop=lambda: next(left, None) is None), **changes)
    with pytest.raises(Stopped):
        trainer.run()
    tensors, plain = trainer.state()
    return trainer, ({k: v.clone() for k, v in tensors.items()}, json.loads(json.dumps(plain)))


@pytest.mark.parametrize(
    ("wrong", "told"), [({"task": 99}, "task 100 of 3"), ({"task": -1}, "task 0 of 3"), ({"epoch": 2}, "epoch 3 of 2")]
)
def test_a_position_outside_the_stream_is_refused_by_the_file_s_name(
    wrong: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """As when a file of another version of holdfast is read: the file is left as it is, and a way out is named."""
    trainer, (tensors, plain) = stopped(backbone="mlp")
    path = tmp_path / "checkpoint-000001.safetensors"
    files.write_tensors(path, tensors, {**plain, **wrong, "run": "abc", "data": None})
    with pytest.raises(BadFile, match=rf"checkpoint-000001.*{told}.*--fresh"):
        experiment.restore(trainer, RunFolder(tmp_path), "abc")
    assert list(tmp_path.iterdir()) == [path]


def test_a_tensor_that_does_not_fit_is_refused_by_the_file_s_name(tmp_path: Path) -> None:
    trainer, (tensors, plain) = stopped(backbone="mlp")
    for change in ({"learner.head.junction.bias": torch.zeros(3)}, {"learner.stranger": torch.zeros(3)}):
        path = tmp_path / "checkpoint-000001.safetensors"
        files.write_tensors(path, {**tensors, **change}, {**plain, "run": "abc", "data": None})
        with pytest.raises(BadFile, match=r"(?s)checkpoint-000001.*does not fit this run.*--fresh"):
            experiment.restore(trainer, RunFolder(tmp_path), "abc")


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
