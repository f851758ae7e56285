"""One file a method, each reading like its paper's equation; `METHODS` knows them by name."""

from . import replay, simple
from .base import METHODS, Method

__all__ = ["METHODS", "Method", "replay", "simple"]
