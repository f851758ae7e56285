"""Progress bars of learn, predict and embed, on stderr, so that standard output can be piped."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..data import folders
from ..learning.progress import progress
from ..learning.training import Watcher
from ..signals import Stopping
from .options import complaints, console

if TYPE_CHECKING:
    from ..estimator import IncrementalClassifier
    from ..estimator.model import Model

PART = 100  # images between two updates of the bar
HANDFUL = 30  # updates below which we warn


def read(
    paths: list[Path], shape: tuple[int, ...] | None, size: int | None = None, stop: folders.Stop = lambda: False
) -> folders.Images:
    """Read images with a progress bar; list the unreadable ones."""
    with bar_of("images") as bar:
        line = bar.add_task("reading", total=len(paths))
        found = folders.read(paths, shape, size, lambda: bar.advance(line), stop)
    tell_left_out([why for _, why in found.bad])
    return found


def tell_left_out(reasons: list[str]) -> None:
    """List the images that could not be read."""
    for why in reasons[:20]:
        complaints.print(f"[yellow]left out:[/] {escape(why)}", highlight=False, soft_wrap=True)
    if len(reasons) > 20:
        complaints.print(f"[yellow]left out:[/] and {len(reasons) - 20} more")


def look(clf: IncrementalClassifier, images: folders.Images) -> torch.Tensor:
    """Return the vectors (n, dim) of images, with a progress bar."""
    parts = []
    with bar_of("images") as bar:
        line = bar.add_task("looking", total=len(images.data))
        for part in images.data.split(PART):
            parts.append(clf.model_.embed(part))
            bar.advance(line, len(part))
    return torch.cat(parts)


def learning(clf: IncrementalClassifier, size: int, stopping: Stopping) -> AbstractContextManager[Watcher]:
    """Return a watcher that shows a progress bar; warn if there are too few updates to learn from.

    An existing model has its own settings; a new one takes the estimator's parameters."""
    from ..estimator.model import UPDATES, updates

    inner: Model | None = getattr(clf, "model_", None)
    batch, first = (clf.batch, True) if inner is None else (inner.settings.batch, not inner.taught)
    asked = (None if clf.epochs == "auto" else int(clf.epochs)) if inner is None else inner.settings.epochs
    if asked and (made := asked * updates(size, batch, first=first)) < HANDFUL:
        say(
            f"Only {made} updates: {asked} epochs of {size} images are too few to learn much. "
            f"Without --epochs there are about {UPDATES}.", complaints,
        )
    return progress(complaints, stopping.asked)


def say(text: str, where: Console = console) -> None:
    """Print text without interpreting brackets as markup and without wrapping lines."""
    where.print(text, markup=False, highlight=False, soft_wrap=True)


def bar_of(unit: str) -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit),
        TimeRemainingColumn(), console=complaints,
    )
