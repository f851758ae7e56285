"""Engines that execute a sweep's runs: local processes, a Ray cluster, or Slurm.

An engine starts `work` somewhere and reports its end. Results, progress and failures travel through the run folders.
So every worker must see these folders, or use a `share` to copy them.
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

from ... import __version__, files, hardware
from ...data.places import cache_folder
from ...errors import BadConfig, CannotWrite, RunLocked, Stopped
from ...hardware import Machine
from ..share import Share

if TYPE_CHECKING:
    from ...signals import Stopping

PATIENCE = 120.0  # seconds that a worker waits for a lock; a killed worker may still hold it while it ends
PER_GPU = 4  # runs at once on one GPU
LONGEST = 4000  # bytes of a worker's last message; a pipe buffers this many without a reader
# Messages that begin like this do not count as a failed try:
SAVED = "stopped, and saved"  # the run was asked to stop
LOCKED = "held by another process"  # another process works on the run


@dataclass(frozen=True)
class Job:
    """One run, as plain values that can be sent to any worker."""

    config: dict[str, Any]
    machine: Machine
    version: str = __version__
    name: str = ""  # of the run folder in the machine's `out`
    probe: str = ""  # name of a file that this sweep wrote to `out`; a worker that cannot see it has another folder

    @property
    def folder(self) -> Path:
        return Path(self.machine.out) / self.name


def work(job: Job) -> None:
    """Execute one run in this process; record a failure in the run folder and raise it again."""
    from ...signals import Stopping

    if job.probe and not (Path(job.machine.out) / job.probe).exists():
        raise BadConfig(unseen(job.machine.out, "This worker"))
    address = job.machine.share
    job, share = _placed(job), Share(address) if address else None
    with Stopping() as stopping:
        try:
            if job.version != __version__:
                raise BadConfig(other_version(__version__, job.version, "This worker"))
            _run(job, stopping, share)
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, Stopped | RunLocked):
                record_failure(job.folder, told(error), traceback.format_exc())
            if share is not None and not isinstance(error, RunLocked):
                with contextlib.suppress(Exception):  # report the first error, not this one
                    share.push(job.folder)
            raise
        if share is not None:
            share.push(job.folder)


def _placed(job: Job) -> Job:
    """Return the job with a folder that this worker can write to.

    With a share a worker needs no common folder with the sweep, so it may fall back to its own cache folder."""
    share, out = job.machine.share, job.machine.out
    if share is None:
        return job
    with contextlib.suppress(OSError):
        Path(out).mkdir(parents=True, exist_ok=True)
        if os.access(out, os.W_OK):
            return job
    own = cache_folder() / f"share-{hashlib.sha256(share.encode()).hexdigest()[:12]}"
    return replace(job, machine=replace(job.machine, out=str(own)))


def _run(job: Job, stopping: Stopping, share: Share | None) -> None:
    """Execute the run; wait up to PATIENCE seconds while another process holds its lock."""
    from ...learning.training import Watcher
    from ...runs import experiment
    from ...runs.config import Config

    if share is not None:
        share.pull(job.folder)
    with contextlib.suppress(OSError):  # the folder of a finished run may be read-only
        (job.folder / "failure.json").unlink(missing_ok=True)  # a new try begins without a failure
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            experiment.run(
                Config.from_json(job.config), job.machine, watcher=Watcher(stop=stopping.asked),
                saved=share.push if share else None,
            )
            return
        except RunLocked:
            if time.monotonic() > deadline or stopping.asked():
                raise
            time.sleep(1)


def told(error: BaseException) -> str:
    """Return the message for the sweep about the exception that ended a worker."""
    if isinstance(error, Stopped):
        return SAVED
    return f"{LOCKED}: {error}" if isinstance(error, RunLocked) else f"{type(error).__name__}: {error}"


def blameless(ended: str) -> bool:
    """Return True if the message from `told` is no fault of the run, so that it does not count as a try."""
    return ended.startswith((SAVED, LOCKED))


class Handle(Protocol):
    """A started job."""

    def ended(self) -> str | None:
        """Return None while the job runs, "" if it succeeded, or the message from `told`."""

    def stop(self) -> None:
        """Ask the job to save and end."""

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for the end, after `stop`."""


class Engine(Protocol):
    """Starts jobs. `places` is the number of jobs that run at once; it can be read after `close` too."""

    @property
    def places(self) -> int: ...

    def check(self, out: Path, probe: str) -> None:
        """Raise BadConfig, before the first job, if a worker has another version of holdfast or cannot see `out`."""

    def start(self, job: Job) -> Handle: ...

    def close(self) -> None: ...


class Local:
    """One local process per run: two runs with one thread each are faster than one run with two threads.

    By default it runs as many processes at once as the cores allow. On GPUs it runs PER_GPU on each: one run of a small
    network leaves most of a GPU idle. With `cuda` or `auto` the runs take turns over all GPUs; `cuda:1` is that one."""

    def __init__(self, places: int | None = None, *, threads: int = 1, device: str = "cpu") -> None:
        hardware.check_threads(threads)
        name = hardware.device_name(device)
        self.gpus = [f"cuda:{index}" for index in range(hardware.gpus())] if name == "cuda" else []
        per = PER_GPU * max(1, len(self.gpus)) if name.startswith("cuda") else hardware.cores() // threads
        self.places, self.started = places or max(1, per), 0

    def check(self, out: Path, probe: str) -> None:
        pass

    def start(self, job: Job) -> Handle:
        if self.gpus:
            gpu = self.gpus[self.started % len(self.gpus)]
            job = replace(job, machine=replace(job.machine, device=gpu))
            self.started += 1
        return _Process(job)

    def close(self) -> None:
        pass


class _Process:
    def __init__(self, job: Job) -> None:
        # A new interpreter: a fork would inherit torch's threads in an undefined state.
        context = multiprocessing.get_context("spawn")
        self.hears, tells = context.Pipe(duplex=False)
        self.process = context.Process(target=_silent_work, args=(job, tells))
        self.process.start()
        tells.close()

    def ended(self) -> str | None:
        code = self.process.exitcode
        if code is None or code == 0:
            return None if code is None else ""
        with contextlib.suppress(EOFError, OSError):  # a killed process sent nothing
            if self.hears.poll():
                return self.hears.recv_bytes().decode(errors="replace")
        return f"its process ended with {'signal ' + str(-code) if code < 0 else f'code {code}'}"

    def stop(self) -> None:
        if self.process.is_alive():
            self.process.terminate()

    def wait(self, seconds: float) -> None:
        self.process.join(seconds)


def _silent_work(job: Job, tells: Connection) -> None:
    """Call `work` without printing a traceback: it is in the run folder, and the sweep gets its last line."""
    try:
        work(job)
    except Exception as error:
        tells.send_bytes(told(error).encode(errors="replace")[:LONGEST])
        os._exit(1)


def record_failure(folder: Path, error: str, trace: str = "") -> None:
    """Write a failure into the run folder, where the next sweep finds it; only warn if that fails."""
    try:
        files.write_json(folder / "failure.json", {"error": error, "traceback": trace})
    except CannotWrite as full:
        warnings.warn(f"A failure ({error}) could not be written down: {full}", stacklevel=2)


def failure_of(folder: Path) -> str | None:
    """Return the failure recorded in a run folder, or None."""
    try:
        return str(json.loads((folder / "failure.json").read_text())["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def unseen(out: str | Path, who: str) -> str:
    """Return the error message for a folder that a worker cannot see."""
    return (
        f"{who} does not see {out}: give --out a folder that all machines share (NFS, Lustre, ...), "
        f"or --share an address such as s3://bucket/runs."
    )


def other_version(theirs: str, ours: str, who: str) -> str:
    """Return the error message for a worker with another version of holdfast."""
    return f"{who} has holdfast {theirs}, the sweep has {ours}: install the same version on all machines."


def engine(
    name: str, *, places: int | None = None, cpus: float = 1, gpus: float = 0, machine: Machine | None = None
) -> Engine:
    """Return the engine for `local`, `ray`, `ray:ADDRESS`, `slurm` or `slurm:partition=gpu,time=120`."""
    machine = machine or Machine()
    if not (math.isfinite(cpus) and cpus > 0 and math.isfinite(gpus) and gpus >= 0):
        raise BadConfig(f"A run needs CPUs above 0 and GPUs of 0 or more, not --cpus {cpus} --gpus {gpus}.")
    kind, _, rest = name.partition(":")
    if name == "local":
        if gpus:
            raise BadConfig("--gpus has no effect on local runs: leave it out, or use --on ray.")
        return Local(places, threads=machine.threads or 1, device=machine.device)
    if kind == "ray":
        from .on_ray import Ray

        return Ray(rest or None, places=places, cpus=cpus, gpus=gpus)
    if kind == "slurm":
        from .on_slurm import Slurm

        return Slurm(rest, places=places, cpus=cpus, gpus=gpus)
    raise BadConfig(f"There is no engine called {name!r}; choose local, ray, ray:ADDRESS or slurm.")
