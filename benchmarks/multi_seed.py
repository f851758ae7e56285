"""Several seeds of one run, batched in one process, against the same seeds one after another: is it worth it?

    python benchmarks/multi_seed.py                                   # batches of 128, as the protocol has them
    python benchmarks/multi_seed.py --backbones mlp --batch 16 --steps 50     # where overhead shows

Batched: the weights of all seeds stacked (`torch.func.stack_module_state`), every seed's own batch passed through its
own weights by `vmap` (a linear layer becomes a batched product, a convolution a grouped one), one backward pass, one
Adam over the stack, which is Adam of each. One after another: a step of each as `steadfast run` takes it, channels last
and fused. Same batches, same losses (checked), CPU time of one thread; blocks of the two ways alternate, and the ratio
of each pair of blocks is taken. Above 1 the batched way is the faster one.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

import recording
from steadfast import backbones, performance

SHAPE, CLASSES = (1, 32, 32), 10


def networks(backbone: str, seeds: int) -> list[nn.Module]:
    """One a seed."""
    made: list[nn.Module] = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        network = backbones.build(backbone, SHAPE)
        made.append(nn.Sequential(network, nn.Linear(int(network.out_features), CLASSES)))  # type: ignore[arg-type]
    return made


class OneByOne:
    """Each network by itself."""

    def __init__(self, models: list[nn.Module]) -> None:
        self.models = [model.to(memory_format=torch.channels_last) for model in models]  # type: ignore[call-overload]
        self.optimizers = [torch.optim.Adam(model.parameters(), lr=0.001, fused=True) for model in self.models]

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """(seeds, batch, ...) images and (seeds, batch) labels; the losses, (seeds,)."""
        losses = []
        for model, optimizer, x, y in zip(self.models, self.optimizers, images, labels):
            loss = F.cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)


class Batched:
    """All networks at once."""

    def __init__(self, models: list[nn.Module]) -> None:
        self.skeleton = copy.deepcopy(models[0]).to("meta")
        self.weights, self.buffers = stack_module_state(models)
        self.optimizer = torch.optim.Adam(self.weights.values(), lr=0.001, fused=True)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """As above."""

        def loss_of(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(self.skeleton, (weights, buffers), (x,)), y)

        losses = vmap(loss_of)(self.weights, self.buffers, images, labels)  # (seeds,)
        self.optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()
        self.optimizer.step()
        return losses.detach()


def seconds(way: OneByOne | Batched, images: Tensor, labels: Tensor, steps: int) -> float:
    began = time.process_time()
    for _ in range(steps):
        way.step(images, labels)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=["mlp", "lenet"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 5])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5, help="steps a block, each of all seeds")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of blocks")
    recording.add_option(parser)
    options = parser.parse_args()
    batch = options.batch
    torch.set_num_threads(1)
    performance.keep_freed_memory()
    table = Table("network", "seeds", "one by one, images/s", "batched, images/s", "batched / one by one")
    rows = []
    for backbone in options.backbones:
        for seeds in options.seeds:
            models = networks(backbone, seeds)
            batched, apart = Batched(models), OneByOne(models)
            images, labels = torch.randn(seeds, batch, *SHAPE), torch.randint(CLASSES, (seeds, batch))
            for _ in range(2):  # and it warms both up
                torch.testing.assert_close(
                    batched.step(images, labels), apart.step(images, labels), rtol=1e-3, atol=1e-3
                )
            times = [
                (seconds(apart, images, labels, options.steps), seconds(batched, images, labels, options.steps))
                for _ in range(options.rounds)
            ]
            ratios = [a / b for a, b in times]
            total = seeds * batch * options.steps
            speeds = [[total / taken for taken in column] for column in zip(*times)]
            ratio = recording.spread(ratios)
            table.add_row(backbone, str(seeds), *[f"{statistics.median(way):,.0f}" for way in speeds], ratio)
            for what, unit, values in (
                ("one by one", "images/s", speeds[0]), ("batched", "images/s", speeds[1]),
                ("batched / one by one", "ratio", ratios),
            ):
                rows.append(recording.row(backbone, what, unit, values, seeds=seeds, batch=batch))
    Console(width=110).print(table)
    recording.write(options, __file__, rows, clock="cpu", threads=1)


if __name__ == "__main__":
    main()
