"""Heads: what each softmax runs over, against dense computations written out here."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast import heads
from holdfast.errors import BadConfig, UnknownName
from holdfast.heads.base import Head
from holdfast.heads.cosine import CosineHead
from holdfast.heads.fixed import FixedHead
from holdfast.heads.polytopes import Cube
from holdfast.testing import check_head

SLOTS, WIDTH = 8, 5
SEEN = (1, 4, 6)


def head_of(name: str, over: str | None = None, slots: int = SLOTS, **options: Any) -> Head:
    torch.manual_seed(0)
    options |= {} if over is None else {"softmax_over": over}
    return heads.build(name, WIDTH, slots, **options).double()


def dense_logits(head: Head, features: Tensor) -> Tensor:
    """The logits of all slots by the definition: the embedding times the matrix of directions."""
    if isinstance(head, FixedHead):
        embedded = features @ head.junction.weight.T + head.junction.bias
        return embedded @ head.polytope.vertices(dtype=torch.float64).T
    if isinstance(head, CosineHead):
        rows = head.rows.weight
        return 5.0 * (features @ rows.T) / features.norm(dim=1)[:, None] / rows.norm(dim=1)
    return features @ head.rows.weight.T + head.rows.bias


@pytest.fixture
def features() -> Tensor:
    return torch.randn(12, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def targets() -> Tensor:
    return torch.tensor(SEEN).repeat(4)


@pytest.mark.parametrize("name", list(heads.HEADS))
@pytest.mark.parametrize("shifted", [False, True])
def test_over_all_the_softmax_has_every_slot(name: str, shifted: bool, features: Tensor, targets: Tensor) -> None:
    head = head_of(name, "all")
    head.open(SEEN)
    prior = torch.linspace(-1, 1, SLOTS, dtype=torch.float64) if shifted else None
    dense = dense_logits(head, features)
    torch.testing.assert_close(head.logits(features), dense)
    assert torch.equal(head.predict(features), dense.argmax(1))
    shift = 0 if prior is None else prior
    log_p = (dense + shift).log_softmax(1)
    expected = -log_p[torch.arange(12), targets]
    torch.testing.assert_close(head.loss(features, targets, prior=prior, reduction="none"), expected)
    torch.testing.assert_close(head.loss(features, targets, prior=prior), expected.mean())


@pytest.mark.parametrize("name", list(heads.HEADS))
@pytest.mark.parametrize("shifted", [False, True])
def test_over_seen_the_softmax_has_only_the_open_slots(
    name: str, shifted: bool, features: Tensor, targets: Tensor
) -> None:
    head = head_of(name, "seen")
    head.open(SEEN[1:])
    head.open(SEEN[:1])  # the order of opening does not matter
    prior = torch.linspace(-1, 1, SLOTS, dtype=torch.float64) if shifted else None
    dense = dense_logits(head, features)
    torch.testing.assert_close(head.logits(features), dense[:, SEEN])
    masked = torch.full_like(dense, -math.inf)
    masked[:, SEEN] = dense[:, SEEN]
    assert torch.equal(head.predict(features), masked.argmax(1))
    assert set(head.predict(features).tolist()) <= set(SEEN)
    expected = -(masked + (0 if prior is None else prior)).log_softmax(1)[torch.arange(12), targets]
    torch.testing.assert_close(head.loss(features, targets, prior=prior, reduction="none"), expected)
    torch.testing.assert_close(head.loss(features, targets, prior=prior, reduction="sum"), expected.sum())


def test_by_default_each_head_reads_as_the_paper_does() -> None:
    assert {name: head_of(name).softmax_over for name in ("simplex", "expanding", "preallocated")} == {
        "simplex": "all", "expanding": "seen", "preallocated": "all",
    }


@pytest.mark.parametrize("name", list(heads.HEADS))
def test_directions_are_unit_vectors_that_point_where_the_logits_grow(name: str) -> None:
    head = head_of(name)
    slots = torch.tensor([3, 0])
    directions = head.directions(slots)
    torch.testing.assert_close(directions.norm(dim=1), torch.ones(2, dtype=torch.float64))
    origin = torch.zeros(1, head.dim, dtype=torch.float64)
    for slot, direction in zip(slots.tolist(), directions):
        gain = (head.outputs(direction[None]) - head.outputs(origin))[0]
        torch.testing.assert_close(
            gain[slot] ** 2, ((head.outputs(torch.eye(head.dim).double()) - head.outputs(origin))[:, slot] ** 2).sum()
        )


def test_a_fixed_head_has_nothing_to_train_but_its_junction() -> None:
    head = head_of("simplex")
    assert {name for name, _ in head.named_parameters()} == {"junction.weight", "junction.bias"}
    assert sum(p.numel() for p in head.parameters()) == (WIDTH + 1) * (SLOTS - 1)


class Growing(nn.Module):
    """The expanding classifier as people write it: a matrix that is made anew, larger, when classes come."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(0, WIDTH)), nn.Parameter(torch.empty(0))

    def grow(self, weight: Tensor, bias: Tensor, optimizer: torch.optim.Optimizer) -> None:
        for name, more in (("weight", weight), ("bias", bias)):
            old = getattr(self, name)
            new = nn.Parameter(torch.cat([old.detach(), more]))
            setattr(self, name, new)
            group = next(g for g in optimizer.param_groups if any(p is old for p in g["params"]))
            group["params"] = [new if p is old else p for p in group["params"]]
            if old in optimizer.state:  # new rows have no past: zeros
                state = optimizer.state.pop(old)
                optimizer.state[new] = {
                    k: torch.cat([v, torch.zeros_like(more)]) if v.shape == old.shape else v for k, v in state.items()
                }

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)


@pytest.mark.parametrize("kind", ["adam", "fused adam", "sgd"])
def test_the_expanding_head_is_bit_equal_to_a_matrix_that_grows(kind: str) -> None:
    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if kind == "sgd":
            return torch.optim.SGD(parameters, lr=0.1)
        return torch.optim.Adam(parameters, lr=0.01, fused="fused" in kind)

    def same(a: Tensor, b: Tensor) -> None:
        if kind == "fused adam":  # its vector code rounds a tensor's last few numbers otherwise than the rest
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
        else:
            assert torch.equal(a, b)

    torch.manual_seed(0)
    masked_backbone, head = nn.Linear(3, WIDTH), heads.build("expanding", WIDTH, SLOTS)
    growing_backbone, growing = copy.deepcopy(masked_backbone), Growing()
    start = {name: value.detach().clone() for name, value in head.rows.named_parameters()}
    masked_steps = optimizer([*masked_backbone.parameters(), *head.parameters()])
    growing_steps = optimizer([*growing_backbone.parameters(), *growing.parameters()])
    for task in range(3):
        new = slice(2 * task, 2 * task + 2)
        head.open(range(new.start, new.stop))
        growing.grow(start["weight"][new], start["bias"][new], growing_steps)
        for _ in range(5):
            x, y = torch.randn(6, 3), torch.randint(0, new.stop, (6,))
            losses = head.loss(masked_backbone(x), y), F.cross_entropy(growing(growing_backbone(x)), y)
            for loss, steps in zip(losses, (masked_steps, growing_steps)):
                steps.zero_grad()
                loss.backward()
                steps.step()
            same(*losses)
    same(head.rows.weight[:6], growing.weight)
    same(head.rows.bias[:6], growing.bias)
    same(masked_backbone.weight, growing_backbone.weight)
    assert torch.equal(head.rows.weight[6:], start["weight"][6:])  # whose class has not come has not moved


@pytest.mark.parametrize(("slots", "named"), [([7, 8], "8"), ([-1, 3], "-1"), ([100], "100")])
def test_a_slot_that_does_not_exist_cannot_be_opened(slots: list[int], named: str) -> None:
    head = head_of("simplex")
    with pytest.raises(BadConfig, match=rf"\[{named}\].*{SLOTS} slots"):
        head.open(slots)
    assert len(head.seen) == 0


def test_opening_is_a_union_and_closing_takes_one_away() -> None:
    head = head_of("expanding")
    head.open([5, 2])
    head.open([2, 3])
    assert head.seen.tolist() == [2, 3, 5]
    head.close(3)
    assert head.seen.tolist() == [2, 5]


@pytest.mark.parametrize("name", list(heads.HEADS))
@pytest.mark.parametrize("over", ["all", "seen"])
def test_every_head_keeps_its_promises(name: str, over: str) -> None:
    check_head(name, softmax_over=over)


def test_a_cube_of_two_to_the_sixty_four_slots_trains() -> None:
    torch.manual_seed(0)
    head = FixedHead(WIDTH, Cube(2**64))
    slots = torch.tensor([3, 2**40 + 17, -1])  # -1 is the last slot: 64 bits set
    x = torch.randn(3, WIDTH)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.3)
    first = head.loss(x, slots)
    assert 0.3 * 64 < float(first.detach()) / math.log(2) < 3 * 64  # near the log of the number of classes
    for _ in range(300):
        optimizer.zero_grad()
        head.loss(x, slots).backward()
        optimizer.step()
    assert float(head.loss(x, slots).detach()) < 0.01 * float(first.detach())
    assert torch.equal(head.predict(x), slots)
    assert sum(p.numel() for p in head.parameters()) == 64 * (WIDTH + 1)


def test_an_embedding_widens_a_trainable_head_and_is_refused_by_a_fixed_one() -> None:
    head = head_of("preallocated", embedding=3)
    assert (head.dim, tuple(head.rows.weight.shape)) == (3, (SLOTS, 3))
    with pytest.raises(TypeError, match="embedding"):  # it declares no such option; a config says so in words
        head_of("simplex", embedding=3)


def test_unknown_heads_and_softmaxes_are_answered_with_what_there_is() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'simplex'"):
        head_of("simplx")
    with pytest.raises(BadConfig, match=r"some.*all, seen"):
        head_of("simplex", "some")


def test_a_slot_that_was_not_opened_is_refused_by_name() -> None:
    head = heads.build("simplex", 4, 10, softmax_over="seen")
    head.open([0, 3])
    for stranger in (1, 9):
        with pytest.raises(BadConfig, match=rf"Slots \[{stranger}\] have not been opened"):
            head.loss(torch.randn(2, 4), torch.tensor([0, stranger]))


@pytest.mark.parametrize("name", list(heads.HEADS))
def test_over_the_seen_slots_nothing_can_be_learned_before_a_slot_is_opened(name: str, features: Tensor) -> None:
    with pytest.raises(BadConfig, match=r"No slot has been opened yet; call head\.open"):
        head_of(name, "seen").loss(features, torch.zeros(12, dtype=torch.long))
