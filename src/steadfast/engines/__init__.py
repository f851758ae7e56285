"""Where a sweep's runs happen: processes of this machine, a Ray cluster, or Slurm. We use engines, we write none.

An engine starts `work` somewhere and says when it has ended. Everything else, results, progress, failures,
goes through the run folders, which every worker must be able to see (or have a `share` to copy them through).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import multiprocessing
import os
import time
import traceback
import warnings
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .. import __version__, files, performance
from ..data import cache_folder
from ..errors import BadConfig, CannotWrite, RunLocked
from ..share import Share

if TYPE_CHECKING:
    from ..signals import Stopping

PATIENCE = 120.0  # seconds that a worker waits for the lock of one that was killed and may still be dying
LONGEST = 4000  # bytes of what a process tells of its end; a pipe holds so many without a reader
SAVED = "stopped, and saved"  # so begins what is told of a run that was asked to stop,
LOCKED = "held by another process"  # or that another process works on: neither is a fault of the run


@dataclass(frozen=True)
class Job:
    """One run to do, as plain values that travel to any worker."""

    config: dict[str, Any]
    out: str
    data_root: str | None
    device: str
    threads: int
    version: str = __version__
    name: str = ""  # of the run folder in `out`
    probe: str = ""  # a file in `out` that this sweep has put there: a worker that does not see it is elsewhere
    share: str | None = None  # an fsspec address that the run folders are copied from and to
    compiled: bool = False  # the backbone by torch.compile
    contiguous: bool = False  # not channels last

    @property
    def folder(self) -> Path:
        return Path(self.out) / self.name


def work(job: Job) -> None:
    """Do one run in this process; a failure is written down in the run folder and raised again."""
    from ..signals import Stopping
    from ..training import Stopped

    if job.probe and not (Path(job.out) / job.probe).exists():
        raise BadConfig(unseen(job.out, "This worker"))
    job, share = _placed(job), Share(job.share) if job.share else None
    with Stopping() as stopping:
        try:
            if job.version != __version__:
                raise BadConfig(other_version(__version__, job.version, "This worker"))
            _run(job, stopping, share)
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, Stopped | RunLocked):
                record_failure(job.folder, told(error), traceback.format_exc())
            if share is not None and not isinstance(error, RunLocked):
                with contextlib.suppress(Exception):  # what went wrong first is what is told
                    share.push(job.folder)
            raise
        if share is not None:
            share.push(job.folder)


def _placed(job: Job) -> Job:
    """With a share a worker needs no folder in common with the sweep: where it cannot have that one, it has its own."""
    if job.share is None:
        return job
    with contextlib.suppress(OSError):
        Path(job.out).mkdir(parents=True, exist_ok=True)
        if os.access(job.out, os.W_OK):
            return job
    return replace(job, out=str(cache_folder() / f"share-{hashlib.sha256(job.share.encode()).hexdigest()[:12]}"))


def _run(job: Job, stopping: Stopping, share: Share | None) -> None:
    """The run itself; waits a while where another process holds it."""
    from .. import experiment
    from ..config import Config
    from ..training import Watcher

    if share is not None:
        share.pull(job.folder)
    with contextlib.suppress(OSError):  # a folder that is read-only, its run being finished
        (job.folder / "failure.json").unlink(missing_ok=True)  # it is tried again: so far it has not failed
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            experiment.run(
                Config.from_json(job.config), job.out, data_root=job.data_root, device=job.device,
                threads=job.threads, watcher=Watcher(stop=stopping.asked), saved=share.push if share else None,
                compiled=job.compiled, contiguous=job.contiguous,
            )
            return
        except RunLocked:
            if time.monotonic() > deadline or stopping.asked():
                raise
            time.sleep(1)


def told(error: BaseException) -> str:
    """What ended a worker, in words that travel to the sweep."""
    from ..training import Stopped

    if isinstance(error, Stopped):
        return SAVED
    return f"{LOCKED}: {error}" if isinstance(error, RunLocked) else f"{type(error).__name__}: {error}"


def blameless(ended: str) -> bool:
    """Whether what was `told` is no fault of the run: it does not count as a try."""
    return ended.startswith((SAVED, LOCKED))


class Handle(Protocol):
    """A job that was started."""

    def ended(self) -> str | None:
        """None while it goes on; then "" if it ended well, or what was `told` of its end."""

    def stop(self) -> None:
        """Ask it to save and end."""

    def wait(self, seconds: float) -> None:
        """For its end, after it was asked; not longer."""


class Engine(Protocol):
    """Starts jobs; `places` is how many at once, also when it is closed."""

    @property
    def places(self) -> int: ...

    def check(self, out: Path, probe: str) -> None:
        """Before the first job: raise BadConfig if the workers have another steadfast or cannot see `out`."""

    def start(self, job: Job) -> Handle: ...

    def close(self) -> None: ...


class Local:
    """One process a run, each with its own threads: two runs of one thread beat one run of two.

    As many at once as there are cores for their threads, and one where they share a GPU."""

    def __init__(self, places: int | None = None, *, threads: int = 1, device: str = "cpu") -> None:
        performance.check_threads(threads)
        on_gpu = performance.device_name(device).startswith("cuda")
        self.places = places or (1 if on_gpu else max(1, performance.cores() // threads))

    def check(self, out: Path, probe: str) -> None:
        pass

    def start(self, job: Job) -> Handle:
        return _Process(job)

    def close(self) -> None:
        pass


class _Process:
    def __init__(self, job: Job) -> None:
        # A fresh interpreter: a fork would inherit torch's threads in whatever state they are.
        context = multiprocessing.get_context("spawn")
        self.hears, tells = context.Pipe(duplex=False)
        self.process = context.Process(target=_silent_work, args=(job, tells))
        self.process.start()
        tells.close()

    def ended(self) -> str | None:
        code = self.process.exitcode
        if code is None or code == 0:
            return None if code is None else ""
        with contextlib.suppress(EOFError, OSError):  # it was killed, and has told nothing
            if self.hears.poll():
                return self.hears.recv_bytes().decode(errors="replace")
        return f"its process ended with {'signal ' + str(-code) if code < 0 else f'code {code}'}"

    def stop(self) -> None:
        if self.process.is_alive():
            self.process.terminate()

    def wait(self, seconds: float) -> None:
        self.process.join(seconds)


def _silent_work(job: Job, tells: Connection) -> None:
    """As `work`; the traceback is in the run folder, not on the terminal, and its last line goes to the sweep."""
    try:
        work(job)
    except Exception as error:
        tells.send_bytes(told(error).encode(errors="replace")[:LONGEST])
        os._exit(1)


def record_failure(folder: Path, error: str, trace: str = "") -> None:
    """Write down what went wrong, where the next sweep finds it; where that cannot be done, the error itself counts."""
    try:
        files.write_json(folder / "failure.json", {"error": error, "traceback": trace})
    except CannotWrite as full:
        warnings.warn(f"A failure ({error}) could not be written down: {full}", stacklevel=2)


def failure_of(folder: Path) -> str | None:
    """What went wrong in a run folder, if something did."""
    try:
        return str(json.loads((folder / "failure.json").read_text())["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def unseen(out: str | Path, who: str) -> str:
    """The complaint about a folder that is not shared."""
    return (
        f"{who} does not see {out}: give --out a folder that all machines share (NFS, Lustre, ...), "
        f"or --share an address such as s3://bucket/runs."
    )


def other_version(theirs: str, ours: str, who: str) -> str:
    """The complaint about a worker with another steadfast."""
    return f"{who} has steadfast {theirs}, the sweep {ours}: install the same on all machines."


def engine(
    name: str, *, places: int | None = None, cpus: float = 1, gpus: float = 0, threads: int = 1, device: str = "cpu"
) -> Engine:
    """`local`, `ray`, `ray:ADDRESS`, `slurm` or `slurm:partition=gpu,time=120`."""
    if not (math.isfinite(cpus) and cpus > 0 and math.isfinite(gpus) and gpus >= 0):
        raise BadConfig(f"A run needs CPUs above 0 and GPUs of 0 or more, not --cpus {cpus} --gpus {gpus}.")
    kind, _, rest = name.partition(":")
    if name == "local":
        if gpus:
            raise BadConfig("--gpus places runs on GPUs, which local does not: leave it out, or use --on ray.")
        return Local(places, threads=threads, device=device)
    if kind == "ray":
        from .on_ray import Ray

        return Ray(rest or None, places=places, cpus=cpus, gpus=gpus)
    if kind == "slurm":
        from .on_slurm import Slurm

        return Slurm(rest, places=places, cpus=cpus, gpus=gpus)
    raise BadConfig(f"There is no engine called {name!r}; choose local, ray, ray:ADDRESS or slurm.")
