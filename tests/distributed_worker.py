"""What `torchrun` starts in test_distributed.py: tiny runs of every method, their losses and weights to a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from conftest import make_tiny_stream, make_tiny_trainer
from steadfast import distributed, files

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
    "replay-strong": {"balance": True, "distill": "logits", "vary": "shift", "insert": "during"},
    "replay-features": {"distill": "features"},
    "ewc": {"method": "ewc", "strength": 10.0, **SGD},
    "online-ewc": {"method": "online-ewc", "strength": 10.0, "importance": "sample", **SGD},
    "si": {"method": "si", "strength": 1.0},
    "mas": {"method": "mas", "strength": 1.0, "importance_samples": 7, **SGD},
    "gem": {"method": "gem", "memory": 12},
    "gem-replay": {"method": "gem", "memory": 12, "gem_replay": True},
    "agem": {"method": "agem", "memory": 12},
}


def results(case: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """In double precision: then what is left between one rank and two is rounding, not Adam's amplification of it."""
    torch.set_default_dtype(torch.float64)
    try:
        trainer = make_tiny_trainer(make_tiny_stream(), batch=11, **CASES[case])
        trainer.run()
    finally:
        torch.set_default_dtype(torch.float32)
    tensors, plain = trainer.state()
    losses = [record["loss"] for record in plain["records"] if "loss" in record]
    return tensors, {"losses": losses, "accuracies": plain["accuracies"]}


def main(out: Path) -> None:
    with distributed.session():
        for case in CASES:
            tensors, plain = results(case)
            if distributed.ranks().rank == 0:
                files.write_tensors(out / f"{case}.safetensors", tensors, plain)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
