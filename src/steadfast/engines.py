"""Where a sweep's runs happen: processes of this machine, a Ray cluster, or Slurm. We use engines, we write none.

An engine starts `work` somewhere and says when it has ended. Everything else, results, progress, failures,
goes through the run folders, which every worker must be able to see.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from . import __version__, files
from .errors import BadConfig


@dataclass(frozen=True)
class Job:
    """One run to do, as plain values that travel to any worker."""

    config: dict[str, Any]
    out: str
    data_root: str | None
    device: str
    threads: int
    version: str = __version__

    @property
    def folder(self) -> Path:
        from .config import Config

        return Path(self.out) / Config.from_json(self.config).name


def work(job: Job) -> None:
    """Do one run in this process; a failure is written down in the run folder and raised again."""
    if job.version != __version__:
        raise BadConfig(f"This worker has steadfast {__version__}, the sweep {job.version}: install the same on all.")
    from . import experiment
    from .config import Config
    from .signals import Stopping
    from .training import Stopped, Watcher

    failure = job.folder / "failure.json"
    with Stopping() as stopping:
        try:
            experiment.run(
                Config.from_json(job.config), job.out, data_root=job.data_root, device=job.device,
                threads=job.threads, watcher=Watcher(stop=stopping.asked),
            )
            failure.unlink(missing_ok=True)
        except Stopped:
            os._exit(stopping.exit_code)
        except Exception as error:
            record = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
            files.write_json(failure, record)
            raise


class Handle(Protocol):
    """A job that was started."""

    def ended(self) -> str | None:
        """None while it goes on; then "" if it ended well, or what went wrong."""

    def stop(self) -> None:
        """Ask it to save and end."""


class Engine(Protocol):
    """Starts jobs; `places` is how many at once."""

    places: int

    def start(self, job: Job) -> Handle: ...

    def close(self) -> None: ...


class Local:
    """One process a run, each with its own threads: two runs of one thread beat one run of two."""

    def __init__(self, places: int | None = None) -> None:
        self.places = places or len(os.sched_getaffinity(0))

    def start(self, job: Job) -> Handle:
        return _Process(job)

    def close(self) -> None:
        pass


class _Process:
    def __init__(self, job: Job) -> None:
        # A fresh interpreter: a fork would inherit torch's threads in whatever state they are.
        self.process = multiprocessing.get_context("spawn").Process(target=_silent_work, args=(job,))
        self.process.start()

    def ended(self) -> str | None:
        code = self.process.exitcode
        if code is None:
            return None
        return "" if code == 0 else f"its process ended with {'signal ' + str(-code) if code < 0 else f'code {code}'}"

    def stop(self) -> None:
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(60)


def _silent_work(job: Job) -> None:
    """As `work`; the traceback is in the run folder, not on the terminal."""
    try:
        work(job)
    except Exception:
        os._exit(1)


def failure_of(folder: Path) -> str | None:
    """What went wrong in a run folder, if something did."""
    try:
        return str(json.loads((folder / "failure.json").read_text())["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def engine(name: str, *, places: int | None = None, cpus: float = 1, gpus: float = 0) -> Engine:
    """`local`, `ray`, `ray:ADDRESS` or `slurm`."""
    if name == "local":
        return Local(places)
    raise BadConfig(f"There is no engine called {name!r}; choose local.")
