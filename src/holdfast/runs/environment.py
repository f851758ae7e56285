"""Record the environment that a run's numbers may depend on, one line per start of the run."""

from __future__ import annotations

import platform
import subprocess
import warnings
from pathlib import Path
from typing import Any

import torch

from .. import __version__, files
from ..learning.learner import Learner

DECISIVE = ("torch", "device", "threads", "compiled", "ranks")  # these may change the last bits of a sum


def environment(device: torch.device, learner: Learner | None = None) -> dict[str, Any]:
    """Return this process's versions, device, threads and, if used, compilation and ranks."""
    found: dict[str, Any] = {
        "holdfast": __version__,
        "code": code_version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": str(device),
        "threads": torch.get_num_threads(),
    }
    if learner is not None:
        found |= {"compiled": True} if learner.compiled is not None else {}
        found |= {"ranks": learner.ranks.world} if learner.ranks is not None else {}
    return found


def append(path: Path, now: dict[str, Any], resumes: bool) -> None:
    """Append the environment to a run's file; warn if a resumed run may differ in its last bits."""
    before = read(path) if resumes else []
    if before and (changed := [k for k in DECISIVE if before[-1].get(k) != now.get(k)]):
        other = "; ".join(f"{k} {before[-1].get(k)} before, {now.get(k)} now" for k in changed)
        warnings.warn(f"The last bits may differ from those of an uninterrupted run: {other}.", stacklevel=2)
    if not before or before[-1] != now:
        lines = "".join(files.dumps(each) + "\n" for each in [*before, now])
        files.write_whole(path, lines.encode())


def read(path: Path) -> list[dict[str, Any]]:
    """Read a run's environments, oldest first; skip unreadable lines, since nothing depends on them."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(files.parse_json(line))
        except ValueError:
            warnings.warn(f"{path} has a line that is not JSON; it is skipped.", stacklevel=3)
    return [each for each in found if isinstance(each, dict)]


def code_version() -> str | None:
    """Return the commit of a source checkout, with + if it was modified; None for an installed package."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None
