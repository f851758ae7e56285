"""Classifiers solved in closed form from sums over frozen features."""

from .calibration import Calibration
from .options import SolverOptions
from .random_features import RandomFeatures
from .ridge import Choice
from .solver import Solver
from .sums import Sums

__all__ = ["Calibration", "Choice", "RandomFeatures", "Solver", "SolverOptions", "Sums"]
