"""The geometry, held against dense vertex matrices and against derivations of its own."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.errors import BadConfig
from holdfast.heads import polytopes
from holdfast.heads.polytopes import POLYTOPES, Cube, Orthoplex, Polygon, Polytope, Simplex

settings.register_profile("geometry", deadline=None, max_examples=40)
settings.load_profile("geometry")

DOUBLE, SINGLE = torch.float64, torch.float32
TOLERANCE = {DOUBLE: 1e-12, SINGLE: 1e-5}

names = st.sampled_from(sorted(POLYTOPES))
slot_counts = st.integers(3, 70) | st.sampled_from([100, 128, 257])
seeds = st.integers(0, 2**32 - 1)
batches = st.integers(1, 40)
dtypes = st.sampled_from([DOUBLE, SINGLE])


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def draw(polytope: Polytope, batch: int, seed: int, dtype=DOUBLE, size=3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = size * torch.randn(batch, polytope.dim, generator=generator, dtype=dtype)
    return features, torch.randint(0, polytope.slots, (batch,), generator=generator)


def dense(polytope: Polytope, features: Tensor) -> Tensor:
    return features @ polytope.vertices(dtype=features.dtype).T


def gradient(loss, features: Tensor) -> Tensor:
    features = features.detach().requires_grad_()
    return torch.autograd.grad(loss(features), features)[0]


def close(seen: Tensor, wanted: Tensor, tolerance: float) -> bool:
    size = 1 + wanted.abs().max().item() if wanted.numel() else 1
    return seen.dtype == wanted.dtype and (seen - wanted).abs().max().item() <= tolerance * size


@pytest.fixture(params=["small", "large"])
def path(request, monkeypatch):
    """Every closed form has a quick way for few numbers and a frugal one for many: take both."""
    if request.param == "large":
        monkeypatch.setattr(polytopes, "SMALL", 0)


# --- the vertices ---


@given(names, slot_counts, dtypes)
def test_every_vertex_has_length_one_and_a_place_of_its_own(name, slots, dtype):
    vertices = POLYTOPES[name](slots).vertices(dtype=dtype)
    assert vertices.shape == (slots, POLYTOPES[name](slots).dim) and vertices.dtype == dtype
    assert close(vertices.norm(dim=1), torch.ones(slots, dtype=dtype), TOLERANCE[dtype] / 10)
    assert len(vertices.unique(dim=0)) == slots


@given(names, slot_counts, seeds)
def test_some_vertices_are_rows_of_all(name, slots, seed):
    polytope = POLYTOPES[name](slots)
    _, some = draw(polytope, 7, seed)
    assert torch.equal(polytope.vertices(some), polytope.vertices()[some])


@given(st.integers(2, 200))
def test_every_two_vertices_of_a_simplex_meet_at_the_same_cosine(slots):
    vertices = Simplex(slots).vertices(dtype=DOUBLE)
    cosines = torch.full((slots, slots), -1 / (slots - 1), dtype=DOUBLE).fill_diagonal_(1)
    assert close(vertices @ vertices.T, cosines, 1e-13)


@given(st.integers(2, 200))
def test_a_simplex_is_a_tight_frame_around_the_origin(slots):
    vertices = Simplex(slots).vertices(dtype=DOUBLE)
    frame = slots / (slots - 1) * torch.eye(slots - 1, dtype=DOUBLE)
    assert close(vertices.T @ vertices, frame, 1e-13)
    assert vertices.sum(0).abs().max() < 1e-12


@given(st.integers(2, 60), seeds)
def test_the_simplex_is_the_centred_identity_seen_in_its_own_hyperplane(slots, seed):
    centred = torch.eye(slots, dtype=DOUBLE) - 1 / slots
    free = torch.randn(slots, slots - 1, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
    basis, _ = torch.linalg.qr(centred @ free)  # orthonormal in the hyperplane sum(x) = 0
    other = F.normalize(centred @ basis)
    vertices = Simplex(slots).vertices(dtype=DOUBLE)
    assert close(vertices @ vertices.T, other @ other.T, 1e-12)


@given(st.integers(4, 100))
def test_the_formula_as_the_paper_prints_it_is_not_regular(d):
    def cosines(count: int, alpha: float) -> Tensor:
        points = torch.cat([torch.eye(count, dtype=DOUBLE), torch.full((1, count), alpha, dtype=DOUBLE)])
        points = F.normalize(points - points.mean(0))
        return (points @ points.T)[~torch.eye(count + 1, dtype=torch.bool)]

    alpha = (1 - math.sqrt(d + 1)) / d
    assert cosines(d, alpha).std() < 1e-12
    assert cosines(d - 1, alpha).std() > 1e-7


@given(st.integers(1, 100))
def test_an_orthoplex_is_the_axes_and_their_opposites(slots):
    orthoplex = Orthoplex(slots)
    axes = torch.eye(orthoplex.dim)
    assert orthoplex.dim == math.ceil(slots / 2)
    assert torch.equal(orthoplex.vertices(), torch.cat([axes, -axes])[:slots])


@given(st.integers(1, 300))
def test_the_cosine_of_two_cube_vertices_counts_their_differing_bits(slots):
    cube = Cube(slots)
    differing = torch.tensor([[(a ^ b).bit_count() for b in range(slots)] for a in range(slots)], dtype=DOUBLE)
    assert cube.dim == max(1, math.ceil(math.log2(slots)))
    assert close(cube.vertices(dtype=DOUBLE) @ cube.vertices(dtype=DOUBLE).T, 1 - 2 * differing / cube.dim, 1e-13)


@given(st.integers(3, 300))
def test_each_vertex_of_a_polygon_is_the_last_one_turned(slots):
    vertices = Polygon(slots).vertices(dtype=DOUBLE)
    cos, sin = math.cos(2 * math.pi / slots), math.sin(2 * math.pi / slots)
    turn = torch.tensor([[cos, sin], [-sin, cos]], dtype=DOUBLE)
    assert close(vertices @ turn, vertices.roll(-1, 0), 1e-13)


# --- closed forms against dense ones ---


@given(names, slot_counts, batches, seeds, dtypes)
def test_logits_are_the_dense_ones(name, slots, batch, seed, dtype):
    polytope = POLYTOPES[name](slots)
    features, some = draw(polytope, batch, seed, dtype)
    wanted = dense(polytope, features)
    assert close(polytope.logits(features), wanted, TOLERANCE[dtype])
    assert close(polytope.logits(features, some), wanted[:, some], TOLERANCE[dtype])


@pytest.mark.parametrize("name", POLYTOPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_and_gradients_are_the_dense_ones(name, reduction, path):
    @given(slot_counts | st.just(POLYTOPES[name].fewest), batches, seeds, dtypes)
    @settings(max_examples=15)
    def holds(slots, batch, seed, dtype):
        polytope = POLYTOPES[name](slots)
        features, own = draw(polytope, batch, seed, dtype)

        def by_vertices(f: Tensor) -> Tensor:
            return F.cross_entropy(dense(polytope, f), own, reduction=reduction)

        def by_formula(f: Tensor) -> Tensor:
            return polytope.loss(f, own, reduction=reduction)

        assert close(by_formula(features), by_vertices(features), TOLERANCE[dtype])
        assert close(
            gradient(lambda f: by_formula(f).sum(), features),
            gradient(lambda f: by_vertices(f).sum(), features),
            TOLERANCE[dtype],
        )

    holds()


@pytest.mark.parametrize("name", POLYTOPES)
def test_logsumexp_and_its_gradient_are_the_dense_ones(name, path):
    @given(slot_counts, batches, seeds, dtypes)
    @settings(max_examples=20)
    def holds(slots, batch, seed, dtype):
        polytope = POLYTOPES[name](slots)
        features, _ = draw(polytope, batch, seed, dtype)
        wanted = dense(polytope, features).logsumexp(-1)
        assert close(polytope.logsumexp(features), wanted, TOLERANCE[dtype])
        assert close(
            gradient(lambda f: polytope.logsumexp(f).sum(), features),
            gradient(lambda f: dense(polytope, f).logsumexp(-1).sum(), features),
            TOLERANCE[dtype],
        )

    holds()


@given(names, slot_counts, batches, seeds)
def test_predictions_have_the_largest_logit(name, slots, batch, seed):
    polytope = POLYTOPES[name](slots)
    features, _ = draw(polytope, batch, seed)
    predicted, logits = polytope.predict(features), dense(polytope, features)
    assert predicted.dtype == torch.int64
    assert close(logits.gather(1, predicted[:, None])[:, 0], logits.max(-1).values, 1e-12)


@pytest.mark.parametrize("name", POLYTOPES)
def test_equal_logits_predict_the_first_slot(name):
    polytope = POLYTOPES[name](12)
    assert polytope.predict(torch.zeros(2, polytope.dim)).tolist() == [0, 0]


@given(names, slot_counts, batches, seeds)
def test_a_bias_is_added_to_the_logits(name, slots, batch, seed):
    polytope = POLYTOPES[name](slots)
    features, own = draw(polytope, batch, seed)
    bias = torch.randn(slots, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
    wanted = F.cross_entropy(dense(polytope, features) + bias, own)
    assert close(polytope.loss(features, own, bias=bias), wanted, 1e-12)


@pytest.mark.parametrize("name", POLYTOPES)
@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
@pytest.mark.parametrize("slots", [10, 16])
def test_features_of_ten_thousand_overflow_nothing(name, dtype, slots, path):
    polytope = POLYTOPES[name](slots)
    features, own = draw(polytope, 32, 0, dtype, size=1e4)
    wanted = F.cross_entropy(dense(polytope, features.double()), own).to(dtype)
    assert close(polytope.loss(features, own), wanted, TOLERANCE[dtype])
    assert gradient(lambda f: polytope.loss(f, own), features).isfinite().all()


@pytest.mark.parametrize("name", POLYTOPES)
@pytest.mark.parametrize("slots", [10, 16])
def test_gradients_of_each_sample_by_vmap_are_those_of_a_loop(name, slots, path):
    polytope = POLYTOPES[name](slots)
    features, own = draw(polytope, 9, 1)
    batched = torch.func.vmap(torch.func.grad(lambda f, s: polytope.loss(f[None], s[None])))(features, own)
    looped = [gradient(lambda f, i=i: polytope.loss(f, own[i : i + 1]), features[i : i + 1]) for i in range(9)]
    assert close(batched, torch.cat(looped), 1e-12)


@pytest.mark.parametrize("name", POLYTOPES)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_features_are_summed_in_single(name, half, path):
    polytope = POLYTOPES[name](10)
    features, own = draw(polytope, 16, 2, SINGLE)
    features = features.to(half)
    wanted = F.cross_entropy(dense(polytope, features.float()), own)
    with torch.autocast("cpu", torch.bfloat16):
        assert close(polytope.loss(features, own), wanted, 1e-5)
        assert gradient(lambda f: polytope.loss(f, own), features).dtype == half


def test_compiled_code_may_call_the_loss(path):
    simplex = Simplex(10)
    features, own = draw(simplex, 16, 3)
    compiled = torch.compile(lambda f: simplex.loss(f * 2, own), backend="aot_eager")
    assert close(gradient(compiled, features), gradient(lambda f: simplex.loss(f * 2, own), features), 1e-12)


# --- sizes ---


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_single_precision_sums_of_a_million_features_are_precise(mean):
    simplex = Simplex(1_000_000)
    features, own = draw(simplex, 2, 4)
    own[0] = simplex.slots - 1  # the vertex that sees the sum of all features
    features += mean
    assert close(simplex.loss(features.float(), own, reduction="none").double(),
                 simplex.loss(features, own, reduction="none"), 1e-6)


MEASURE = """
import torch
from holdfast.heads.polytopes import Orthoplex, Simplex
torch.set_num_threads(1)
slots = torch.arange(128)
def status(name):  # not ru_maxrss, which a process inherits from the one that started it
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(name))
def measure(polytope):
    before = status("VmRSS")
    features = torch.full((128, polytope.dim), 0.5, requires_grad=True)
    polytope.loss(features, slots).backward()
    peak = status("VmHWM")
    assert features.grad[-1].isfinite().all() and features.grad[-1].any()
    return (peak - before) / (features.numel() * 4)
measure(Simplex(50_000))  # large enough for the frugal way: loads all that it needs
print(measure(Orthoplex(1_000_000)), measure(Simplex(1_000_000)))  # the smaller first: a peak only rises
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_million_slots_peak_under_three_times_the_features():
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    for peak in map(float, done.stdout.split()):
        assert 1.8 < peak < 3.0  # features and gradient are two


def test_a_cube_of_two_to_the_64_slots_learns():
    cube, generator = Cube(2**64), torch.Generator().manual_seed(5)
    own = torch.randint(-(2**63), 2**63 - 1, (16,), generator=generator)  # slots as bit patterns
    features = torch.randn(16, 64, generator=generator, dtype=DOUBLE)
    junction = nn.Linear(64, cube.dim).double()
    optimizer = torch.optim.SGD(junction.parameters(), lr=1.0)
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = cube.loss(junction(features), own)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert cube.dim == 64 and losses[0] == pytest.approx(64 * math.log(2), rel=0.1)
    assert all(later < earlier for earlier, later in pairwise(losses))
    assert torch.equal(cube.predict(junction(features)), own)


@given(st.integers(2**63, 2**64 - 1) | st.integers(2**40, 2**64 - 1), seeds)
def test_a_huge_cube_that_is_no_power_of_two_counts_only_its_own_slots(slots, seed):
    """Against exact whole-number arithmetic: the best code below n, and how many codes there are."""
    cube = Cube(slots)
    features = torch.randn(1, cube.dim, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
    zero = torch.zeros(1, cube.dim, dtype=DOUBLE)
    assert cube.logsumexp(zero).item() == pytest.approx(math.log(slots), rel=1e-12)

    def score(code: int) -> float:
        return sum(x if code >> i & 1 else -x for i, x in enumerate(features[0].tolist()))

    free = sum(1 << i for i, x in enumerate(features[0].tolist()) if x > 0)
    last = slots - 1  # a code is below n if it is n-1, or first differs from it where n-1 has a 1
    leaves = [b for b in range(cube.dim) if last >> b & 1]
    candidates = [last] + [(last >> (b + 1) << (b + 1)) | (free & ((1 << b) - 1)) for b in leaves]
    predicted = cube.predict(features).item() % 2**64
    assert predicted < slots
    assert score(predicted) == pytest.approx(max(map(score, candidates)), rel=1e-12)
    own = torch.tensor([last - 2**64 if last >= 2**63 else last])
    wanted = cube.logsumexp(features).item() - score(last) / math.sqrt(cube.dim)
    assert cube.loss(features, own).item() == pytest.approx(wanted, rel=1e-12)


# --- the equivalence ---


@pytest.mark.parametrize("bias", [False, True])
def test_junction_and_simplex_under_sgd_are_a_linear_head_at_a_larger_rate(bias):
    """W W^T q = K/(K-1) q for logit gradients q, which sum to zero: so W A moves as a free head's weight does.

    A junction without a bias is a head without one; a junction's bias b becomes the head's bias W b.
    """
    slots, rate, generator = 7, 0.05, torch.Generator().manual_seed(6)
    simplex = Simplex(slots)
    vertices = simplex.vertices(dtype=DOUBLE)

    def build(out: int) -> tuple[nn.Module, nn.Linear]:
        backbone = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 8), nn.Tanh())
        return backbone.double(), nn.Linear(8, out, bias=bias).double()

    backbone, junction = build(simplex.dim)
    free_backbone, head = build(slots)
    free_backbone.load_state_dict(backbone.state_dict())
    with torch.no_grad():
        start = vertices @ junction.weight
        head.weight.copy_(start - start.mean(0))  # centred, which W A is already
        if bias:
            head.bias.copy_(vertices @ junction.bias)
    fixed = torch.optim.SGD([*backbone.parameters(), *junction.parameters()], lr=rate)
    faster = {"params": head.parameters(), "lr": rate * slots / (slots - 1)}
    free = torch.optim.SGD([{"params": free_backbone.parameters()}, faster], lr=rate)

    begin = head.weight.detach().clone()
    for _ in range(50):
        images = torch.randn(32, 5, generator=generator, dtype=DOUBLE)
        labels = torch.randint(0, slots, (32,), generator=generator)
        losses = simplex.loss(junction(backbone(images)), labels), F.cross_entropy(head(free_backbone(images)), labels)
        for optimizer, loss in zip((fixed, free), losses):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert close(losses[0], losses[1], 1e-13)
    assert close(vertices @ junction.weight, head.weight, 1e-13)
    assert all(close(a, b, 1e-13) for a, b in zip(backbone.parameters(), free_backbone.parameters()))
    assert (head.weight - begin).abs().max() > 1e-2  # it did move


# --- what is refused ---


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Simplex(1), "simplex needs at least 2 slots, not 1"),
        (lambda: Polygon(2), "polygon needs at least 3 slots, not 2"),
        (lambda: Cube(0), "cube needs at least 1 slots, not 0"),
        (lambda: Orthoplex(2.5), "orthoplex are a whole number, not 2.5"),
        (lambda: Cube(2**64 + 1), r"at most 2\*\*64 slots"),
        (lambda: Simplex(1_000_000).vertices(), r"vertices\(slots\)"),
        (lambda: Simplex(10).logits(torch.zeros(3, 10)), r"needs features of shape \(batch, 9\).*junction"),
        (lambda: Simplex(10).loss(torch.zeros(9), torch.tensor([0])), r"needs features of shape \(batch, 9\)"),
        (lambda: Simplex(10).loss(torch.zeros(2, 9), torch.tensor([0, 10])), "slots 0 to 9, but .* slots 0 to 10"),
        (lambda: Simplex(10).loss(torch.zeros(2, 9), torch.tensor([0, -100])), "given slots -100 to 0"),
        (lambda: Simplex(10).loss(torch.zeros(2, 9), torch.tensor([0])), "one slot per sample: 2 samples, but 1 slots"),
        (lambda: Simplex(10).loss(torch.zeros(2, 9), torch.zeros(2)), "int64.*float32"),
        (lambda: Simplex(10).loss(torch.zeros(1, 9), torch.tensor([0]), bias=torch.zeros(9)), r"shape \(10,\)"),
        (lambda: Simplex(10).loss(torch.zeros(1, 9), torch.tensor([0]), reduction="max"), "not 'max'"),
        (lambda: Cube(2**25).logits(torch.zeros(1, 25)), r"logits\(features, slots\)"),
        (lambda: Cube(2**63 + 5).predict(torch.zeros(1, 63)), r"\(batch, 64\)"),
        (
            lambda: Cube(2**63 + 5).loss(torch.zeros(1, 64), torch.tensor([5 - 2**63])),
            "slots 0 to 9223372036854775812",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(build, says):
    with pytest.raises(BadConfig, match=says):
        build()


def test_some_logits_of_a_huge_cube_can_be_asked_for():
    cube = Cube(2**64)
    some = torch.tensor([0, -1, 5])
    features, _ = draw(Cube(2**32), 2, 7)
    features = features.repeat(1, 2)
    wanted = features @ cube.vertices(some, dtype=DOUBLE).T
    assert close(cube.logits(features, some), wanted, 1e-12)
    assert close(wanted[:, 1], features.sum(1) / 8, 1e-12) and close(wanted[:, 0], -wanted[:, 1], 1e-12)
