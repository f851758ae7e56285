"""A progress bar for a run or for `partial_fit`, in a terminal and in a notebook.

    with holdfast.progress() as watcher:
        model.partial_fit(X, y, watcher=watcher)
        run(Config("split-digits"), watcher=watcher)

In a notebook it is one HTML output that is updated in place. It needs IPython alone, which every notebook has; rich's
own bar would need ipywidgets too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import escape
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..errors import Stopped
from ..quantities import duration
from .training import Watcher

REFRESH = 0.2  # seconds between updates, so that steps do not wait for the display


@dataclass(frozen=True)
class Line:
    """The content of one bar."""

    title: str
    total: int
    unit: str
    done: int = 0
    speed: str = ""
    note: str = ""


class Display(Protocol):
    """A place that shows bars: `begin` starts a new one, `show` changes it, `close` shows its last state."""

    def begin(self, line: Line) -> None: ...

    def show(self, line: Line) -> None: ...

    def close(self) -> None: ...


@contextmanager
def progress(console: Console | None = None, stop: Callable[[], bool] = lambda: False) -> Iterator[Watcher]:
    """Yield a watcher that shows a bar over embedded samples and epochs, with samples per second and the accuracy."""
    console = console or Console(stderr=True)
    display: Display = Notebook() if console.is_jupyter else Terminal(console)
    bar = Bar(display, stop)
    try:
        yield Watcher(
            begin=bar.begin, step=bar.step, epoch=bar.epoch, task=bar.task, embedding=bar.embedding, stop=stop
        )
    finally:
        display.close()


class Bar:
    """Turns what a watcher hears into lines. A bar begins with the first step: a finished run shows none."""

    def __init__(self, display: Display, stop: Callable[[], bool]) -> None:
        self.display, self.stop = display, stop
        self.line: Line | None = None
        self.tasks = self.epochs = self.seen = 0
        self.began = self.shown = 0.0

    def begin(self, tasks: int, epochs: int) -> None:
        self.tasks, self.epochs, self.line = tasks, epochs, None
        self.seen, self.began = 0, time.monotonic()

    def step(self, samples: int) -> None:
        self.seen += samples
        now = time.monotonic()
        if now - self.shown > REFRESH:
            self.shown = now
            self._update(speed=f"{self.seen / max(now - self.began, 1e-6):,.0f} new samples/s")

    def epoch(self, record: dict[str, Any]) -> None:
        self._update(done=(record["task"] - 1) * self.epochs + record["epoch"], title=self._title(record["task"]))

    def task(self, record: dict[str, Any]) -> None:
        known = [value for value in record["accuracies"] if not math.isnan(value)]  # nan: no sample was held back
        if known:
            self._update(note=f"accuracy {sum(known) / len(known):.1f} %")

    def embedding(self, total: int) -> Callable[[int], None]:
        """Begin a bar of samples; return the function that advances it, and raises Stopped if asked to stop."""
        line = Line("embedding", total, "samples")
        self.display.begin(line)

        def advance(count: int) -> None:
            nonlocal line
            line = replace(line, done=line.done + count)
            self.display.show(line)
            if self.stop():
                raise Stopped

        return advance

    def _title(self, task: int) -> str:
        return f"task {task}/{self.tasks}" if self.tasks > 1 else "learning"

    def _update(self, **changes: Any) -> None:
        if self.line is None:
            self.line = Line(self._title(1), self.tasks * self.epochs, "epochs")
            self.display.begin(self.line)
        self.line = replace(self.line, **changes)
        self.display.show(self.line)


class Terminal:
    """A bar of rich."""

    def __init__(self, console: Console) -> None:
        self.bars = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[unit]} {task.fields[speed]} {task.fields[note]}"), TimeRemainingColumn(),
            console=console,
        )
        self.at: TaskID | None = None

    def begin(self, line: Line) -> None:
        self.bars.start()
        self.at = self.bars.add_task(line.title, total=line.total, unit=line.unit, speed="", note="")

    def show(self, line: Line) -> None:
        assert self.at is not None
        self.bars.update(self.at, description=line.title, completed=line.done, speed=line.speed, note=line.note)

    def close(self) -> None:
        if self.at is not None:
            self.bars.stop()


class Notebook:
    """One HTML output per bar, updated in place; a front end without HTML shows its text."""

    def __init__(self) -> None:
        from IPython import display

        self.display: Callable[..., Any] = display.display
        self.handle: Any = None
        self.line: Line | None = None
        self.began = self.shown = 0.0

    def begin(self, line: Line) -> None:
        self.close()
        self.line, self.began, self.shown = line, time.monotonic(), time.monotonic()
        self.handle = self.display(self._content(line), raw=True, display_id=True)

    def show(self, line: Line) -> None:
        self.line = line
        if time.monotonic() - self.shown > REFRESH:
            self._write(line)

    def close(self) -> None:
        if self.line is not None:
            self._write(self.line)

    def _write(self, line: Line) -> None:
        self.shown = time.monotonic()
        self.handle.update(self._content(line), raw=True)

    def _content(self, line: Line) -> dict[str, str]:
        left = (time.monotonic() - self.began) / max(line.done, 1) * (line.total - line.done)
        told = [f"{line.done}/{line.total} {line.unit}", line.speed, line.note,
                f"about {duration(left)} left" if 0 < line.done < line.total else ""]
        text = " · ".join(part for part in (line.title, *told) if part)
        bar = f"<progress value='{line.done}' max='{line.total}' style='width:20em'></progress>"
        return {"text/html": f"{bar} {escape(text)}", "text/plain": text}
