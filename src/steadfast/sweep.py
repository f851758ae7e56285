"""Run many configs: what is done is skipped, what was cut off resumes, what fails does not stop the rest."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import Any

import filelock

from . import benchmarks, data, files
from .config import Config
from .engines import Engine, Handle, Job, blameless, failure_of, record_failure
from .errors import BadData, BadFile, CannotRead
from .own_data import check_same
from .run_folder import RunFolder
from .share import SMALL, Share, is_address

POLL = 0.5  # seconds
REFRESH = 15.0  # seconds between two looks at a share
HELD = 5.0  # seconds between two looks at what other processes hold
ENDING = 60.0  # seconds that workers have to save and end
TRIES = 2  # a worker that was killed is tried once more

# Seconds of one core for a full-protocol run of replay, measured on a 2-core machine; only a first guess.
GUESS = {
    "split-digits": 40, "split-mnist": 650, "split-fashion-mnist": 650, "permuted-mnist": 6500,
    "split-cifar10": 12000, "split-cifar100": 12000,
}


@dataclass
class Run:
    """One config of a sweep and how it stands."""

    config: Config
    folder: RunFolder
    state: str = "missing"  # missing, partial, running, failed, done
    note: str = ""
    result: dict[str, Any] | None = None
    tries: int = 0
    handle: Handle | None = field(default=None, repr=False)

    @property
    def share(self) -> float:
        """How much of it is done, 0 to 1, as its metrics file says."""
        if self.state == "done":
            return 1.0
        try:
            lines = self.folder.metrics.read_text(errors="replace").splitlines()
        except OSError:
            return 0.0
        epochs = sum('"epoch"' in line for line in lines)
        return min(1.0, epochs / (self.config.phases() * (self.config.epochs or 1)))


def survey(configs: Iterable[Config], out: Path) -> list[Run]:
    """How each config stands, without touching anything; equal configs count once."""
    runs: dict[str, Run] = {}
    now = cache(lambda name: data.fingerprint(benchmarks.find(name).dataset))  # the same data are read once
    for config in configs:
        full = config.resolved()
        if full.name not in runs:
            run = runs[full.name] = _look(Run(full, RunFolder(out / full.name)))
            anew = f"start it anew: {full.command()} --fresh"
            try:
                check_same(run.folder.result, (run.result or {}).get("data"), partial(now, full.benchmark), anew)
            except BadData as error:
                run.state, run.note, run.result = "failed", str(error), None
    return list(runs.values())


def _look(run: Run) -> Run:
    run.state, run.note = "missing", ""
    try:
        run.result = run.folder.read_result()
    except (BadFile, CannotRead) as error:
        run.state, run.note = "failed", str(error)
        return run
    if run.result is not None:
        run.state = "done"
    elif _locked(run.folder):
        run.state, run.note = "running", run.folder.holder()
    elif (failure := failure_of(run.folder.path)) is not None:
        run.state, run.note = "failed", failure
    elif run.folder.checkpoints():
        run.state = "partial"
    return run


def _locked(folder: RunFolder) -> bool:
    """Whether a process works on it now."""
    if not (folder.path / ".lock").exists():
        return False
    try:
        with filelock.FileLock(folder.path / ".lock", timeout=0):
            return False
    except filelock.Timeout:
        return True


def estimate(run: Run, known: Sequence[Run]) -> float:
    """Seconds of one worker this run still needs: from runs like it, else from its benchmark, else a guess."""

    def like(*names: str) -> list[float]:
        wanted = [getattr(run.config, name) for name in names]
        same = [r for r in known if r.result and [getattr(r.config, name) for name in names] == wanted]
        return [r.result["seconds"] for r in same if r.result]

    seconds = like("benchmark", "method", "memory", "epochs", "quick") or like("benchmark", "method", "epochs", "quick")
    if seconds:
        whole = mean(seconds)
    else:
        full = benchmarks.find(run.config.benchmark).epochs
        scale = (run.config.epochs or full) / full * (0.1 if run.config.quick else 1)
        whole = GUESS.get(run.config.benchmark, 600) * scale * passes(run.config)
    return whole * (1 - run.share)


def passes(config: Config) -> float:
    """How many images pass through the network, beside replay, whose every batch is half remembered ones."""
    if config.method == "replay":
        return 1.25 if config.distill == "features" else 1.0  # the frozen network sees the remembered half too
    if config.method == "gem":
        return 0.5 * (1 + (config.memory or 0) / config.batch)  # all of the memory in every step
    return 0.6  # new images only, and a penalty


def time_left(runs: Sequence[Run], places: int) -> float:
    """Seconds until all is done, if nothing else uses the machine."""
    open_runs = [estimate(run, runs) for run in runs if run.state in ("missing", "partial", "running")]
    return max([sum(open_runs) / max(1, places), *open_runs], default=0.0)


def sweep(
    runs: Sequence[Run],
    out: Path,
    engine: Engine,
    *,
    data_root: Path | None = None,
    device: str = "auto",
    threads: int = 1,
    compiled: bool = False,
    contiguous: bool = False,
    retry_failed: bool = False,
    share: Share | None = None,
    finished: Callable[[Run], None] = lambda run: None,
    watch: Callable[[Sequence[Run]], None] = lambda runs: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Do what is missing, as many at once as the engine has places; returns when nothing is left to do.

    `finished` is told of each run that its worker has done. What another process works on is waited for, and taken
    over if that one leaves it undone."""
    elsewhere = [r for r in runs if r.state == "running"]
    waiting = [r for r in runs if r.state in ("missing", "partial") or (r.state == "failed" and retry_failed)]
    active: list[Run] = []
    root = None if data_root is None else str(Path(data_root).resolve())
    probe = _probe(out := out.resolve())
    looked = asked = time.monotonic()
    try:
        engine.check(out, "" if share else probe.name)
        while (waiting or active or elsewhere) and not stop():
            while waiting and len(active) < engine.places:
                run = waiting.pop(0)
                if run.state == "failed":
                    _forget_failure(run, share)
                job = Job(
                    run.config.to_json(), str(out), root, device, threads, name=run.folder.path.name,
                    probe="" if share else probe.name, share=share.address if share else None,
                    compiled=compiled, contiguous=contiguous,
                )
                run.handle, run.tries = engine.start(job), run.tries + 1
                run.state, run.note = "running", ""
                active.append(run)
            for run in list(active):
                if run.handle is not None and (ended := run.handle.ended()) is not None:
                    active.remove(run)
                    _settle(run, ended, share)
                    run.tries -= run.state == "running" or blameless(ended)
                    if run.state == "done":
                        finished(run)
                    elif run.state == "running":
                        elsewhere.append(run)
                    elif run.state == "partial" and run.tries < TRIES:
                        waiting.append(run)
                    elif run.state == "partial":
                        run.state = "failed"
                        record_failure(run.folder.path, run.note)
            if elsewhere and time.monotonic() - asked > HELD:
                waiting += [run for run in elsewhere if _look(run).state in ("missing", "partial")]
                elsewhere = [run for run in elsewhere if run.state == "running"]
                asked = time.monotonic()
            if share is not None and time.monotonic() - looked > REFRESH:
                for run in active:
                    share.pull(run.folder.path, SMALL)
                looked = time.monotonic()
            watch(runs)
            time.sleep(POLL)
    finally:
        handles = [run.handle for run in active if run.handle is not None]
        for handle in handles:  # all are asked before any is waited for
            handle.stop()
        deadline = time.monotonic() + ENDING
        for run, handle in zip(active, handles):
            handle.wait(max(0.0, deadline - time.monotonic()))
            _settle(run, "stopped", share)
            if run.state == "running":  # it is still at it
                run.state, run.note = "partial", "stopped"
        watch(runs)
        engine.close()
        probe.unlink(missing_ok=True)


def _probe(out: Path) -> Path:
    """A file in `out` by which workers see that they see it."""
    probe = out / f".probe-{uuid.uuid4().hex}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe.touch()
    except OSError as error:
        raise files.cannot_write(out, error) from error
    return probe


def _forget_failure(run: Run, share: Share | None) -> None:
    """It is tried again: whoever looks meanwhile must not find the failure of before."""
    (run.folder.path / "failure.json").unlink(missing_ok=True)
    if share is not None:
        share.remove(run.folder.path, "failure.json")


def _settle(run: Run, ended: str, share: Share | None) -> None:
    """A worker has ended: look at what it left."""
    if share is not None:
        share.pull(run.folder.path, SMALL)
    run.handle = None
    if _look(run).state in ("missing", "partial"):  # it left no result and no failure: it was killed
        run.state, run.note = "partial", ended or "it ended without a result"


def collect(runs: Iterable[Run], records: Path | str) -> None:
    """Copy each finished run's result into a folder of records, from which the report is built; or to an address."""
    put({f"{run.config.name}.json": run.folder.result for run in runs if run.result is not None}, records)


def put(named: Mapping[str, Path], records: Path | str) -> None:
    """Copy files by name into a folder or to an address, those that are not there already."""
    if is_address(str(records)):
        return Share(str(records)).put(dict(named))
    for name, source in named.items():
        path, content = Path(records) / name, source.read_bytes()
        if not path.exists() or path.read_bytes() != content:
            files.write_whole(path, content)
