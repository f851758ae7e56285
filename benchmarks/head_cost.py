"""What a fixed head costs: a dense vertex matrix and F.cross_entropy against the polytope's closed form.

    python benchmarks/head_cost.py [--quick] [--batch 128] [--rounds 15] [--threads 1] [--cpu-time]

One step is loss and gradient with respect to the features. Dense and closed form take turns in every round; a
ratio is taken within a round, and the table shows medians and, in brackets, the middle half of the rounds.
Memory is the peak of all tensors alive during a step (features and vertices included), from torch's profiler.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

import recording
from holdfast.heads.polytopes import Cube, Orthoplex, Polytope, Simplex
from holdfast.quantities import byte_size, duration

Step = Callable[[], None]


@dataclass
class Case:
    polytope: Polytope
    batch: int

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.features = torch.randn(self.batch, self.polytope.dim, generator=generator).requires_grad_()
        bits = torch.randint(-(2**63), 2**63 - 1, (self.batch,), generator=generator)
        self.slots = bits if self.polytope.slots == 2**64 else bits % self.polytope.slots

    def closed(self) -> Step:
        def step() -> None:
            self.features.grad = None
            self.polytope.loss(self.features, self.slots).backward()

        return step

    def dense(self) -> Step:
        vertices = self.polytope.vertices()  # (slots, dim)

        def step() -> None:
            self.features.grad = None
            F.cross_entropy(F.linear(self.features, vertices), self.slots).backward()

        return step

    def dense_needs(self) -> int:
        """Bytes: the vertices and four copies of the logits."""
        return 4 * (self.polytope.slots * self.polytope.dim + 4 * self.batch * self.polytope.slots)

    def why_not_dense(self, room: float, most_work: float) -> str | None:
        if self.dense_needs() > room:
            return f"needs {byte_size(self.dense_needs())}, {byte_size(room)} free"
        if 4 * self.batch * self.polytope.slots * self.polytope.dim > most_work:
            return "left out by --quick"
        return None


def seconds(step: Step, repeats: int, clock: recording.Clock) -> float:
    start = clock()
    for _ in range(repeats):
        step()
    return (clock() - start) / repeats


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what the profiler's own library writes to standard error."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def peak_bytes(step: Step) -> int:
    """The most bytes that tensors made in this step held at one time."""
    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    assert recorded.profiler is not None and recorded.profiler.kineto_results is not None
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def middle(values: list[float], show: Callable[[float], str]) -> str:
    low, median, high = recording.quartiles(values)
    return f"{show(median)} [{show(low)} .. {show(high)}]"


def measure(
    case: Case, rounds: int, budget: float, room: float, most_work: float, clock: recording.Clock
) -> tuple[list[str], list[recording.Row]]:
    """One row to print: times, their ratio, peaks and theirs; and the same to record."""
    why_not = case.why_not_dense(room, most_work)
    steps = {"closed": case.closed()} | ({} if why_not else {"dense": case.dense()})
    features = case.features.numel() * 4
    peaks: dict[str, int] = {}
    repeats: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for name, step in steps.items():
        step()  # the first call loads and allocates
        case.features.grad = None
        peaks[name] = peak_bytes(step) + features
        repeats[name] = max(1, int(budget / rounds / seconds(step, 1, clock)))
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(seconds(step, repeats[name], clock))
    if not why_not:
        peaks["dense"] += case.polytope.slots * case.polytope.dim * 4
    ratios = [dense / closed for dense, closed in zip(times.get("dense", ()), times["closed"])]
    rows = recorded(case, times, peaks, ratios)
    closed = [middle(times["closed"], duration), f"{byte_size(peaks['closed'])} ({peaks['closed'] / features:.2g}x)"]
    if why_not:
        return [f"- ({why_not})", closed[0], "-", "-", closed[1], "-"], rows
    return [
        middle(times["dense"], duration),
        closed[0],
        middle(ratios, lambda r: f"{r:.3g}"),
        f"{byte_size(peaks['dense'])} ({peaks['dense'] / features:.2g}x)",
        closed[1],
        f"{peaks['dense'] / peaks['closed']:.3g}",
    ], rows


def recorded(
    case: Case, times: dict[str, list[float]], peaks: dict[str, int], ratios: list[float]
) -> list[recording.Row]:
    """The numbers of one case; where the dense head was not run, the memory it would need."""
    measured: list[tuple[str, str, list[float]]] = [(f"{way}, time", "s", taken) for way, taken in times.items()]
    measured += [(f"{way}, memory", "B", [peak]) for way, peak in peaks.items()]
    if ratios:
        measured.append(("dense / closed, time", "ratio", ratios))
    else:
        measured.append(("dense, memory by arithmetic", "B", [case.dense_needs()]))
    shape = {"slots": case.polytope.slots, "dim": case.polytope.dim, "features": case.features.numel() * 4}
    return [recording.row(case.polytope.name, what, unit, values, **shape) for what, unit, values in measured]


def sizes(quick: bool) -> list[Polytope]:
    powers = (1, 2, 3, 4, 5) if quick else (1, 2, 3, 4, 5, 6)
    dims = (8, 16, 64) if quick else (8, 12, 16, 20, 24, 32, 48, 64)
    return [
        *(Simplex(10**power) for power in powers), *(Orthoplex(10**power) for power in powers),
        *(Cube(2**dim) for dim in dims), *(Cube(slots) for slots in (10, 1000, 10**15)),  # no powers of two
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds, half a minute in all")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=None)
    recording.add_clock(parser)
    recording.add_option(parser)
    options = parser.parse_args()
    clock = recording.started(options, parser)

    rounds = max(2, options.rounds or (5 if options.quick else 15))
    room = 0.5 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    budget, most_work = (0.2, 3e9) if options.quick else (3.0, float("inf"))

    where = f"torch {torch.__version__}, {platform.machine()}, {options.threads} of {os.cpu_count()} threads"
    table = Table(title=f"Loss and gradient, batch {options.batch}, float32 ({where}, {rounds} rounds)")
    for column in ("head", "slots", "dim", "dense", "closed form", "dense / closed"):
        table.add_column(column, justify="left" if column == "head" else "right")
    for column in ("dense memory (features)", "closed memory (features)", "dense / closed"):
        table.add_column(column, justify="right")
    console = Console(width=None if Console().is_terminal else 220)
    rows: list[recording.Row] = []
    with console.status("measuring") as status:
        for polytope in sizes(options.quick):
            status.update(f"measuring {polytope!r}")
            row, measured = measure(Case(polytope, options.batch), rounds, budget, room, most_work, clock)
            rows += measured
            count = f"{polytope.slots:,}" if polytope.slots < 10**7 else f"{polytope.slots:.3g}"
            table.add_row(polytope.name, count, str(polytope.dim), *row)
    console.print(table)
    recording.write(options, __file__, rows)


if __name__ == "__main__":
    main()
