"""holdfast: class-incremental learning with classifiers that are fixed in advance."""

import os as _os
import sys as _sys

__version__ = "0.1.0"

if "torch" not in _sys.modules:
    # By default OpenMP's threads spin while they wait, which takes the cores from other processes. This must be set
    # before PyTorch is imported. A value that the user has set is kept.
    _os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def __getattr__(name: str) -> object:
    """Import `IncrementalClassifier` and `progress` when they are asked for, so that `import holdfast` stays light."""
    if name == "IncrementalClassifier":
        from .estimator import IncrementalClassifier

        return IncrementalClassifier
    if name == "progress":
        from .learning.progress import progress

        return progress
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
