"""A sweep on a Ray cluster. Ray schedules the runs, and restarts them when a worker or a node dies."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

from ... import __version__
from ...errors import BadConfig, RunLocked
from . import Handle, Job, other_version, told, unseen, work

RETRIES = 3  # restarts of a run whose worker or node died; it resumes from its checkpoint
PATIENCE = 120  # seconds for every node to answer the first check


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry from a library
    try:
        import ray
    except ImportError as error:
        raise BadConfig("--on ray needs Ray, which is not installed: pip install 'holdfast[ray]'") from error
    return ray


class Ray:
    """Connects to the cluster at `address`. Without one it uses this machine's cluster, or starts a new one.

    `cpus` and `gpus` are the resources per run; with fractions several runs share one.
    """

    def __init__(
        self, address: str | None = None, *, places: int | None = None, cpus: float = 1, gpus: float = 0
    ) -> None:
        self.ray = ray = _ray()
        self.most, self.cpus, self.gpus, self.fitted = places, cpus, gpus, 0
        self.ours = not ray.is_initialized()
        if self.ours:
            _knock(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise BadConfig(f"{_nobody(address)} ({str(error).splitlines()[0]})") from error
        if not self.places:
            has = {k: v for k, v in ray.cluster_resources().items() if k in ("CPU", "GPU")}
            self.close()
            raise BadConfig(f"A run asks for {cpus:g} CPUs and {gpus:g} GPUs, but the Ray cluster has {has} in all.")
        # A new process per run (max_calls), so that nothing is left over from the previous run.
        self.task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES, max_calls=1)(_work)

    @property
    def places(self) -> int:
        """Return the number the user asked for, else the number that fits the cluster now.

        The user's number may exceed the cluster: an autoscaler grows by what is queued. After `close` the last
        number is returned."""
        if self.most:
            return self.most
        if self.ray.is_initialized():
            has = self.ray.cluster_resources()
            fits = int(has.get("CPU", 0) / self.cpus)
            self.fitted = min(fits, int(has.get("GPU", 0) / self.gpus)) if self.gpus else fits
        return self.fitted

    def check(self, out: Path, probe: str) -> None:
        """Check on every node the version of holdfast and that the probe file is visible."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        def look() -> tuple[str | None, bool]:  # a closure is pickled by value: a node may lack holdfast
            try:
                import holdfast

                version = holdfast.__version__
            except ImportError:
                version = None
            return version, not probe or (Path(str(out)) / probe).exists()

        ask = self.ray.remote(num_cpus=0, max_retries=0)(look)
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        asked = [ask.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote() for node in nodes]
        for node, answer in zip(nodes, asked):
            who = f"The Ray node {node['NodeManagerAddress']}"
            try:
                version, seen = self.ray.get(answer, timeout=PATIENCE)
            except self.ray.exceptions.RayError as error:
                raise BadConfig(
                    f"{who} does not answer: {_first_line(error)}. Is its Python the same as here?"
                ) from error
            if version is None:
                raise BadConfig(f"{who} has no holdfast: install {__version__} there, for the Python that Ray runs.")
            if version != __version__:
                raise BadConfig(other_version(version, __version__, who))
            if not seen:
                raise BadConfig(unseen(out, who))

    def start(self, job: Job) -> Handle:
        return _Task(self.ray, self.task.remote(job))

    def close(self) -> None:
        if self.ours:
            self.ray.shutdown()


def _work(job: Job) -> str:
    from ...errors import Stopped

    try:
        work(job)
        return ""
    except (Stopped, RunLocked) as error:  # returning keeps Ray from restarting the run
        return told(error)


class _Task:
    def __init__(self, ray: Any, reference: Any) -> None:
        self.ray, self.reference = ray, reference

    def ended(self) -> str | None:
        ready, _ = self.ray.wait([self.reference], timeout=0)
        if not ready:
            return None
        try:
            return str(self.ray.get(self.reference))
        except self.ray.exceptions.RayTaskError as error:
            return _first_line(error.cause)
        except self.ray.exceptions.RayError as error:
            return _first_line(error)

    def stop(self) -> None:
        """Interrupt the worker as Ctrl-C would; it saves and ends."""
        self.ray.cancel(self.reference, force=False)

    def wait(self, seconds: float) -> None:
        self.ray.wait([self.reference], timeout=seconds)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _knock(address: str | None) -> None:
    """Raise BadConfig if nothing answers at the address; Ray itself would wait for minutes."""
    where = (address or "").removeprefix("ray://")
    host, colon, port = where.rpartition(":")
    if not colon:
        if address not in (None, "auto", "local"):
            raise BadConfig(f"{address!r} is not an address of a Ray cluster: write it like --on ray:10.0.0.1:6379.")
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, ValueError, OverflowError) as error:
        raise BadConfig(f"{_nobody(address)} ({error})") from error


def _nobody(address: str | None) -> str:
    return (
        f"There is no Ray cluster at {address or 'this machine'}. Start one with `ray start --head` and give its "
        f"address, --on ray:HOST:6379 (ray:ray://HOST:10001 from outside), or use this machine with --on ray."
    )
