"""How much two workers help a sweep, and two ranks one run: `python benchmarks/scale.py`, on a quiet machine.

Each measurement is interleaved (one, two, one, two, ...) and its best time is kept; what is printed is a ratio.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

from holdfast.hardware import Machine
from holdfast.runs.config import Config
from holdfast.sweeps.engines import Local
from holdfast.sweeps.survey import State, survey
from holdfast.sweeps.sweep import Sweep

HERE = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def sweep_seconds(places: int, runs: int, epochs: int) -> float:
    """A sweep of equal runs of one thread each, from nothing."""
    configs = [Config("split-digits", epochs=epochs, seed=seed).resolved() for seed in range(runs)]
    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        found = survey(configs, out)
        Sweep(found, Machine(out=out, device="cpu", threads=1), Local(places)).run()
        assert all(run.state is State.DONE for run in found), [run.note for run in found]
        return time.perf_counter() - began


def run_seconds(ranks: int, epochs: int, batch: int, backbone: str) -> float:
    """One run of one thread a rank; the time spent training, as the run itself measures it."""
    config = Config("split-digits", epochs=epochs, batch=batch, backbone=backbone).resolved()
    with tempfile.TemporaryDirectory() as out:
        launch = [
            "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d",
            "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1",
        ] if ranks > 1 else []
        words = [*config.command().split()[1:], "--device", "cpu", "--threads", "1", "--out", out]
        command = [sys.executable, *launch, "-m", "holdfast", *words]
        subprocess.run(command, env={**os.environ, **HERE}, check=True, capture_output=True)
        (run,) = survey([config], out)
        assert run.result is not None
        return float(run.result["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=4, help="of the sweep")
    parser.add_argument("--epochs", type=int, default=10)
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: trust this only if the load is well below 1")
    sweeps = [(sweep_seconds(1, chosen.runs, chosen.epochs), sweep_seconds(2, chosen.runs, chosen.epochs))
              for _ in range(chosen.rounds)]
    one, two = (min(times) for times in zip(*sweeps))
    print(f"sweep of {chosen.runs} runs: {one:.1f} s by 1 worker, {two:.1f} s by 2: {one / two:.2f} times as fast")
    for backbone, batch in (("lenet", 128), ("lenet", 512), ("resnet20", 128)):
        epochs = 1 if backbone == "resnet20" else max(1, chosen.epochs // 3)
        times = [(run_seconds(1, epochs, batch, backbone), run_seconds(2, epochs, batch, backbone))
                 for _ in range(chosen.rounds)]
        one, two = (min(column) for column in zip(*times))
        print(f"{backbone}, batch {batch}: {one:.1f} s by 1 rank, {two:.1f} s by 2: {one / two:.2f} times as fast")


if __name__ == "__main__":
    main()
