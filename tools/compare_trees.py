"""Compare the weights that two source trees learn, to the bit: a redesign must not change a number.

    python tools/compare_trees.py OLD_PYTHON OLD_COMMAND NEW_PYTHON NEW_COMMAND

Each tree is given by a Python of its own environment and by its command. Every method with three heads learns
split-digits for one epoch per task, through the command line; the estimator learns digits as images and as vectors.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

METHODS = {
    "replay": [], "ewc": ["--strength", "10"], "online-ewc": ["--strength", "10"], "si": ["--strength", "10"],
    "mas": ["--strength", "1"], "gem": [], "agem": [], "finetune": [], "joint": [],
}
HEADS = ("simplex", "expanding", "preallocated")
ESTIMATOR = """
import sys
import numpy as np
from sklearn.datasets import load_digits
package, kind, folder = sys.argv[1:]
model = __import__(package).IncrementalClassifier(slots=20, memory=100, epochs=2,
                                                  backbone="lenet" if kind == "images" else "auto")
data = load_digits()
X = (data.images * 15.9).astype(np.uint8) if kind == "images" else data.data.astype(np.float32)
for low in (0, 4, 7):
    rows = (data.target >= low) & (data.target < low + (4 if low == 0 else 3))
    model.partial_fit(X[rows], data.target[rows])
model.save(folder)
"""


def digest(folder: Path) -> str:
    """Hash the learner's tensors in the newest checkpoint, or in the model, below `folder`."""
    path = sorted(folder.rglob("*.safetensors"))[-1]
    tensors = {name: value for name, value in load_file(path).items() if name.startswith("learner.")}
    seen = hashlib.sha256()
    for name in sorted(tensors):
        seen.update(name.encode() + tensors[name].tobytes())
    return seen.hexdigest()[:16]


def learned(python: str, command: str, what: str, arguments: list[str], out: Path) -> str:
    """Learn one thing in one tree, and hash its weights."""
    if what == "run":
        words = [str(Path(python).with_name(command)), "run", "split-digits", "--epochs", "1", "--threads", "1",
                 "--out", str(out), *arguments]
    else:
        words = [python, "-c", ESTIMATOR, command, what, str(out)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}")
    return digest(out)


def main(trees: list[str]) -> int:
    if len(trees) != 4:
        raise SystemExit(__doc__)
    cases = [(f"{method:10} {head}", "run", ["--method", method, "--head", head, *options])
             for method, options in METHODS.items() for head in HEADS]
    cases += [("estimator  images", "images", []), ("estimator  vectors", "vectors", [])]
    different = 0
    for name, what, arguments in cases:
        with tempfile.TemporaryDirectory() as folder:
            old, new = (learned(python, command, what, arguments, Path(folder) / command)
                        for python, command in ((trees[0], trees[1]), (trees[2], trees[3])))
        different += old != new
        print(f"{name:24} {old} {new} {'same' if old == new else 'DIFFERENT'}", flush=True)
    print(f"{len(cases) - different} of {len(cases)} are the same to the bit.")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
