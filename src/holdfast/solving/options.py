"""The options of the solver. The method `solved` and the estimator share them."""

from __future__ import annotations

from dataclasses import dataclass

from ..options import Options, option


@dataclass(frozen=True)
class SolvedOptions(Options):
    """How a classifier is solved from the sums. None means: chosen from the sums."""

    rule: str = option(
        "gaussian", "classifier solved from the sums: Gaussian discriminant, or ridge regression onto the vertices",
        choices=("gaussian", "ridge"),
    )
    penalty: float | None = option(None, "ridge penalty  (default: by generalised cross-validation)", above=0)
    width: int | None = option(
        None, "random ReLU features to append to the features; 0 for none  (default: chosen from the data)", at_least=0
    )
    priors: str = option(
        "uniform", "class priors of the Gaussian rule: equal, or by the number of samples",
        choices=("uniform", "empirical"),
    )
    shrinkage: float = option(0.6, "shrinkage of the covariances behind the novelty score", above=0, at_most=1)
    keep_scatter: bool = option(False, "keep d x d numbers per class, so that forgetting a class is exact")
    held: int = option(
        512, "samples kept to calibrate probabilities and rejection, 0 for none; the weights never use them", at_least=0
    )
    memory_mb: float = option(512.0, "memory in MB that random features may use when their width is chosen", above=0)
    seconds: float = option(1.5, "seconds that one solution may take when the width is chosen", above=0)


@dataclass(frozen=True)
class SolverOptions(SolvedOptions):
    """The same, with the seed of the random features."""

    seed: int = option(0, "seed of the random features", at_least=0)
