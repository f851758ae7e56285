"""The checks for plug-ins find what they promise to find: each of these is wrong in one way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast import data
from holdfast.data import DATASETS
from holdfast.heads import HEADS
from holdfast.heads.trainable import TrainableHead
from holdfast.learning.method import Method
from holdfast.methods import METHODS
from holdfast.testing import CheckFailed, check_backbone, check_dataset, check_head, check_method


@pytest.fixture(autouse=True)
def names_are_free_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for registry in (METHODS, HEADS, DATASETS):
        for part in ("_things", "_lines"):
            monkeypatch.setattr(registry, part, dict(getattr(registry, part)))
    yield


class Forgetful(Method):
    """Its penalty grows from step to step, and no checkpoint has it."""

    taken = 0

    def loss(self, images: Tensor, slots: Tensor) -> Tensor:
        self.taken += 1
        return super().loss(images, slots) * (1 + 0.1 * self.taken)


class Careful(Forgetful):
    """The same, with its count in the checkpoint."""

    def state(self) -> dict[str, Tensor]:
        return {"taken": torch.tensor(self.taken)}

    def load(self, state: dict[str, Tensor]) -> None:
        self.taken = int(state["taken"])


class Random(Method):
    def loss(self, images: Tensor, slots: Tensor) -> Tensor:
        return super().loss(images, slots) * torch.rand(())


class Strange(Method):
    def predict(self, embedded: Tensor) -> Tensor:
        return super().predict(embedded) + 100


class Untyped(Method):
    def predict(self, embedded: Tensor) -> Tensor:
        return super().predict(embedded).float()


@pytest.mark.parametrize(
    ("method", "told"),
    [(Forgetful, r"differ from an undisturbed run: .*learner\..*state\(\)"), (Random, "global generator"),
     (Strange, "predict returned slots"), (Untyped, r"torch\.float32 of shape")],
)
def test_a_wrong_method_is_named_with_its_fault(method: type[Method], told: str) -> None:
    METHODS.register("wrong", "a method for this test")(method)
    with pytest.raises(CheckFailed, match=told):
        check_method("wrong", heads=["expanding"])


def test_a_method_that_saves_what_it_carries_passes() -> None:
    METHODS.register("careful", "a method for this test")(Careful)
    check_method("careful", heads=["simplex", "expanding"])


class Long(TrainableHead):
    def directions(self, slots: Tensor) -> Tensor:
        return 2 * super().directions(slots)


class Smoothed(TrainableHead):
    def loss(self, features: Tensor, slots: Tensor, **options: Any) -> Tensor:
        return super().loss(features, slots, **options) * 1.01


class Closed(TrainableHead):
    def set_extra_state(self, state: Tensor) -> None:
        pass


@pytest.mark.parametrize(("kind", "told"), [(Long, "lengths"), (Smoothed, "cross-entropy"), (Closed, "open slots")])
def test_a_wrong_head_is_named_with_its_fault(kind: type[TrainableHead], told: str) -> None:
    HEADS.register("wrong", "a head for this test")(lambda width, slots, options: kind(width, slots, "all", None))
    with pytest.raises(CheckFailed, match=told):
        check_head("wrong")


class Crowded(nn.Module):
    """Subtracts the mean of the batch, in evaluation as well."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.linear(x.flatten(1))
        return features - features.mean(0)


class Scribbling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.sub_(1).flatten(1))


@pytest.mark.parametrize(("kind", "told"), [(Crowded, "rest of its batch"), (Scribbling, "changes its input")])
def test_a_wrong_backbone_is_named_with_its_fault(kind: type[nn.Module], told: str) -> None:
    with pytest.raises(CheckFailed, match=told):
        check_backbone(kind(), (3, 2, 2))


def test_a_good_module_passes() -> None:
    check_backbone(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), (3, 2, 2))


def arrays(labels: np.ndarray, seed: int | None = 0) -> data.Dataset:
    images = np.random.default_rng(seed).integers(0, 255, (len(labels), 1, 4, 4), dtype=np.uint8)
    return data.from_arrays("wrong", images, labels, images[:4], np.arange(4) % 2)


@pytest.mark.parametrize(
    ("read", "told"),
    [(lambda folder: arrays(np.zeros(8, int)), "every one of 0 to 1"),
     (lambda folder: arrays(np.arange(8) % 2, None), "two reads")],
    ids=["a class is absent", "it changes"],
)
def test_a_wrong_data_set_is_named_with_its_fault(read: Any, told: str) -> None:
    data.register("wrong", "a data set for this test")(read)
    with pytest.raises(CheckFailed, match=told):
        check_dataset("wrong")


def test_the_digits_keep_their_promises() -> None:
    check_dataset("digits")
