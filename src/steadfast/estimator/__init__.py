"""For people's own data: `IncrementalClassifier`, what it has learned, and how still its vectors stand."""

from .classifier import IncrementalClassifier

__all__ = ["IncrementalClassifier"]
