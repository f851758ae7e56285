"""Backbones: the paper's parameter counts, shapes for any input, and exact rearrangements."""

import copy
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from holdfast import backbones
from holdfast.backbones.norms import BatchNorm1d
from holdfast.errors import BadConfig, UnknownName
from holdfast.testing import check_backbone

CIFAR, MNIST = (3, 32, 32), (1, 32, 32)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(name, shape, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return backbones.build(name, shape)


def images(shape, count=8):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))


def parameters(network, classes=10):
    """Of the backbone and of a linear head with bias on top."""
    return sum(p.numel() for p in network.parameters()) + (network.out_features + 1) * classes


def conv(inputs, outputs, size):
    return inputs * outputs * size * size


def preactivation_count(depth, widen, channels=3, classes=10):
    """Counted layer by layer: a batch norm is two numbers a channel, no convolution has a bias."""
    total, inputs = conv(channels, 16, 3), 16
    for width in (16 * widen, 32 * widen, 64 * widen):
        for block in range(depth):
            total += 2 * inputs + conv(inputs, width, 3) + 2 * width + conv(width, width, 3)
            total += conv(inputs, width, 1) if block == 0 and (width != inputs) else 0
            inputs = width
    return total + 2 * inputs + (inputs + 1) * classes


class TestCounts:
    def test_lenet_has_the_papers_1632_thousand(self):
        by_hand = (
            (conv(1, 20, 5) + 20) + 2 * 20
            + (conv(20, 50, 5) + 50) + 2 * 50
            + (3200 * 500 + 500) + 2 * 500
            + (500 * 10 + 10)
        )
        assert by_hand == 1_632_220
        assert parameters(build("lenet", MNIST)) == by_hand

    def test_resnet56_has_the_papers_856_thousand(self):
        assert preactivation_count(9, 1) == 855_578
        assert parameters(build("resnet56", CIFAR)) == 855_578

    @pytest.mark.parametrize(
        ("name", "depth", "widen"),
        [("resnet20", 3, 1), ("resnet32", 5, 1), ("resnet110", 18, 1), ("wrn-28-2", 4, 2), ("wrn-28-10", 4, 10)],
    )
    def test_the_family_counts_layer_by_layer(self, name, depth, widen):
        with torch.device("meta"):  # 36 M weights need not be drawn to be counted
            assert parameters(backbones.build(name, CIFAR)) == preactivation_count(depth, widen)

    def test_published_counts(self):
        with torch.device("meta"):
            assert parameters(backbones.build("wrn-28-10", CIFAR)) == 36_479_194  # 36.5 M in the paper
            assert parameters(backbones.build("resnet18", CIFAR)) == 11_173_962  # the usual CIFAR ResNet18

    def test_mlp(self):
        assert parameters(build("mlp", (784,))) == 784 * 400 + 400 + 400 * 400 + 400 + 401 * 10

    def test_depth_is_what_the_name_says(self):
        """Weighted layers on the longest path: 3x3 convolutions and the head."""
        for name, depth in [("resnet20", 20), ("resnet32", 32), ("resnet56", 56), ("resnet110", 110)]:
            layers = [m for m in build(name, CIFAR).modules() if isinstance(m, nn.Conv2d)]
            assert sum(m.kernel_size == (3, 3) for m in layers) + 1 == depth


@pytest.mark.parametrize("name", ["lenet", "mlp", "resnet20", "resnet18", "wrn-28-2"])
@pytest.mark.parametrize("shape", [(1, 14, 14), (3, 10, 7)])
def test_every_kind_of_backbone_keeps_its_promises(name, shape):
    """The other names are deeper or wider versions of these."""
    check_backbone(name, shape)


class TestShapes:
    @pytest.mark.parametrize(("name", "features"), [("lenet", 500), ("resnet56", 64), ("wrn-28-10", 640)])
    def test_out_features(self, name, features):
        with torch.device("meta"):
            assert backbones.build(name, CIFAR).out_features == features

    def test_mlp_takes_vectors(self):
        assert build("mlp", (64,))(torch.randn(3, 64)).shape == (3, 400)

    @pytest.mark.parametrize("name", ["lenet", "resnet20", "resnet18", "timm:anything"])
    def test_image_networks_refuse_vectors_and_name_the_mlp(self, name):
        with pytest.raises(BadConfig, match="mlp"):
            backbones.build(name, (64,))

    def test_lenet_refuses_images_it_would_pool_away(self):
        with pytest.raises(BadConfig, match="at least 4x4"):
            backbones.build("lenet", (1, 3, 8))

    @pytest.mark.parametrize("shape", [(), (0, 32, 32), (1.5,)])
    def test_nonsense_shapes_are_refused(self, shape):
        with pytest.raises(BadConfig, match="shape"):
            backbones.build("mlp", shape)


def textbook_lenet(network, x):
    """conv, norm, ReLU, pool, twice; linear, norm, ReLU: the order the paper gives, nothing in place."""
    x = F.max_pool2d(F.relu(network.norm1(network.conv1(x))), 2)
    x = F.max_pool2d(F.relu(network.norm2(network.conv2(x))), 2)
    return F.relu(network.norm3(network.linear(x.flatten(1))))


def gradients(network, run, x):
    features = run(x)
    weights = torch.linspace(-1, 1, features.numel()).view_as(features)
    return torch.autograd.grad((features * weights).sum(), list(network.parameters()))


class TestRearrangements:
    @pytest.mark.parametrize("training", [True, False])
    def test_lenet_equals_the_textbook_order_to_the_bit(self, training):
        network = build("lenet", MNIST).train(training)
        same = copy.deepcopy(network)
        x = images(MNIST)
        assert torch.equal(network(x), textbook_lenet(same, x))
        assert all(torch.equal(a, b) for a, b in zip(network.buffers(), same.buffers()))

    def test_lenet_gradients_equal_the_textbook_ones(self):
        network = build("lenet", MNIST)
        x = images(MNIST)
        ours = gradients(network, network, x)
        theirs = gradients(network, lambda x: textbook_lenet(network, x), x)
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize(("name", "shape"), [("lenet", MNIST), ("resnet20", (3, 16, 16)), ("resnet18", (3, 8, 8))])
    def test_channels_last_changes_nothing_but_float_noise(self, name, shape):
        network = build(name, shape).double()  # in float64, so that noise is small and a real difference is not
        last = copy.deepcopy(network).to(memory_format=torch.channels_last)
        x = images(shape, 4).double()
        ours = network(x)
        theirs = last(x.contiguous(memory_format=torch.channels_last))
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
        xs = (x, x.contiguous(memory_format=torch.channels_last))
        for a, b in zip(gradients(network, network, xs[0]), gradients(last, last, xs[1])):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


def convolved(network, name, x, stride):
    weight = network.get_parameter(f"{name}.weight")
    return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)


def rectified(network, name, x, rectify=True):
    """Batch norm by its definition, with the batch's own statistics; then ReLU."""
    mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
    gain, bias = (network.get_parameter(f"{name}.{part}").view(1, -1, 1, 1) for part in ("weight", "bias"))
    x = (x - mean) / (var + 1e-5).sqrt() * gain + bias
    return x.clamp(min=0) if rectify else x


def textbook_preactivation(network, x, depth, widen=1):
    """He et al. (2016): three stages of `depth` blocks; the second and the third halve the image. A wide one
    (Zagoruyko and Komodakis, 2016) changes its width in the first block too."""
    x = convolved(network, "stem", x, 1)
    for i in range(3 * depth):
        stride, b = 2 if i in (depth, 2 * depth) else 1, f"blocks.{i}"
        active = rectified(network, f"{b}.norm1", x)
        changes = stride == 2 or (i == 0 and widen > 1)
        skipped = convolved(network, f"{b}.shortcut", active, stride) if changes else x
        inner = rectified(network, f"{b}.norm2", convolved(network, f"{b}.conv1", active, stride))
        x = convolved(network, f"{b}.conv2", inner, 1) + skipped
    return rectified(network, "norm", x)


def textbook_resnet18(network, x):
    """He et al. (2015) for small images: four stages of two blocks, of which the last three halve the image."""
    x = rectified(network, "norm", convolved(network, "stem", x, 1))
    for i in range(8):
        stride, b = 2 if i in (2, 4, 6) else 1, f"blocks.{i}"
        inner = rectified(network, f"{b}.norm1", convolved(network, f"{b}.conv1", x, stride))
        skipped = x
        if stride == 2:
            skipped = rectified(network, f"{b}.shortcut.1", convolved(network, f"{b}.shortcut.0", x, 2), rectify=False)
        outer = rectified(network, f"{b}.norm2", convolved(network, f"{b}.conv2", inner, 1), rectify=False)
        x = (outer + skipped).clamp(min=0)
    return x


class TestResidualNetworks:
    """Against the published formulas, written down once more from the weights alone."""

    @pytest.mark.parametrize(
        ("name", "textbook", "size"),
        [
            ("resnet20", lambda network, x: textbook_preactivation(network, x, 3), 8),
            ("wrn-28-2", lambda network, x: textbook_preactivation(network, x, 4, 2), 8),
            ("resnet18", textbook_resnet18, 4),
        ],
    )
    def test_equal_the_textbook(self, name, textbook, size):
        network = build(name, CIFAR).double()
        with torch.no_grad():
            for weight in network.parameters():
                if weight.dim() == 1:  # gains and biases that differ, so that a norm taken for another shows
                    weight.add_(torch.linspace(-0.3, 0.3, len(weight)))
        x = images(CIFAR, 2).double()
        with torch.no_grad():
            maps = textbook(network, x)
            torch.testing.assert_close(network(x), maps.mean((2, 3)), rtol=1e-8, atol=1e-8)
        assert maps.shape[2:] == (size, size)

    def test_resnet56_sees_the_last_maps_at_8_by_8(self):
        network, seen = build("resnet56", CIFAR).eval(), []
        network.norm.register_forward_hook(lambda norm, given, made: seen.append(made.shape))
        network(images(CIFAR, 1))
        assert seen == [(1, 64, 8, 8)]


class TestABatchOfOne:
    @pytest.mark.parametrize(("name", "shape"), [("lenet", MNIST), ("resnet20", CIFAR), ("resnet20", (1, 4, 4))])
    def test_is_normalised_with_the_running_statistics(self, name, shape):
        network = build(name, shape)
        network(images(shape))  # so that the running statistics are not the initial ones
        x = images(shape, 1)
        before = [b.clone() for b in network.buffers()]
        trained = network.train()(x)
        assert torch.equal(trained, network.eval()(x))
        assert all(torch.equal(a, b) for a, b in zip(before, network.buffers()))

    def test_has_gradients(self):
        network = build("lenet", MNIST)
        assert any(g.abs().sum() > 0 for g in gradients(network, network, images(MNIST, 1)))

    def test_two_are_normalised_as_usual(self):
        ours, usual = BatchNorm1d(5), nn.BatchNorm1d(5)
        x = torch.randn(2, 5)
        assert torch.equal(ours(x), usual(x))
        assert torch.equal(ours.running_var, usual.running_var)


class Noisy(nn.Module):
    """A user's network with all that a dry run could disturb."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.frozen = nn.BatchNorm2d(6).eval()
        self.seen = []

    def forward(self, x):
        self.seen.append((self.training, torch.is_grad_enabled()))
        return self.frozen(self.norm(self.conv(x))) + torch.rand(1)


class TestAdapter:
    def test_finds_the_features_and_flattens_them(self):
        network = backbones.build(Noisy(), (3, 8, 8))
        assert network.out_features == 6 * 6 * 6
        assert network(images((3, 8, 8), 4)).shape == (4, 216)

    def test_the_dry_run_leaves_no_trace(self):
        network = Noisy()
        before = copy.deepcopy(network.state_dict())
        generator = torch.get_rng_state()
        backbones.build(network, (3, 8, 8))
        assert network.seen == [(False, False)]
        assert torch.equal(generator, torch.get_rng_state())
        assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
        assert network.training and network.norm.training and not network.frozen.training

    def test_a_network_that_says_its_features_is_left_as_it_is(self):
        network = nn.Linear(7, 5)
        assert backbones.build(network, (7,)) is network

    def test_a_wrong_claim_is_corrected(self):
        network = build("mlp", (7,))
        network.out_features = 3
        assert backbones.build(network, (7,)).out_features == 400

    def test_follows_the_networks_dtype(self):
        assert backbones.build(nn.Sequential(nn.Linear(7, 5)).double(), (7,)).out_features == 5

    def test_a_network_that_cannot_take_the_shape_says_so(self):
        with pytest.raises(BadConfig, match=r"Linear does not take inputs of shape \(8,\)"):
            backbones.build(nn.Linear(7, 5), (8,))

    @pytest.mark.parametrize("output", [lambda x: (x, x), lambda x: x.sum(), lambda x: x[:, 0]])
    def test_outputs_that_are_no_features_are_refused(self, output):
        class Odd(nn.Module):
            def forward(self, x):
                return output(x)

        with pytest.raises(BadConfig, match="Odd returned"):
            backbones.build(Odd(), (4,))


class TestTimm:
    def test_a_name_is_handed_to_timm(self, monkeypatch):
        asked = []

        def create_model(name, pretrained=True, num_classes=1000, in_chans=3):
            asked.append((name, pretrained, num_classes, in_chans))
            return nn.Sequential(nn.Flatten(), nn.Linear(in_chans * 64, 12))

        monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))
        network = backbones.build("timm:tiny_net", (2, 8, 8))
        assert asked == [("tiny_net", False, 0, 2)]
        assert network.out_features == 12
        assert network(images((2, 8, 8), 3)).shape == (3, 12)

    def test_a_name_that_timm_does_not_know_is_our_error(self, monkeypatch):
        def create_model(name, **options):
            raise RuntimeError(f"Unknown model ({name})")

        monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))
        with pytest.raises(BadConfig, match=r"timm makes no 'resnet500' .*Unknown model"):
            backbones.build("timm:resnet500", CIFAR)

    def test_without_timm_the_error_gives_the_command(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "timm", None)  # makes the import fail
        with pytest.raises(BadConfig, match=r"pip install 'holdfast\[timm\]'"):
            backbones.build("timm:tiny_net", CIFAR)


class TestNames:
    def test_the_names(self):
        resnets = ("resnet20", "resnet32", "resnet56", "resnet110", "resnet18", "wrn-28-2", "wrn-28-10")
        known = ("lenet", "mlp", *resnets)
        assert backbones.names() == known

    def test_an_unknown_name_gets_the_nearest(self):
        with pytest.raises(UnknownName, match="Did you mean 'resnet56'"):
            backbones.build("resnet-56", CIFAR)

    def test_ones_own_backbone_is_built_by_its_name(self, monkeypatch):
        for part in ("_things", "_lines"):
            monkeypatch.setattr(backbones.BACKBONES, part, dict(getattr(backbones.BACKBONES, part)))

        @backbones.register("mine", "a single layer")
        def mine(shape):
            return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 9))

        assert "mine" in backbones.names()
        assert backbones.BACKBONES.describe()["mine"] == "a single layer"
        assert backbones.build("mine", (1, 4, 4)).out_features == 9
        with pytest.raises(BadConfig, match="There is a backbone called 'mine' already"):
            backbones.register("mine", "again")(lambda shape: mine(shape))

    def test_the_same_seed_gives_the_same_weights(self):
        a, b, c = (build("lenet", MNIST, seed) for seed in (3, 3, 4))
        assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))
        assert not torch.equal(a.conv1.weight, c.conv1.weight)
