"""Every random choice of a run comes from its seed, through a named generator."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own for each purpose, so that one more draw here never shifts the draws there."""
    return torch.Generator(device=device).manual_seed(_derive(seed, purpose))


@contextmanager
def initialising(seed: int, purpose: str) -> Iterator[None]:
    """PyTorch's layers initialise from the global state: lend them a seeded one, and put the old one back."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(_derive(seed, purpose))
        yield


def _derive(seed: int, purpose: str) -> int:
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # torch wants it below 2^63
