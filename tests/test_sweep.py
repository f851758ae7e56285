"""A sweep decides who is tried again, waited for and given up; the engine here is a script of how workers end."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast import files
from holdfast.cli import main as cli
from holdfast.cli import reproduce, watching
from holdfast.errors import BadConfig, CannotWrite, RunLocked
from holdfast.hardware import Machine
from holdfast.runs.config import Config
from holdfast.runs.folder import RunFolder
from holdfast.runs.records import Record
from holdfast.sweeps import engines, sweep
from holdfast.sweeps.engines import LOCKED, SAVED, Handle, Job, failure_of, record_failure
from holdfast.sweeps.share import Share
from holdfast.sweeps.survey import Run, survey
from holdfast.sweeps.sweep import Sweep

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "reproduce.md"
CONFIG = Config("split-digits", backbone="mlp", epochs=1, quick=True).resolved()
Act = Callable[[Job], "str | None"]


class Scripted:
    """Each start takes the next act: what the worker does to its folder, and how it then is said to have ended."""

    places = 2

    def __init__(self, *acts: Act) -> None:
        self.acts, self.started, self.calls = list(acts), 0, []  # type: ignore[var-annotated]

    def check(self, out: Path, probe: str) -> None:
        pass

    def close(self) -> None:
        self.calls.append("close")

    def start(self, job: Job) -> Handle:
        self.started += 1
        return Ending(self.acts.pop(0), job, self.calls)


class Ending:
    def __init__(self, act: Act, job: Job, calls: list[str]) -> None:
        self.act, self.job, self.calls = act, job, calls

    def ended(self) -> str | None:
        return self.act(self.job)

    def stop(self) -> None:
        self.calls.append("stop")

    def wait(self, seconds: float) -> None:
        self.calls.append("wait")


def finishes(job: Job) -> str:
    files.write_record(job.folder / "result.json", {"hash": CONFIG.hash, "seconds": 1.0})
    return ""


def ends(how: str) -> Act:
    return lambda job: how


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "POLL", 0.01)
    monkeypatch.setattr(sweep, "ELSEWHERE", 0.01)


def swept(
    out: Path, on: Scripted, watch: Callable[[Any], None] = lambda runs: None, share: str | None = None, **options: Any
) -> Run:
    (run,) = survey([CONFIG], out)
    Sweep([run], Machine(out=str(out), share=share), on, **options).run(watch)
    return run


def job_in(out: Path, share: str | None = None, **changes: Any) -> Job:
    machine = Machine(out=str(out), device="cpu", threads=1, share=share)
    return Job(CONFIG.to_json(), machine, name=CONFIG.name, **changes)


def test_records_are_copied_as_each_run_ends_not_when_all_have(tmp_path: Path) -> None:
    records, there = tmp_path / "records", []

    def look(runs: Any) -> None:
        there.append(sorted(path.name for path in records.glob("*")))

    copied = lambda run: sweep.collect([run], records)  # noqa: E731
    run = swept(tmp_path, Scripted(finishes), finished=copied, watch=look)
    assert there[0] == [f"{run.config.name}.json"]  # at the first look after it, which is in the sweep
    assert (records / there[0][0]).read_bytes() == run.folder.result.read_bytes()


def test_a_recorded_run_is_done_and_its_record_stays_as_it_is(tmp_path: Path) -> None:
    run = swept(tmp_path / "made", Scripted(finishes))
    sweep.collect([run], results := tmp_path / "records")
    record = Record("a record", CONFIG, run.result or {})
    here, other = survey([CONFIG, replace(CONFIG, seed=7)], tmp_path / "empty", [record])
    assert (here.state, other.state) == ("done", "missing")
    assert here.result == run.result
    sweep.collect([here, other], results)  # nothing to copy: the run has no folder here
    assert [path.name for path in results.iterdir()] == [f"{CONFIG.name}.json"]


# Tries.


def test_what_keeps_dying_is_given_up_and_says_why(tmp_path: Path) -> None:
    run = swept(tmp_path, on := Scripted(ends("OSError: no space"), ends("OSError: no space")))
    assert (run.state, run.note, on.started) == ("failed", "OSError: no space", sweep.TRIES)
    assert failure_of(run.folder.path) == "OSError: no space"


@pytest.mark.parametrize("how", [SAVED, f"{LOCKED}: process 7 on n1 is working on it"])
def test_what_was_saved_or_held_elsewhere_is_no_try(how: str, tmp_path: Path) -> None:
    run = swept(tmp_path, on := Scripted(*[ends(how)] * 5, ends("its process ended with signal 9"), finishes))
    assert (run.state, run.tries, on.started) == ("done", 2, 7)


def test_a_retry_takes_the_failure_away_before_it_starts(tmp_path: Path) -> None:
    there = Share(f"file://{tmp_path / 'there'}")
    (tmp_path / "there" / CONFIG.name).mkdir(parents=True)
    (tmp_path / "there" / CONFIG.name / "failure.json").write_text('{"error": "of before"}')
    record_failure(tmp_path / "out" / CONFIG.name, "of before")
    seen: list[str | None] = []

    def looks_then_finishes(job: Job) -> str:
        there.pull(job.folder)
        seen.append(failure_of(job.folder))
        finishes(job)
        there.push(job.folder)
        return ""

    run = swept(tmp_path / "out", Scripted(looks_then_finishes), retry_failed=True, share=there.address)
    assert (run.state, seen) == ("done", [None])


# Two sweeps on one folder.


def test_what_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / CONFIG.name)
    held, seen = folder.lock(), []

    def watch(runs: Any) -> None:
        seen.append((runs[0].state, runs[0].note))
        if len(seen) == 3:
            finishes(job_in(tmp_path))
            held.__exit__(None, None, None)

    run = swept(tmp_path, on := Scripted(), watch=watch)
    assert seen[0][0] == "running" and re.match(r"process \d+ on ", seen[0][1])
    assert (run.state, on.started) == ("done", 0)


def test_what_another_process_leaves_undone_is_taken_over(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / CONFIG.name)
    held: list[Any] = []

    def meets_another(job: Job) -> str:
        held.append(folder.lock())
        return "RunLocked, told in other words"

    def watch(runs: Any) -> None:
        if held and runs[0].state == "running":
            held.pop().__exit__(None, None, None)

    run = swept(tmp_path, on := Scripted(meets_another, finishes), watch=watch)
    assert (run.state, run.tries, on.started) == ("done", 1, 2)


@pytest.mark.slow
def test_a_worker_tells_what_ended_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing can be written down; and nothing is, of a lock."""
    (tmp_path / "file").touch()
    local = engines.Local(1).start(job_in(tmp_path / "file"))
    local.wait(300)
    assert re.match(f"CannotWrite: {tmp_path}/file/.* cannot be written", str(local.ended()))
    assert engines.told(RunLocked("process 7 is working on it")) == f"{LOCKED}: process 7 is working on it"


# The folders.


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/nope"])
def test_a_folder_that_cannot_be_made_is_said_with_the_way_on(out: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotWrite, match=r"cannot be written: .*make the folder writable"):
        swept(tmp_path / out, Scripted())


@pytest.mark.slow
def test_a_worker_with_a_share_has_a_folder_of_its_own_where_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(engines, "cache_folder", lambda: tmp_path / "cache")
    job = job_in(tmp_path / "file" / "of the driver")
    with pytest.raises(CannotWrite), pytest.warns(UserWarning, match="A failure .* could not be written down"):
        engines.work(job)  # the error of the run, not that of writing it down
    there = f"file://{tmp_path / 'there'}"
    engines.work(job_in(tmp_path / "file" / "of the driver", share=there))
    assert (tmp_path / "there" / CONFIG.name / "result.json").exists()
    (own,) = (tmp_path / "cache").iterdir()
    assert own.name.startswith("share-") and (own / CONFIG.name / "result.json").exists()


def test_an_error_of_the_share_does_not_hide_the_runs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: Share, folder: Path) -> None:
        raise OSError("the network is gone")

    monkeypatch.setattr(Share, "push", gone)
    there = f"file://{tmp_path / 'there'}"
    job = job_in(tmp_path, share=there, version="0.0.1")
    with pytest.raises(BadConfig, match="install the same"):
        engines.work(job)


def test_the_memory_of_a_process_is_no_share() -> None:
    with pytest.raises(BadConfig, match="memory of one process"):
        Share("memory://runs")


# How it ends, and what is said meanwhile.


def test_all_workers_are_asked_to_stop_before_any_is_waited_for(tmp_path: Path) -> None:
    runs = survey([CONFIG, Config("split-digits", seed=1)], tmp_path)
    on, turns = Scripted(lambda job: None, lambda job: None), iter([False, False, True])
    Sweep(runs, Machine(out=str(tmp_path)), on).run(stop=lambda: next(turns))
    assert on.calls == ["stop", "stop", "wait", "wait", "close"]
    assert [(run.state, run.note) for run in runs] == [("partial", "stopped")] * 2


@pytest.fixture
def commanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """`holdfast reproduce` of the one run, by a script, not on a terminal."""
    monkeypatch.setattr(reproduce, "configs_of", lambda *wanted: [CONFIG])

    def command(on: Scripted, *words: str) -> Any:
        monkeypatch.setattr(engines, "engine", lambda name, **options: on)
        return CliRunner().invoke(cli.app, ["reproduce", "table1", "--out", str(tmp_path), *words])

    yield command


def test_a_log_has_a_line_for_every_run_that_ends_and_now_and_then(
    commanded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, turns = iter(range(0, 10_000, 200)), iter([None, None, None, finishes])
    monkeypatch.setattr(watching, "monotonic", lambda: next(clock))
    answer = commanded(Scripted(lambda job: finishes(job) if next(turns) else None))
    assert answer.exit_code == 0, answer.output
    said = [line.split(";")[0] for line in answer.output.splitlines()]
    assert said[:2] == ["1 runs: 1 running"] * 2, "at once, and 400 seconds later"
    assert said[2:] == ["1 runs: 1 done"] * 2, "at the end of the run, and of the sweep"


def test_an_error_begins_a_line_of_its_own(commanded: Callable[..., Any]) -> None:
    class Broken(Scripted):
        def check(self, out: Path, probe: str) -> None:
            raise BadConfig("no Slurm here")

    answer = commanded(Broken())
    assert isinstance(answer.exception, BadConfig) and (not answer.output or answer.output.endswith("\n"))


def test_a_sweep_that_ends_incomplete_exits_with_1(
    commanded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sweep, "run", lambda *args, **options: None)
    answer = commanded(Scripted())
    assert answer.exit_code == 1 and f"Not finished: {CONFIG.name}" in answer.output


def test_a_note_is_not_taken_for_markup(commanded: Callable[..., Any]) -> None:
    how = "BadConfig: pip install 'holdfast[timm]' [/]"
    answer = commanded(Scripted(ends(how), ends(how)))
    assert answer.exit_code == 1 and f"{how}\n" in answer.output, answer.exception


def test_the_page_counts_the_runs_that_reproduce_all_lists(tmp_path: Path) -> None:
    runs = survey(reproduce.configs_of("all", 10, False), tmp_path)
    count = collections.Counter(re.sub("cifar.*", "cifar", run.config.benchmark) for run in runs)
    mnist = f"{count['split-mnist']} split-mnist, {count['permuted-mnist']} permuted-mnist"
    told = f"{len(runs)} runs (10 seeds): {mnist}, {count['split-cifar']} CIFAR"
    assert told in " ".join(PAGE.read_text().split())
