"""`check_method`: a method keeps the promises that every run relies on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from .. import files
from ..errors import BadConfig, Stopped
from ..heads import HEADS
from ..learning.training import Trainer, Watcher
from ..methods import METHODS
from .failing import CheckFailed, check_entry, require
from .tiny import bits, differing, make_tiny_trainer


def check_method(name: str, *, heads: Iterable[str] | None = None, every: int = 1, **options: Any) -> None:
    """Raise CheckFailed unless the registered method `name` keeps its promises, with these options.

    It works with each of `heads` (default: all registered), or refuses a head by BadConfig; it must work with the
    simplex and with its own default head. A run that is stopped after each `every` steps, and resumed from a file each
    time, ends with the bits of an undisturbed run. All randomness comes from its generator.
    """
    check_entry(METHODS, name)
    for head in HEADS if heads is None else heads:
        _check_with_head(name, head, options)
    _check_resuming(name, every, options)


def _check_with_head(name: str, head: str, options: dict[str, Any]) -> None:
    """Require that three tasks are learned, or that the head is refused before anything starts."""
    try:
        trainer = make_tiny_trainer(method=name, head=head, epochs=1, **options)
    except BadConfig as error:
        require(head not in ("simplex", METHODS[name].head), f"{name} refuses the head {head}: {error}")
        require("--head" in str(error), f"{name} refuses the head {head} without naming one that works: {error}")
        return
    trainer.run()
    where = f"{name} with the head {head}"
    wrong = [key for key, value in trainer.learner.named_parameters() if not bool(value.isfinite().all())]
    require(not wrong, f"{where}: {', '.join(wrong[:3])} is not finite after three tiny tasks.")
    embedded = trainer.learner.embed_frozen(torch.zeros(5, *trainer.learner.shape, dtype=torch.uint8))
    found = trainer.method.predict(embedded)
    require(found.shape == (5,) and found.dtype == torch.long,
            f"{where}: predict returned {found.dtype} of shape {tuple(found.shape)}; wanted is int64 of shape (5,).")
    require(bool(((found >= 0) & (found < trainer.learner.head.slots)).all()),
            f"{where}: predict returned slots {found.tolist()}; the head has {trainer.learner.head.slots}.")
    kept = trainer.method.kept_bytes()
    require(isinstance(kept, int) and kept >= 0, f"{where}: kept_bytes returned {kept!r}; wanted is a count of bytes.")


def _check_resuming(name: str, every: int, options: dict[str, Any]) -> None:
    """Require that stops and resumes change no bit, and that no step draws from the global generator."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    whole = make_tiny_trainer(method=name, **options)
    whole.run()
    require(torch.equal(before, torch.get_rng_state()),
            f"{name} draws from PyTorch's global generator: pass generator=self.generator to every random function.")
    torch.manual_seed(1)  # whatever depends on it shows in the bits
    with tempfile.TemporaryDirectory() as folder:
        resumed, stops = _stopped_and_resumed(name, every, options, Path(folder) / "checkpoint")
    steps = sum(record.get("steps", 0) for record in whole.at.records)
    require(stops == (steps - 1) // every, f"{name} took another number of steps after a stop: {stops} stops.")
    if wrong := sorted(differing(bits(whole), bits(resumed)), key=_what_follows):
        raise CheckFailed(
            f"{name}: after stops and resumes these differ from an undisturbed run: {', '.join(wrong[:5])}. Return "
            f"whatever the method carries from step to step in state(), and restore it in load(); draw all random "
            f"numbers from self.generator."
        )


def _what_follows(entry: str) -> bool:
    """Return True for an entry that only follows from the weights, so that the cause is named first."""
    return not entry.startswith(("method.", "learner.", "optimizer.", "generator"))


def _stopped_and_resumed(name: str, every: int, options: dict[str, Any], path: Path) -> tuple[Trainer, int]:
    """Run with a stop after each `every` steps; each round is a new trainer that loads the file of the last one."""
    stops = 0
    while True:
        done: list[int] = []
        watcher = Watcher(step=done.append, stop=lambda done=done: len(done) == every)  # type: ignore[misc]
        trainer = make_tiny_trainer(watcher=watcher, method=name, **options)
        trainer.save = lambda trainer: _write(path, trainer)
        if stops:
            trainer.load(*files.read_tensors(path))
        try:
            trainer.run()
            return trainer, stops
        except Stopped:
            stops += 1


def _write(path: Path, trainer: Trainer) -> None:
    files.write_tensors(path, *trainer.state())
