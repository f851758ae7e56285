"""`IncrementalClassifier` for the user's own data, its models, and the stability of its vectors."""

from .classifier import IncrementalClassifier

__all__ = ["IncrementalClassifier"]
