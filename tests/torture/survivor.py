"""Kill real runs with SIGKILL and compare what they end with: `python survivor.py PLAN` prints the kills as JSON.

This process only imports. Every attempt is a fork of it, so a kill costs a fraction of a second instead of an import.
The child kills itself at the n-th occurrence of a named event (a step, a half-written file, a memory that was cut but
not refilled, ...), or this process kills it after a random time.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from conftest import make_tiny_stream, make_tiny_trainer
from holdfast import data, files
from holdfast.hardware import Machine
from holdfast.learning import training
from holdfast.learning.memory import Memory
from holdfast.methods import METHODS
from holdfast.runs import experiment, plots
from holdfast.runs.config import Config
from holdfast.runs.folder import RunFolder

OPTIONS: dict[str, dict[str, Any]] = {"ewc": {"strength": 10.0}, "si": {"strength": 1.0}, "replay": {"memory": 40},
                                      "gem": {"memory": 40}}


class Events:
    """Count the events of a run and, if armed, kill the process at one of them."""

    def __init__(self, armed: tuple[str, int] | None, told: Path) -> None:
        self.armed, self.told, self.seen = armed, told, collections.Counter[str]()

    def happen(self, name: str) -> None:
        self.seen[name] += 1
        if self.armed == (name, self.seen[name]):
            self.told.write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, attribute: str, name: str) -> None:
        """Count an event before each call of `owner.attribute`, and one after it."""
        real: Callable[..., Any] = getattr(owner, attribute)

        def call(*args: Any, **options: Any) -> Any:
            self.happen(f"before {name}")
            value = real(*args, **options)
            self.happen(f"after {name}")
            return value

        setattr(owner, attribute, call)

    def install(self, method: str) -> None:
        kind = METHODS[method]
        self.around(kind, "observe", "a step")
        self.around(kind, "begin_task", "a task's begin")
        self.around(kind, "end_task", "a task's end")
        self.around(Memory, "keep", "cutting the memory")
        self.around(Memory, "add", "filling the memory")
        self.around(training, "evaluate", "the evaluation")
        self.around(os, "fsync", "the write to the disk")
        self.around(os, "replace", "the rename")
        self.around(pathlib.Path, "unlink", "deleting the older checkpoint")
        self.around(plots, "run_pictures", "the pictures")
        files.open = self.open  # type: ignore[attr-defined]

    def open(self, path: Path, mode: str) -> Any:
        file = open(path, mode, buffering=0)  # noqa: SIM115  it is closed by the `with` that it is given to
        if mode == "xb":
            real, events = file.write, self

            class Halves:
                """Write a file in two halves, with an event between them."""

                def write(self, content: bytes) -> None:
                    real(content[: len(content) // 2])
                    events.happen("half of a file")
                    real(content[len(content) // 2 :])

                def __enter__(self) -> Any:
                    return self

                def __exit__(self, *_: Any) -> None:
                    file.close()

                def flush(self) -> None:
                    pass

                def fileno(self) -> int:
                    return file.fileno()

            return Halves()
        return file


class Survivor:
    """One method's runs: one that is left alone, and others that are killed until they end like it."""

    def __init__(self, method: str, plan: dict[str, Any]) -> None:
        self.method, self.plan, self.chance = method, plan, random.Random(f"{plan['seed']}/{method}")
        self.root = Path(plan["folder"]) / method
        self.root.mkdir(parents=True)
        self.config = Config(
            "tiny" if plan.get("tiny") else "split-digits", method=method, backbone="mlp", epochs=2, quick=True,
            batch=plan.get("batch", 64), **OPTIONS[method],
        ).resolved()
        self.kills: collections.Counter[str] = collections.Counter()
        self.runs = 0

    def attempt(self, out: Path, armed: tuple[str, int] | None = None, after: float | None = None) -> bool:
        """Start or resume the run in a process of its own; return True if it reached the end."""
        told = self.root / "told"
        told.unlink(missing_ok=True)
        if (child := os.fork()) == 0:
            code = 1
            try:
                events = Events(armed, told)
                events.install(self.method)
                experiment.run(self.config, Machine(out=str(out), device="cpu", threads=1))
                told.write_text(json.dumps(events.seen))
                code = 0
            finally:
                os._exit(code)
        if after is not None:
            time.sleep(after)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            self.kills["a random moment" if after is not None else told.read_text()] += 1
            return False
        assert os.WEXITSTATUS(status) == 0, f"{self.method}: the run failed instead of going on"
        return True

    def torment(self) -> None:
        began = time.monotonic()
        assert self.attempt(self.root / "whole")
        lasted = time.monotonic() - began
        usual = json.loads((self.root / "told").read_text())
        whole = remains(self.root / "whole")
        names = sorted(usual)
        self.chance.shuffle(names)
        injected, timed = self.plan["injected"], self.plan["timed"]
        while sum(self.kills.values()) < injected + timed:
            out = self.root / f"run-{self.runs}"
            while True:
                late = self.kills["a random moment"]
                if sum(self.kills.values()) - late < injected:
                    name = names[sum(self.kills.values()) % len(names)]  # each kind of moment in turn
                    done = self.attempt(out, armed=(name, self.chance.randint(1, usual[name])))
                elif late < timed:
                    done = self.attempt(out, after=self.chance.uniform(0, lasted))
                else:
                    done = self.attempt(out)
                if done:
                    break
            self.runs += 1
            differ(remains(out), whole, f"{self.method}, run {self.runs}")
            shutil.rmtree(out)


def remains(out: Path) -> dict[str, Any]:
    """Read everything that a run leaves, without the time it took and the machine it ran on."""
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    run = RunFolder(folder)
    assert not list(folder.glob(".*.part")), "half-written files are left"
    (checkpoint,) = run.checkpoints()
    tensors, state = files.read_tensors(checkpoint)
    result = run.read_result()
    assert result is not None
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return {
        **{f"tensor {name}": value for name, value in tensors.items()},
        "state": timeless({**state, "records": [timeless(record) for record in state["records"]]}),
        "metrics": [timeless(line) for line in lines],
        "result": timeless(result),
        "config": files.read_record(run.config),
    }


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in record.items() if k not in ("seconds", "environment", "environments")}


def differ(one: dict[str, Any], other: dict[str, Any], who: str) -> None:
    """Raise if two runs left anything that is not the same to the last bit."""
    assert one.keys() == other.keys(), who
    for name, value in one.items():
        same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        assert same, f"{who}: {name} differs from the uninterrupted run's"


def main(plan: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    make_tiny_trainer(backbone="mlp", epochs=1).run()  # imports what PyTorch imports late, once for all forks
    plots.run_pictures = lambda result, folder: []  # type: ignore[assignment]  # a second each; the moment stays
    if plan.get("tiny"):
        experiment.make_stream = lambda config, root=None: make_tiny_stream()  # type: ignore[assignment]
    else:
        digits = data.load("digits")
        data.load = lambda name, root=None: digits  # type: ignore[assignment]
    found = {}
    for method in plan["methods"]:
        survivor = Survivor(method, plan)
        survivor.torment()
        found[method] = {"kills": dict(survivor.kills), "runs": survivor.runs}
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
