"""Batch norm on a CPU, folded: PyTorch's values and gradients, in less time."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast import backbones
from holdfast.backbones.norms import BatchNorm2d, fold, side_by_side

SHAPES = [(8, 20, 28, 28), (4, 50, 14, 14), (2, 3, 4, 8), (3, 12, 8, 6)]


def batch(shape: tuple[int, ...], dtype: torch.dtype = torch.float64, offset: float = 2.0) -> Tensor:
    """Channels last, each channel with a mean and a scale of its own."""
    generator = torch.Generator().manual_seed(sum(shape))
    means, scales = (torch.randn(shape[1], 1, 1, generator=generator, dtype=dtype) for _ in range(2))
    x = torch.randn(shape, generator=generator, dtype=dtype) * scales + means * offset
    return x.contiguous(memory_format=torch.channels_last)


def pair(channels: int, dtype: torch.dtype = torch.float64) -> tuple[BatchNorm2d, nn.BatchNorm2d]:
    """Ours and PyTorch's with the same weights, none of them 0 or 1."""
    ours, theirs = BatchNorm2d(channels).to(dtype), nn.BatchNorm2d(channels).to(dtype)
    nn.init.uniform_(ours.weight, 0.5, 2)
    nn.init.normal_(ours.bias)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def is_folded(y: Tensor) -> bool:
    return y.grad_fn is not None and y.grad_fn.name() == "_FoldedNormBackward"


def gradients(norm: nn.BatchNorm2d, x: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(norm(x), (x, norm.weight, norm.bias), upper)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_gradients_and_running_statistics_are_pytorch_s(shape: tuple[int, ...]) -> None:
    ours, theirs = pair(shape[1])
    for offset in (0.0, 2.0, 5.0):
        x = batch(shape, offset=offset)
        plain = x.contiguous()
        y = ours(x)
        assert is_folded(y) and y.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(y, theirs(plain), rtol=1e-9, atol=1e-9, check_stride=False)
        upper = torch.randn_like(plain)  # not channels last, as a layer above may well give it
        for mine, its in zip(gradients(ours, x, upper), gradients(theirs, plain, upper)):
            torch.testing.assert_close(mine, its, rtol=1e-8, atol=1e-8, check_stride=False)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-9, atol=1e-9)


def test_the_gradient_agrees_with_finite_differences() -> None:
    ours, _ = pair(3)
    x = batch((2, 3, 4, 4)).requires_grad_()
    assert is_folded(ours(x))

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(ours, {"weight": weight, "bias": bias}, (x,))

    assert torch.autograd.gradcheck(function, (x, ours.weight, ours.bias))


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_in_float32_it_is_no_less_exact(offset: float) -> None:
    shape = (64, 20, 28, 28)
    ours, theirs = pair(20, torch.float32)
    exact, x = copy.deepcopy(theirs).double(), batch(shape, torch.float32, offset)
    upper = torch.randn_like(x)
    wanted = gradients(exact, x.double(), upper.double())
    found, usual = gradients(ours, x, upper), gradients(theirs, x, upper)
    for mine, its, truth in zip(found, usual, wanted):
        error, accepted = (mine - truth).abs().max(), (its - truth).abs().max()
        assert error <= 2 * accepted + 1e-6 * truth.abs().max()


def test_what_comes_after_it_may_work_in_place() -> None:
    ours, theirs = pair(20)
    x = batch((4, 20, 8, 8)).requires_grad_()
    upper = torch.randn(x.shape, dtype=x.dtype)
    mine, = torch.autograd.grad(F.relu_(ours(x)), x, upper)
    its, = torch.autograd.grad(F.relu(theirs(x)), x, upper)
    torch.testing.assert_close(mine, its, rtol=1e-8, atol=1e-8)


def test_elsewhere_pytorch_s_own_is_used() -> None:
    norm, x = BatchNorm2d(20), batch((4, 20, 8, 8), torch.float32).requires_grad_()
    assert is_folded(norm(x))
    assert not is_folded(norm(x.contiguous()))
    assert not is_folded(norm(x[:1]))  # a batch of one
    assert not is_folded(BatchNorm2d(32)(batch((4, 32, 8, 8), torch.float32).requires_grad_()))
    assert not is_folded(norm(x.bfloat16()))
    assert not is_folded(BatchNorm2d(20, momentum=None)(x))
    assert not is_folded(BatchNorm2d(20, affine=False)(x))
    assert not is_folded(BatchNorm2d(20, track_running_stats=False)(x))
    assert not is_folded(norm.eval()(x))


def test_several_norms_at_once_take_pytorch_s_own() -> None:
    """As benchmarks/multi_seed.py does it: the weights of two stacked, each with a batch of its own."""
    norms, x = [pair(20)[0], pair(20)[0]], batch((4, 20, 8, 8))
    states, batches = torch.func.stack_module_state(norms), torch.stack([x, 2 * x + 1])

    def one(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(norms[0], (weights, buffers), (x,))

    found = torch.func.vmap(one)(*states, batches)
    for norm, x, y, mean in zip(norms, batches, found, states[1]["running_mean"]):
        torch.testing.assert_close(y, norm(x), rtol=1e-8, atol=1e-8, check_stride=False)
        torch.testing.assert_close(mean, norm.running_mean)


def test_lenet_s_norms_are_folded_in_training() -> None:
    network, seen = backbones.build("lenet", (1, 28, 28)).to(memory_format=torch.channels_last), []
    for norm in (network.norm1, network.norm2):
        norm.register_forward_hook(lambda module, given, y: seen.append(is_folded(y)))
    images = torch.randn(4, 1, 28, 28).contiguous(memory_format=torch.channels_last)
    network.train()(images)
    network.eval()(images)
    assert seen == [True, True, False, False]


@pytest.mark.parametrize(
    ("channels", "pixels", "copies"),
    [(20, 784, 4), (20, 1024, 4), (50, 196, 4), (50, 256, 8), (3, 1024, 16),
     (16, 1024, 1), (64, 64, 1), (8, 7, 1), (20, 7, 1), (20, 4, 2), (20, 1, 1)],
)
def test_as_many_pixels_lie_side_by_side_as_fill_a_line(channels: int, pixels: int, copies: int) -> None:
    """Worked out by hand: 4 x 20 = 80 = 5 x 16; of 196 pixels no 8 make a group, and 4 x 50 = 200 = 25 x 8."""
    assert side_by_side(channels, pixels) == copies


def test_folding_moves_nothing() -> None:
    x = batch((2, 20, 4, 6))
    folded = fold(x, 4)
    assert folded.shape == (2, 80, 6, 1) and folded.data_ptr() == x.data_ptr()
    assert torch.equal(folded[1, 20:40, 2, 0], x[1, :, 1, 3])  # the tenth pixel is the second of the third four
