"""Generators derived from a run's seed; every random choice of a run comes from one of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a separate generator per purpose, so that an additional draw in one place never shifts another's."""
    return torch.Generator(device=device).manual_seed(_derive(seed, purpose))


@contextmanager
def initialising(seed: int, purpose: str) -> Iterator[None]:
    """Seed PyTorch's global generator, from which layers initialise, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(_derive(seed, purpose))
        yield


def _derive(seed: int, purpose: str) -> int:
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # torch needs a seed below 2^63
