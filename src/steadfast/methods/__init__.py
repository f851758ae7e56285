"""One file a method, each reading like its paper's equation; `METHODS` knows them by name."""

from . import agem, ewc, gem, mas, replay, si, simple
from .base import METHODS, Method

__all__ = ["METHODS", "Method", "agem", "ewc", "gem", "mas", "replay", "si", "simple"]
