"""Several seeds of one run, batched in one process, against one by one and a process each: is it worth it?

    python benchmarks/multi_seed.py                                   # batches of 128, as the protocol has them
    python benchmarks/multi_seed.py --backbones mlp --batch 16 --steps 50     # where overhead shows

Batched: the weights of all seeds stacked (`torch.func.stack_module_state`), every seed's own batch passed through its
own weights by `vmap` (a linear layer becomes a batched product, a convolution a grouped one), one backward pass, one
Adam over the stack, which is Adam of each. One by one: a step of each as `holdfast run` takes it, channels last and
fused. These two have `--threads` threads. Processes: the same for each seed in a process and a thread of its own, all
at once, as a sweep has it but for its places. Same batches, same losses (checked); blocks of the ways alternate, and
ratios are of blocks of one round. Above 1 the batched way is the faster one.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

import recording
import turns
from holdfast import backbones, hardware

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


def batches(seeds: int, batch: int) -> tuple[Tensor, Tensor]:
    """One a seed: (seeds, batch, ...) images and (seeds, batch) labels."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(seeds, batch, *SHAPE, generator=g), torch.randint(CLASSES, (seeds, batch), generator=g)


class OneSeed:
    """One of several seeds, for a process of its own."""

    def __init__(self, backbone: str, seeds: int, seed: int, batch: int) -> None:
        torch.set_num_threads(1)
        hardware.keep_freed_memory()
        self.alone = OneByOne(networks(backbone, seeds)[seed : seed + 1])
        self.images, self.labels = (part[seed : seed + 1] for part in batches(seeds, batch))

    def steps(self, count: int) -> float:
        """The last loss."""
        for _ in range(count):
            loss = self.alone.step(self.images, self.labels)
        return float(loss)


class Processes:
    """A process for each seed."""

    def __init__(self, backbone: str, seeds: int, batch: int) -> None:
        self.all = [turns.Apart(OneSeed, backbone, seeds, seed, batch) for seed in range(seeds)]
        for each in self.all:
            each.wait()

    def steps(self, count: int) -> list[float]:
        """All at once; the last losses."""
        for each in self.all:
            each.begin("steps", count)
        return [each.wait() for each in self.all]

    def stop(self) -> None:
        for each in self.all:
            each.stop()


def seconds(way: Callable[[], object]) -> float:
    began = time.perf_counter()
    way()
    return time.perf_counter() - began


def measured(backbone: str, seeds: int, batch: int, steps: int, rounds: int) -> list[tuple[float, float, float]]:
    """Seconds of a block batched, one by one and in processes, round by round."""
    models, (images, labels) = networks(backbone, seeds), batches(seeds, batch)
    batched, apart, processes = Batched(models), OneByOne(models), Processes(backbone, seeds, batch)
    for _ in range(2):  # and it warms them up
        losses = batched.step(images, labels)
        for other in (apart.step(images, labels), torch.tensor(processes.steps(1))):
            torch.testing.assert_close(other, losses, rtol=1e-3, atol=1e-3)

    def taking(way: OneByOne | Batched) -> Callable[[], object]:
        return lambda: [way.step(images, labels) for _ in range(steps)]

    ways = (taking(batched), taking(apart), lambda: processes.steps(steps))
    times = [tuple(map(seconds, ways)) for _ in range(rounds)]
    processes.stop()
    return times  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=["mlp", "lenet"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 5])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5, help="steps a block, each of all seeds")
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each way")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of the batched way and of one by one")
    recording.add_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    hardware.keep_freed_memory()
    others = ("one by one", "processes")
    table = Table("network", "seeds", "batched, images/s", *others, *(f"batched / {other}" for other in others))
    rows = []
    for backbone in options.backbones:
        for seeds in options.seeds:
            times = measured(backbone, seeds, options.batch, options.steps, options.rounds)
            total = seeds * options.batch * options.steps
            columns = dict(zip(("batched", *others), zip(*times)))
            speeds = {way: [total / taken for taken in column] for way, column in columns.items()}
            ratios = {other: [a / b for a, b in zip(columns[other], columns["batched"])] for other in others}
            told = [f"{statistics.median(values):,.0f}" for values in speeds.values()]
            table.add_row(backbone, str(seeds), *told, *(recording.spread(values) for values in ratios.values()))
            same = {"seeds": seeds, "batch": options.batch}
            rows += [recording.row(backbone, way, "images/s", values, **same) for way, values in speeds.items()]
            rows += [recording.row(backbone, f"batched / {other}", "ratio", values, **same)
                     for other, values in ratios.items()]
    Console(width=110).print(table)
    recording.write(options, __file__, rows, clock="wall", threads=options.threads)


if __name__ == "__main__":
    main()
