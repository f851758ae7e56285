"""What `torchrun` starts in test_distributed.py: tiny runs of every method, their losses and weights to a file."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from conftest import make_tiny_stream, make_tiny_trainer
from holdfast import files
from holdfast.learning import distributed
from holdfast.learning.training import Stopped, Watcher

State = tuple[dict[str, torch.Tensor], dict[str, Any]]

# Batches of 11, so that tasks of 12 samples end with a batch of one, and ranks have uneven and empty slices.
# A bias before a batch norm has no gradient but rounding and the penalty on it, which Adam would make into whole steps.
SGD = {"optimizer": "sgd", "lr": 0.05}
CASES: dict[str, dict[str, Any]] = {
    "finetune": {"method": "finetune"},
    "joint": {"method": "joint"},
    "replay": {},
    "replay-mlp": {"backbone": "mlp"},
    "replay-resnet": {"backbone": "resnet20", "epochs": 1},
    "replay-herding": {"policy": "herding", "augment": "crop-flip"},
    "replay-strong": {"balance": True, "distill": "logits", "augment_memory": "shift", "store": "during"},
    "replay-features": {"distill": "features"},
    "replay-contrast": {"distill": "contrast"},
    "ewc": {"method": "ewc", "strength": 10.0, **SGD},
    "online-ewc": {"method": "online-ewc", "strength": 10.0, "importance": "sample", **SGD},
    "si": {"method": "si", "strength": 1.0},
    "mas": {"method": "mas", "strength": 1.0, "importance_samples": 7, **SGD},
    "mas-batch": {"method": "mas", "strength": 1.0, "gradients": "batch", **SGD},
    "gem": {"method": "gem", "memory": 12},
    "gem-replay": {"method": "gem", "memory": 12, "gem_replay": True},
    "agem": {"method": "agem", "memory": 12},
}


BROKEN_OFF = ("replay-strong", "replay-features", "online-ewc", "si", "gem")  # begun by some ranks, ended by others
HALF = 7  # steps that the first ones do at least; two ranks agree to stop at their tenth


def results(case: str, begun: State | None = None, most: int | None = None) -> State:
    """From the start, or from what others have `begun`; to the end, or until `most` steps are done.

    In double precision: then what is left between one rank and two is rounding, not Adam's amplification of it."""
    torch.set_default_dtype(torch.float64)
    try:
        steps: list[int] = []
        watcher = Watcher(step=steps.append, stop=lambda: most is not None and len(steps) >= most)
        trainer = make_tiny_trainer(make_tiny_stream(), watcher, batch=11, **CASES[case])
        if begun is not None:
            trainer.load(*begun)
        with suppress(Stopped):
            trainer.run()
        assert (trainer.at.task < len(trainer.tasks)) == (most is not None), "stopped when it should, only then"
        return trainer.state()
    finally:
        torch.set_default_dtype(torch.float32)


def main(out: Path) -> None:
    def done(name: str, state: State) -> None:
        if distributed.ranks().rank == 0:
            files.write_tensors(out / f"{name}.safetensors", *state)

    with distributed.session():
        for case in CASES:
            done(case, results(case))
        for case in BROKEN_OFF:
            done(f"{case}-begun", results(case, most=HALF))
            done(f"{case}-ended", results(case, files.read_tensors(out / f"{case}-begun-by-one.safetensors")))
    files.write_json(out / f"threads-{os.environ['RANK']}.json", threads())


def threads() -> list[str]:
    """The names of this process's threads, where the system lists them."""
    return sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
