"""A training step before and after the speed pass, and with each of its choices undone.

    python benchmarks/defaults.py                                         # LeNet, one thread
    python benchmarks/defaults.py --threads 2
    python benchmarks/defaults.py --backbone resnet56 --steps 2

A step is forward, backward and Adam on a batch of 128 that lies ready. `before` has PyTorch's and glibc's own defaults;
`default` is what a run does; the others differ from it in one thing. All start from the same weights, and the losses of
their first three steps are checked to be the same. Blocks of all variants alternate, in two processes that take turns:
what is done with freed memory is a process's choice. Ratios are of blocks of one round. Then a profile of the default's
steps: which share of them are convolutions, forward and backward.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import recording
import turns
from holdfast import backbones, hardware
from holdfast.backbones.resnets import PreActivationResNet
from usual import UsualLeNet, with_usual_norms

CLASSES = 10
GIVEN_BACK = ("before", "freed memory given back")  # to the system, as glibc does if it is not asked
Pass = Callable[[nn.Module, Tensor], Tensor]


def as_it_is(network: nn.Module, x: Tensor) -> Tensor:
    return network(x)


def blocked(network: nn.Module, x: Tensor) -> Tensor:
    """A pre-activation ResNet's pass with oneDNN's own blocked tensors all the way."""
    assert isinstance(network, PreActivationResNet)
    x = network.stem(x.to_mkldnn())
    for block in network.blocks:
        active = F.relu(block.norm1(x))
        skipped = x if block.shortcut is None else block.shortcut(active)
        x = block.conv2(F.relu(block.norm2(block.conv1(active)))) + skipped
    return F.relu(network.norm(x)).to_dense().mean((2, 3))


class Variant:
    """A network with its optimizer and its batch."""

    def __init__(
        self, network: nn.Module, batch: tuple[Tensor, Tensor], *, channels_last: bool = True,
        fused: bool | None = True, foreach: bool | None = None, through: Pass = as_it_is,
    ) -> None:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self.network = copy.deepcopy(network).to(memory_format=layout)  # type: ignore[call-overload]
        self.x, self.labels = batch[0].contiguous(memory_format=layout), batch[1]
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.001, fused=fused, foreach=foreach)
        self.through = through

    def step(self) -> Tensor:
        loss = F.cross_entropy(self.through(self.network, self.x)[:, :CLASSES], self.labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def seconds(self, steps: int, clock: recording.Clock) -> float:
        began = clock()
        for _ in range(steps):
            self.step()
        return clock() - began


def convolutions_share(variant: Variant) -> float:
    """Of a step's CPU time, by the profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        variant.step()
    times = {event.key: event.self_cpu_time_total for event in profiled.key_averages()}
    return sum(time for key, time in times.items() if "convolution" in key) / sum(times.values())


def variants(backbone: str, size: int) -> dict[str, Variant]:
    """The features' first ten stand for the classes: a head is not what is measured here."""
    torch.manual_seed(0)
    shape = (1, 32, 32) if backbone in ("lenet", "mlp") else (3, 32, 32)
    network = backbones.build(backbone, shape)
    batch = torch.randn(size, *shape), torch.randint(CLASSES, (size,))
    usual = network
    if backbone == "lenet":
        usual = UsualLeNet(shape)
        usual.load_state_dict(network.state_dict())
    made = {
        "before": Variant(usual, batch, channels_last=False, fused=None),
        "default": Variant(network, batch),
        "contiguous": Variant(network, batch, channels_last=False),
        "Adam not fused": Variant(network, batch, fused=None),
        "foreach Adam": Variant(network, batch, fused=None, foreach=True),
        "freed memory given back": Variant(network, batch),
    }
    if backbone == "lenet":
        made["ReLU before the pooling"] = Variant(usual, batch)
        made["PyTorch's batch norm"] = Variant(with_usual_norms(network), batch)
    if isinstance(network, PreActivationResNet):
        made["oneDNN's blocked tensors"] = Variant(network, batch, channels_last=False, through=blocked)
    return made


class Bench:
    """The variants of one process."""

    def __init__(self, backbone: str, size: int, threads: int, clock: recording.Clock, keeping: bool) -> None:
        torch.set_num_threads(threads)
        if keeping:
            hardware.keep_freed_memory()
        self.clock = clock
        made = variants(backbone, size)
        self.variants = {name: variant for name, variant in made.items() if (name in GIVEN_BACK) != keeping}

    def losses(self) -> dict[str, list[float]]:
        """Of each variant's first three steps, and it warms them up."""
        return {name: [float(variant.step()) for _ in range(3)] for name, variant in self.variants.items()}

    def seconds(self, name: str, steps: int) -> float:
        return self.variants[name].seconds(steps, self.clock)

    def share(self) -> float:
        return convolutions_share(self.variants["default"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="lenet")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5, help="steps a block")
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each variant")
    recording.add_clock(parser)
    recording.add_option(parser)
    options = parser.parse_args()
    given = (options.backbone, options.batch, options.threads, recording.started(options, parser))
    kept, given_back = (turns.Apart(Bench, *given, keeping) for keeping in (True, False))
    for bench in (kept, given_back):
        bench.wait()
    losses = {**given_back.do("losses"), **kept.do("losses")}
    for name, each in losses.items():
        said = f"{name} learns something else: losses {each}, the default's {losses['default']}"
        torch.testing.assert_close(each[0], losses["default"][0], rtol=1e-4, atol=1e-4, msg=said)
        torch.testing.assert_close(each, losses["default"], rtol=0.01, atol=0.01, msg=said)  # Adam enlarges rounding
    times = [
        {name: (given_back if name in GIVEN_BACK else kept).do("seconds", name, options.steps) for name in losses}
        for _ in track(range(options.rounds), description="blocks")
    ]
    title = f"{options.backbone}, torch {torch.__version__}"
    table = Table("variant", "images/s", "of the default's speed", title=title)
    rows = []
    for name in losses:
        speeds = [options.batch * options.steps / each[name] for each in times]
        ratios = [each["default"] / each[name] for each in times]
        table.add_row(name, f"{statistics.median(speeds):,.0f}", recording.spread(ratios))
        rows.append(recording.row(options.backbone, name, "images/s", speeds))
        rows.append(recording.row(options.backbone, f"{name} / default", "ratio", ratios))
    shares = [kept.do("share") for _ in range(5)]
    for bench in (kept, given_back):
        bench.stop()
    table.caption = f"convolutions: {recording.spread(shares, '{:.0%}')} of the default's step"
    rows.append(recording.row(options.backbone, "convolutions / step", "share", shares))
    Console(width=100).print(table)
    recording.write(options, __file__, rows)


if __name__ == "__main__":
    main()
