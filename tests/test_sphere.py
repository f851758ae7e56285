"""Features on a sphere: the radius follows from the probability at the vertex, and every closed form works with it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from conftest import make_tiny_trainer
from holdfast import heads
from holdfast.errors import BadConfig
from holdfast.heads.fixed import FixedHead, radius_for
from holdfast.heads.polytopes import Cube, Orthoplex, Polygon, Simplex
from holdfast.methods import METHODS
from holdfast.runs.config import Config

UNTRAINED = ("joint", "solved", "ncm", "slda", "ranpac")  # one task only, or no loss


@pytest.mark.parametrize("slots", [2, 3, 10, 1000, 1_000_000])
def test_a_sample_at_its_vertex_has_the_probability_that_was_asked_for(slots: int) -> None:
    """By the logits themselves: r for its own slot, -r / (K - 1) for each of the others."""
    radius = radius_for(Simplex(slots), 0.9)
    others = (slots - 1) * math.exp(-radius * slots / (slots - 1))
    assert 1 / (1 + others) == pytest.approx(0.9, abs=1e-9)


@pytest.mark.parametrize("polytope", [Simplex(12), Orthoplex(12), Cube(16), Polygon(7)], ids=repr)
@pytest.mark.parametrize("probability", [0.5, 0.9])
def test_every_polytope_s_radius_gives_that_probability(polytope, probability: float) -> None:
    if isinstance(polytope, Polygon | Cube) and probability == 0.9:
        probability = 0.6
    z = radius_for(polytope, probability) * polytope.vertices(torch.tensor([3]), dtype=torch.float64)
    dense = polytope.vertices(torch.arange(polytope.slots), dtype=torch.float64)  # (slots, dim)
    assert float((z @ dense.T).softmax(1)[0, 3]) == pytest.approx(probability, abs=1e-6)


@pytest.mark.parametrize("name", ["simplex", "orthoplex", "cube", "polygon"])
def test_loss_and_gradient_are_those_of_the_dense_formula(name: str) -> None:
    torch.manual_seed(0)
    head = heads.build(name, 5, 8, radius=3.0).double()
    assert isinstance(head, FixedHead)
    features, slots = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 7, 7])
    weight = head.junction.weight
    (ours,) = torch.autograd.grad(head.loss(features, slots), weight)
    z = F.linear(features, weight, head.junction.bias)
    z = 3.0 * z / z.norm(dim=1, keepdim=True)
    dense = head.polytope.vertices(torch.arange(8), dtype=torch.float64)
    wanted = F.cross_entropy(z @ dense.T, slots)
    (theirs,) = torch.autograd.grad(wanted, weight)
    torch.testing.assert_close(head.loss(features, slots), wanted)
    torch.testing.assert_close(ours, theirs)
    assert head.embed(features).norm(dim=1).tolist() == pytest.approx([3.0] * 6)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in UNTRAINED])
def test_methods_learn_on_a_sphere(method: str) -> None:
    strength = {"strength": 1e-3} if method in ("ewc", "online-ewc", "mas", "si") else {}
    trainer = make_tiny_trainer(method=method, head="simplex", vertex_probability=0.9, epochs=3, **strength)
    trainer.run()
    first = [record["loss"] for record in trainer.at.records if record["task"] == 1 and "epoch" in record]
    assert first[-1] < first[0]


def test_the_paper_s_head_is_not_normalised_and_its_runs_keep_their_names() -> None:
    plain = Config("split-mnist", memory=100)
    assert "radius" not in plain.resolved().to_json()
    sphere = Config("split-mnist", memory=100, vertex_probability=0.9)
    assert sphere.hash != plain.hash and "--vertex-probability 0.9" in sphere.command()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(BadConfig, match="each sets the sphere"):
        Config("split-mnist", radius=3.0, vertex_probability=0.9).resolved()
    with pytest.raises(BadConfig, match=r"must be above 0.1, chance"):
        heads.build("simplex", 5, 10, vertex_probability=0.05)
    with pytest.raises(BadConfig, match="it must be a finite number, above 0"):
        heads.build("simplex", 5, 10, radius=-1.0)
