"""How near the convolutions are to what this machine multiplies at most: what is left to be had from them.

    python benchmarks/convolutions.py

Every kind of convolution of LeNet and ResNet56, batch 128, channels last: forward, the gradient of its input, and of
its weights, in multiplications a second as a share of those of a product of two 1024 x 1024 matrices timed in the same
round. Then all convolutions of a training step together, each as often as the network has it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import recording
from holdfast import backbones, hardware

BATCH = 128
PASSES = ("forward", "gradient of the input", "gradient of the weights")


@dataclass(frozen=True)
class Convolution:
    """What tells one kind from another."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    size: int  # height and width of what comes in
    first: bool  # the image itself needs no gradient

    @property
    def name(self) -> str:
        at = f" / {self.stride}" if self.stride > 1 else ""
        return f"{self.kernel}x{self.kernel}{at}, {self.inputs} to {self.outputs}, {self.size}x{self.size}"

    @property
    def products(self) -> int:
        """Multiplications of a pass."""
        return BATCH * self.inputs * self.outputs * self.kernel**2 * (self.size // self.stride) ** 2

    def passes(self) -> dict[str, Callable[[], object]]:
        """Those of PASSES that it has, each to be called as often as one likes."""
        def last(*shape: int) -> Tensor:
            return torch.empty(shape, memory_format=torch.channels_last).normal_()  # in strides too, for one channel

        around, out = self.kernel // 2, self.size // self.stride
        x = last(BATCH, self.inputs, self.size, self.size)
        weight = last(self.outputs, self.inputs, self.kernel, self.kernel)
        gradient = last(BATCH, self.outputs, out, out)

        def backward(of_input: bool) -> Callable[[], object]:
            wanted = [of_input, not of_input, False]
            return lambda: torch.ops.aten.convolution_backward(
                gradient, x, weight, None, [self.stride] * 2, [around] * 2, [1, 1], False, [0, 0], 1, wanted
            )

        forward = lambda: torch.conv2d(x, weight, stride=self.stride, padding=around)  # noqa: E731
        every = dict(zip(PASSES, (forward, backward(True), backward(False))))
        return {name: call for name, call in every.items() if not (self.first and name == PASSES[1])}


def convolutions_of(backbone: str) -> Counter[Convolution]:
    """Each kind, and how often the network has it, found by passing an image through."""
    shape = (1, 32, 32) if backbone == "lenet" else (3, 32, 32)
    network = backbones.build(backbone, shape).eval()
    found: Counter[Convolution] = Counter()

    def note(layer: nn.Conv2d, given: tuple[Tensor]) -> None:
        (x,) = given
        found[Convolution(layer.in_channels, layer.out_channels, layer.kernel_size[0], layer.stride[0], x.shape[2],
                          first=not found)] += 1

    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_pre_hook(note)  # type: ignore[arg-type]
    with torch.no_grad():
        network(torch.zeros(1, *shape))
    return found


def seconds(call: Callable[[], object], repeats: int) -> float:
    call()
    began = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - began) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=["lenet", "resnet56"])
    parser.add_argument("--repeats", type=int, default=4, help="calls a round")
    parser.add_argument("--rounds", type=int, default=9)
    recording.add_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hardware.keep_freed_memory()
    a, b = torch.randn(2, 1024, 1024)
    table = Table("convolution", "how often", *PASSES, title=f"share of a matrix product's speed, {torch.__version__}")
    rows = []
    for backbone in options.backbones:
        needed: list[float] = [0.0] * options.rounds  # seconds of all, round by round, at the matrix product's speed
        taken: list[float] = [0.0] * options.rounds
        for kind, often in convolutions_of(backbone).items():
            passes = kind.passes()
            shares: dict[str, list[float]] = {name: [] for name in passes}
            for turn in track(range(options.rounds), description=f"{backbone}, {kind.name}", transient=True):
                best = 1024**3 / seconds(lambda: a @ b, options.repeats)  # products a second
                for name, call in passes.items():
                    took = seconds(call, options.repeats)
                    shares[name].append(kind.products / took / best)
                    needed[turn] += often * kind.products / best
                    taken[turn] += often * took
            cells = [f"{statistics.median(shares[name]):.0%}" if name in shares else "none" for name in PASSES]
            table.add_row(f"{backbone}, {kind.name}", str(often), *cells)
            rows += [recording.row(backbone, f"{kind.name}, {name}", "share", share, often=often)
                     for name, share in shares.items()]
        whole = [n / t for n, t in zip(needed, taken)]
        table.add_row(f"{backbone}, all of a step", "", recording.spread(whole, "{:.0%}"), "", "")
        rows.append(recording.row(backbone, "all of a step", "share", whole))
    Console(width=120).print(table)
    recording.write(options, __file__, rows, clock="cpu", threads=1)


if __name__ == "__main__":
    main()
