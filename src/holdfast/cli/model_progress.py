"""Progress bars of learn, predict and embed, on stderr, so that standard output can be piped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ..data import folders
from ..errors import Stopped
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
    paths: list[Path], shape: tuple[int, ...] | None, size: folders.Size = None, stop: folders.Stop = lambda: False
) -> folders.Images:
    """Read images with a progress bar; list the unreadable ones."""
    with bar_of() as bar:
        line = bar.add_task("reading", total=len(paths), unit="images")
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
    with bar_of() as bar:
        line = bar.add_task("looking", total=len(images.data), unit="images")
        for part in images.data.split(PART):
            parts.append(clf.model_.embed(part))
            bar.advance(line, len(part))
    return torch.cat(parts)


def learning(clf: IncrementalClassifier, size: int, stopping: Stopping) -> AbstractContextManager[Watcher]:
    """Return a watcher that shows a progress bar; warn if there are too few updates to learn from."""
    from ..estimator.model import UPDATES, updates

    inner: Model | None = getattr(clf, "model_", None)
    asked, first = None if clf.epochs == "auto" else int(clf.epochs), inner is None or not inner.taught
    if asked and (made := asked * updates(size, clf.batch, first=first)) < HANDFUL:
        say(
            f"Only {made} updates: {asked} epochs of {size} samples are too few to learn much. "
            f"Without --epochs there are about {UPDATES}.", complaints,
        )
    return progress(complaints, stopping.asked)


def say(text: str, where: Console = console) -> None:
    """Print text without interpreting brackets as markup and without wrapping lines."""
    where.print(text, markup=False, highlight=False, soft_wrap=True)


def bar_of(shown: bool = True) -> Progress:
    """Return bars that show the number done, the rate and the time left; each task names its `unit`."""
    return Progress(
        TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[unit]}"),
        Rate(), TimeRemainingColumn(), console=complaints, disable=not shown,
    )


class Rate(ProgressColumn):
    """Show how many are done per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f}/s" if speed < 10 else f"{speed:,.0f}/s")


@contextmanager
def embedding(
    clf: IncrementalClassifier, bar: Progress, count: int, stop: folders.Stop = lambda: False
) -> Iterator[None]:
    """Show the samples that the embedder has done, if there is one; raise Stopped if `stop` returns True."""
    if clf.embedder is None:
        yield
        return
    line = bar.add_task("embedding", total=count, unit="samples")

    def watch(more: int) -> None:
        bar.advance(line, more)
        if stop():
            raise Stopped

    clf.watch = watch
    try:
        yield
    finally:
        clf.watch = None
