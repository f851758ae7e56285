"""A sweep on Slurm through submitit: one batch job per run, queued, requeued and cancelled by Slurm."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

from ...errors import BadConfig, RunLocked
from . import Handle, Job, blameless, told, work

QUEUED = 256  # default number of jobs submitted at once; Slurm decides how many of them run
HOURS = 24  # default time limit per job; a longer run is requeued and resumes
REQUEUES = 20


class Slurm:
    """Submits runs with sbatch's own settings, such as "partition=gpu,account=lab,time=120".

    Environment variables such as SBATCH_PARTITION work too."""

    def __init__(
        self, settings: str = "", *, places: int | None = None, cpus: float = 1, gpus: float = 0,
        cluster: str = "slurm",
    ) -> None:
        try:
            import submitit
        except ImportError as error:
            raise BadConfig(
                "--on slurm needs submitit, which is not installed: pip install 'holdfast[slurm]'"
            ) from error
        if gpus != int(gpus):
            raise BadConfig(
                f"--gpus {gpus:g}: Slurm gives whole GPUs. Where yours shares them by shards use "
                f"--on slurm:gres=shard:1 without --gpus; or start Ray in an allocation and use --on ray."
            )
        self.submitit, self.cluster = submitit, cluster
        self.places = places or QUEUED
        self.cpus, self.gpus, self.settings = math.ceil(cpus), int(gpus), _settings(settings)
        limit = self.settings.pop("time", None)  # submitit needs it to distinguish timeouts from preemption
        self.minutes = HOURS * 60 if limit is None else _minutes(limit)
        self.executor: Any = None

    def check(self, out: Path, probe: str) -> None:
        """Raise BadConfig if this machine has no sbatch; each job checks its folder when it starts."""
        try:
            options = {} if self.cluster == "local" else {"slurm_max_num_timeout": REQUEUES}
            self.executor = self.submitit.AutoExecutor(folder=out / ".slurm", cluster=self.cluster, **options)
        except RuntimeError as error:
            raise BadConfig(
                f"There is no Slurm here ({error}); run this on a login node, where sbatch works."
            ) from error
        self.executor.update_parameters(
            name="holdfast", timeout_min=self.minutes, cpus_per_task=self.cpus, gpus_per_node=self.gpus, nodes=1,
            tasks_per_node=1, slurm_additional_parameters=self.settings,
        )

    def start(self, job: Job) -> Handle:
        return _Batch(self.executor.submit(Work(), job), job)

    def close(self) -> None:
        pass


class Work:
    """`work` as a callable that submitit can requeue after preemption or a timeout."""

    def __call__(self, job: Job) -> None:
        from ...errors import Stopped

        try:
            work(job)
        except (Stopped, RunLocked) as error:
            print(told(error), file=sys.stderr, flush=True)  # the sweep reads the log's last line

    def checkpoint(self, job: Job) -> Any:
        """Requeue the job; it resumes from its folder's checkpoint and repeats at most one epoch, to the same bits."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(Work(), job)


class _Batch:
    """A submitted job. Its pickled result is never read; the run folder holds the result."""

    def __init__(self, submitted: Any, job: Job) -> None:
        self.submitted, self.job = submitted, job

    def ended(self) -> str | None:
        if not self.submitted.done():
            return None
        if (self.job.folder / "result.json").exists():
            return ""
        log = self.submitted.paths.stderr
        how = f"the Slurm job {self.submitted.job_id} ended as {self.submitted.state}"
        if not log.exists():
            return (
                f"{how} and left no log {log}: do the nodes see this folder? "
                f"Give --out one that all machines share (NFS, Lustre, ...)."
            )
        lines = log.read_text(errors="replace").strip().splitlines()
        if not lines:
            return f"{how} and wrote nothing into its log {log}: `sacct -j {self.submitted.job_id}` may say why."
        return lines[-1] if blameless(lines[-1]) else f"{how}: {lines[-1]} (more in {log})"

    def stop(self) -> None:
        """Cancel the job: Slurm sends SIGTERM, at which the run saves, and SIGKILL half a minute later."""
        self.submitted.cancel(check=False)

    def wait(self, seconds: float) -> None:
        """Return at once: Slurm ends the job by itself."""


def _settings(text: str) -> dict[str, str]:
    """Parse comma-separated NAME=VALUE pairs; commas inside brackets, as in exclude=n[1-3,7], belong to the value."""
    found = {}
    for word in filter(None, re.split(r",(?![^\[(]*[\])])", text)):
        name, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"[a-z][a-z-]*", name) or not re.fullmatch(r"[\w.:/@%+|&*()\[\],-]+", value):
            raise BadConfig(f"{word!r} is not an sbatch setting; write it like --on slurm:partition=gpu,time=120.")
        found[name] = value
    return found


def _minutes(text: str) -> int:
    """Parse a time limit as sbatch does and return minutes, rounded up: minutes, hours:minutes:seconds, days-hours."""
    days, dash, rest = text.rpartition("-")
    if re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        parts = [int(part) for part in rest.split(":")]
        hours, minutes, seconds = ([*parts, 0, 0] if dash or len(parts) == 3 else [0, *parts, 0])[:3]
        if limit := math.ceil((int(days or 0) * 24 + hours) * 60 + minutes + seconds / 60):
            return limit
    raise BadConfig(f"time={text} is not a time limit; write minutes, hours:minutes:seconds or days-hours (2-12).")
