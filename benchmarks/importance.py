"""How fast importance is measured: one sample at a time, by vmap, and as holdfast does it.

    python benchmarks/importance.py

CPU time of one thread (`time.process_time`), so that other work on the machine counts less; the ways take turns, a
ratio is taken within a round, and its median is shown with the middle half of the rounds. The loop is the usual one:
forward, backward and importance += gradient^2 for every sample. The three agree, which is checked first.
The last row is no importance but the floor: forward and backward of a batch, as training does it. Where it is near
holdfast's time the arithmetic itself is the limit, and only fewer samples (`importance_samples`) are quicker.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.func import functional_call, grad, vmap

import recording
from holdfast import backbones, heads
from holdfast.learning.learner import Learner
from holdfast.methods.importance import CHUNK, _Network, mean_gradients

SHAPES = {"mlp": (1, 32, 32), "lenet": (1, 32, 32), "resnet20": (3, 32, 32)}


def slope(logits: Tensor, slots: Tensor) -> Tensor:
    """Of the log-likelihood of the model's own prediction."""
    return F.one_hot(logits.argmax(1), logits.shape[1]) - logits.softmax(1)


def loop(learner: Learner, images: Tensor) -> list[Tensor]:
    parameters = list(learner.parameters())
    totals = [torch.zeros_like(p) for p in parameters]
    for image in images.split(1):
        learner.zero_grad()
        logits = learner.logits(image)
        F.cross_entropy(logits, logits.argmax(1)).backward()
        for total, p in zip(totals, parameters):
            total += p.grad**2 / len(images)
    return totals


def by_vmap(learner: Learner, images: Tensor, chunk: int = 32) -> list[Tensor]:
    network = _Network(learner)
    frozen = {name: p.detach() for name, p in network.named_parameters()}

    def score(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(network, parameters, (x[None],)).log_softmax(1).max()

    totals = {name: torch.zeros_like(p) for name, p in frozen.items()}
    for part in images.split(chunk):
        for name, g in vmap(grad(score), in_dims=(None, 0))(frozen, learner.normalise(part)).items():
            totals[name] += g.square().sum(0) / len(images)
    return list(totals.values())


def factored(learner: Learner, images: Tensor) -> list[Tensor]:
    return mean_gradients(learner, ((part, part) for part in images.split(CHUNK)), slope, torch.square)


def floor(learner: Learner, images: Tensor) -> list[Tensor]:
    learner.zero_grad()
    logits = learner.logits(images)
    F.cross_entropy(logits, logits.argmax(1)).backward()
    return []


WAYS: dict[str, tuple[Callable[[Learner, Tensor], list[Tensor]], int]] = {  # and how many samples to time
    "loop": (loop, 16), "vmap(grad)": (by_vmap, 16), "holdfast": (factored, CHUNK),
    "(a training pass)": (floor, CHUNK),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    recording.add_option(options)
    asked = options.parse_args()
    torch.set_num_threads(1)
    table = Table("backbone", "way", "ms a sample", "times the loop's speed", "middle half of the rounds")
    rows = []
    for name, shape in SHAPES.items():
        torch.manual_seed(0)
        backbone = backbones.build(name, shape)
        channels = shape[0]
        head = heads.build("simplex", int(backbone.out_features), 10)
        learner = Learner(backbone, head, shape, [0.5] * channels, [0.25] * channels)
        learner.use(torch.device("cpu"), torch.channels_last).eval()
        images = torch.randint(0, 256, (CHUNK, *shape), dtype=torch.uint8)
        results = [way(learner, images[:8]) for way, _ in WAYS.values()]
        for other in results[1:3]:
            for a, b in zip(results[0], other):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5 * float(a.max()))
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(asked.rounds):
            for way, (function, count) in WAYS.items():
                began = time.process_time()
                function(learner, images[:count])
                times[way].append(1000 * (time.process_time() - began) / count)
        for way, taken in times.items():
            ratios = [base / own for base, own in zip(times["loop"], taken)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            speed = f"{statistics.median(taken):.3g}"
            table.add_row(name, way, speed, f"{middle:.1f}", f"{low:.1f} to {high:.1f}")
            rows.append(recording.row(name, way, "ms a sample", taken))
            rows.append(recording.row(name, f"{way} / loop", "times the speed", ratios))
    Console().print(table)
    recording.write(asked, __file__, rows, clock="cpu", threads=1)


if __name__ == "__main__":
    main()
