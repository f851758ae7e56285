"""A sweep gives the same runs wherever they happen, and loses none when something dies."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from holdfast import __version__, files, hardware
from holdfast.cli import main as cli
from holdfast.errors import BadConfig, RunLocked, Stopped
from holdfast.hardware import Machine
from holdfast.runs import experiment
from holdfast.runs.config import Config
from holdfast.runs.folder import RunFolder
from holdfast.sweeps import engines, sweep
from holdfast.sweeps.engines import Job, Local, engine, failure_of, work
from holdfast.sweeps.share import SMALL, Share
from holdfast.sweeps.survey import Run, survey
from holdfast.sweeps.sweep import Sweep

NODE = {"include_dashboard": False, "object_store_memory": 80_000_000}  # of a Ray cluster
SMALL_RUN: dict[str, Any] = {"backbone": "mlp", "epochs": 1, "quick": True}


def config(seed: int = 0, **changes: Any) -> Config:
    return Config("split-digits", **{**SMALL_RUN, "seed": seed, **changes}).resolved()


def outcome(run: Run) -> dict[str, Any]:
    """What a run leaves that must not depend on where it ran."""
    assert run.result is not None, f"{run.config.name}: {run.state}, {run.note}"
    tensors, _ = files.read_tensors(run.folder.checkpoints()[0])
    return {"accuracy_matrix": run.result["accuracy_matrix"], "drift": run.result["drift"], **tensors}


def assert_same(one: Run, other: Run) -> None:
    """Equal accuracies and, to the last bit, equal weights, optimizer, memory and generator."""
    a, b = outcome(one), outcome(other)
    assert a.keys() == b.keys()
    for name, value in a.items():
        same = torch.equal(value, b[name]) if isinstance(value, torch.Tensor) else value == b[name]
        assert same, f"{one.config.name}: {name} differs"


def swept(configs: Sequence[Config], out: Path, on: engines.Engine, **options: Any) -> list[Run]:
    runs = survey(configs, out)
    Sweep(runs, machine_at(out), on, **options).run()
    return runs


def machine_at(out: Path, share: str | None = None) -> Machine:
    return Machine(out=str(out), device="cpu", threads=1, share=share)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Run]:
    """Three seeds in this very process: what every engine has to arrive at."""
    out = tmp_path_factory.mktemp("undisturbed")
    for seed in range(3):
        experiment.run(config(seed), machine_at(out))
    return {run.config.seed: run for run in survey([config(seed) for seed in range(3)], out)}


# The local pool.


def test_there_are_as_many_places_as_cores_for_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "cores", lambda: 8)
    assert [Local(threads=threads).places for threads in (1, 2, 3, 8, 16)] == [8, 4, 2, 1, 1]
    assert Local(5, threads=2).places == 5  # as asked
    assert Local(device="cuda:1").places == 4 and Local(3, device="cuda").places == 3
    assert isinstance(made := engine("local", machine=Machine(threads=4)), Local) and made.places == 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Local(device="auto").places == 8
    with pytest.raises(BadConfig, match="threads is 1000, on 8 cores"):
        Local(threads=1000)


def test_runs_take_turns_over_all_gpus_unless_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(engines, "_Process", lambda job: job.machine.device)
    wanted = {"cuda": ["cuda:0", "cuda:1", "cuda:0"], "cuda:1": ["cuda:1"] * 3, "cpu": ["cpu"] * 3}
    for device, expected in wanted.items():
        local = Local(device=device)
        assert [local.start(Job({}, Machine(device=device))) for _ in range(3)] == expected


@pytest.mark.slow
def test_a_killed_worker_is_tried_again_and_ends_with_the_same_bits(
    tmp_path: Path, undisturbed: dict[int, Run]
) -> None:
    runs = survey([config(0)], tmp_path)
    killed: list[int] = []

    def kill_in_the_middle(runs: Sequence[Run]) -> None:
        process = getattr(runs[0].handle, "process", None)
        if not killed and process is not None and runs[0].folder.checkpoints():
            os.kill(process.pid, signal.SIGKILL)
            killed.append(process.pid)

    old, sweep.POLL = sweep.POLL, 0.01
    try:
        Sweep(runs, machine_at(tmp_path), Local(1)).run(kill_in_the_middle)
    finally:
        sweep.POLL = old
    assert killed and runs[0].tries == 2
    assert_same(runs[0], undisturbed[0])


@pytest.mark.slow
def test_a_failing_run_is_recorded_and_does_not_stop_the_rest(
    tmp_path: Path, undisturbed: dict[int, Run]
) -> None:
    bad = config(0, lr=1e30)  # the loss is not finite after the first epoch
    failing, good = swept([bad, config(1)], tmp_path, Local(2))
    assert failing.state == "failed" and "LossNotFinite" in failing.note
    record = json.loads((failing.folder.path / "failure.json").read_text())
    assert "Traceback" in record["traceback"] and "LossNotFinite" in record["error"]
    assert_same(good, undisturbed[1])
    # It is left alone, until it is asked for; what caused it being gone, it is done.
    (again,) = swept([bad], tmp_path, Local(1))
    assert again.state == "failed" and again.tries == 0
    files.write_json(failing.folder.path / "failure.json", {"error": "of a machine that is mended"})
    (retried,) = swept([bad], tmp_path, Local(1), retry_failed=True)
    assert retried.tries == 1 and "LossNotFinite" in retried.note


def test_a_success_takes_the_old_failure_away(tmp_path: Path, undisturbed: dict[int, Run]) -> None:
    job = make_job(config(0), tmp_path)
    engines.record_failure(job.folder, "a full disk")
    assert failure_of(job.folder) == "a full disk"
    work(job)
    assert failure_of(job.folder) is None
    assert_same(survey([config(0)], tmp_path)[0], undisturbed[0])


# What is refused, at once and with the remedy.


def make_job(config: Config, out: Path, share: str | None = None, **changes: Any) -> Job:
    return Job(config.to_json(), machine_at(out, share), name=config.name, **changes)


def test_a_worker_with_another_version_says_so(tmp_path: Path) -> None:
    job = make_job(config(), tmp_path, version="0.0.1")
    with pytest.raises(BadConfig, match=f"holdfast {__version__}, the sweep has 0.0.1: install the same"):
        work(job)
    assert "install the same" in str(failure_of(job.folder))


def test_a_worker_that_does_not_see_the_folder_says_so_and_makes_none(tmp_path: Path) -> None:
    job = make_job(config(), tmp_path / "elsewhere", probe=".probe-1")
    with pytest.raises(BadConfig, match=r"does not see .*elsewhere: give --out a folder that all machines share"):
        work(job)
    assert not (tmp_path / "elsewhere").exists()


def test_a_held_run_names_its_holder_and_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "PATIENCE", 0.0)
    job = make_job(config(), tmp_path)
    with RunFolder(job.folder).lock(), pytest.raises(RunLocked, match=f"process {os.getpid()} on .*delete"):
        work(job)
    assert failure_of(job.folder) is None


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("moon", {}, "choose local, ray, ray:ADDRESS or slurm"),
        ("local", {"gpus": 0.5}, "--on ray"),
        ("local", {"cpus": 0}, "CPUs above 0"),
        ("local", {"gpus": float("nan")}, "GPUs of 0 or more"),
    ],
)
def test_wrong_engines_are_refused(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(BadConfig, match=told):
        engine(name, **options)


@pytest.mark.parametrize(("name", "module", "extra"), [("ray", "ray", "ray"), ("slurm", "submitit", "slurm")])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    name: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadConfig, match=rf"pip install 'holdfast\[{extra}\]'"):
        engine(name)


# A share: machines without a common folder.


def test_a_run_goes_on_elsewhere_through_a_share(tmp_path: Path, undisturbed: dict[int, Run]) -> None:
    there = f"file://{tmp_path / 'there'}"
    Share(there).check()
    job = make_job(config(0), tmp_path / "first", share=there)
    stop_after = iter([False] * 15 + [True] * 10)  # a few tasks, then it is stopped
    real = experiment.run

    def cut_short(*args: Any, watcher: Any, **kwargs: Any) -> Any:
        watcher.stop = lambda: next(stop_after)
        return real(*args, watcher=watcher, **kwargs)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(experiment, "run", cut_short)
        work(job)
    assert list((tmp_path / "there" / job.name).glob("checkpoint-*"))
    work(make_job(config(0), tmp_path / "second", share=there))
    Share(there).pull(tmp_path / "driver" / job.name, SMALL)
    (run,) = survey([config(0)], tmp_path / "driver")
    assert run.state == "done"
    assert_same(survey([config(0)], tmp_path / "second")[0], undisturbed[0])


def test_records_go_to_an_address(tmp_path: Path, undisturbed: dict[int, Run]) -> None:
    sweep.collect(undisturbed.values(), f"file://{tmp_path / 'records'}")
    names = {path.name for path in (tmp_path / "records").iterdir()}
    assert names == {f"{run.config.name}.json" for run in undisturbed.values()}


def test_an_address_without_a_driver_or_a_writer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="cannot be used"):
        Share("nosuch://bucket/runs")
    (tmp_path / "file").touch()
    with pytest.raises(BadConfig, match="cannot be written"):
        Share(f"file://{tmp_path / 'file' / 'runs'}").check()


# Slurm.


@pytest.mark.slow
def test_submitit_does_the_same_runs(tmp_path: Path, undisturbed: dict[int, Run]) -> None:
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    from holdfast.sweeps.engines.on_slurm import Slurm

    good, failing = swept([config(0), config(0, lr=1e30)], tmp_path, Slurm(cluster="local"))
    assert_same(good, undisturbed[0])
    assert failing.state == "failed" and "LossNotFinite" in failing.note


@pytest.mark.slow
def test_a_slurm_job_that_is_preempted_is_submitted_again_and_that_is_no_try(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    from holdfast.sweeps.engines.on_slurm import Slurm

    runs, preempted = survey([config(0, epochs=5)], tmp_path), []

    def preempt(runs: Sequence[Run]) -> None:
        """SIGTERM to the process that holds the run, as often as there are tries."""
        words = runs[0].folder.holder().split()
        if runs[0].folder.checkpoints() and len(preempted) < sweep.TRIES and words[1] not in preempted:
            preempted.append(words[1])
            os.kill(int(words[1]), signal.SIGTERM)

    old, sweep.POLL = sweep.POLL, 0.05
    try:
        Sweep(runs, machine_at(tmp_path), Slurm(cluster="local")).run(preempt)
    finally:
        sweep.POLL = old
    experiment.run(config(0, epochs=5), machine_at(tmp_path / "whole"))
    assert len(preempted) == sweep.TRIES and runs[0].tries == 1
    assert_same(runs[0], survey([config(0, epochs=5)], tmp_path / "whole")[0])


def test_what_a_slurm_job_left_in_its_log_is_told(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    from holdfast.sweeps.engines.on_slurm import _Batch

    log = tmp_path / "7.err"
    submitted = SimpleNamespace(
        job_id="7", state="COMPLETED", done=lambda: True, paths=SimpleNamespace(stderr=log)
    )
    batch = _Batch(submitted, make_job(config(), tmp_path))
    assert "left no log" in str(batch.ended()) and "do the nodes see this folder" in str(batch.ended())
    log.write_text("\n")
    assert "wrote nothing into its log" in str(batch.ended()) and "do the nodes see" not in str(batch.ended())
    log.write_text("Traceback\nOSError: no space\n")
    assert "ended as COMPLETED: OSError: no space (more in" in str(batch.ended())
    log.write_text(f"a warning\n{engines.SAVED}\n")
    assert batch.ended() == engines.SAVED


def test_the_batch_script_asks_slurm_for_what_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    for name, line in {"srun": "true", "sbatch": "echo Submitted batch job 7", "sacct": "true"}.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    settings = "partition=gpu,account=lab,time=2-12:30,constraint=a100|h100,exclude=n[1-3,7],nodelist=m1"
    slurm = engine(f"slurm:{settings}", cpus=1.5, gpus=1)
    slurm.check(tmp_path, "")
    slurm.start(make_job(config(), tmp_path))
    script = tmp_path / ".slurm" / "7_submission.sh"
    lines = script.read_text().splitlines()
    wanted = ["partition=gpu", "account=lab", f"time={60 * 60 + 30}", "cpus-per-task=2", "gpus-per-node=1",
              "ntasks-per-node=1", "constraint='a100|h100'", "exclude='n[1-3,7]'", "nodelist=m1"]
    for line in wanted:
        assert f"#SBATCH --{line}" in lines, "\n".join(lines)
    assert sum(line.startswith("#SBATCH --time") for line in lines) == 1
    assert slurm.executor._executor.parameters["time"] == 60 * 60 + 30, "by which submitit tells out of time"  # type: ignore
    assert any(line.startswith("srun ") and "submitit.core._submit" in line for line in lines)


def test_what_slurm_cannot_do_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    with pytest.raises(BadConfig, match="whole GPUs"):
        engine("slurm", gpus=0.25)
    with pytest.raises(BadConfig, match="is not an sbatch setting"):
        engine("slurm:partition=gpu\n#SBATCH --exclusive")
    with pytest.raises(BadConfig, match="time=soon is not a time limit"):
        engine("slurm:time=soon")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadConfig, match="no Slurm here"):
        engine("slurm").check(tmp_path, "")


# Ray.


def test_no_cluster_at_the_address_is_said_at_once() -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    began = time.monotonic()
    with pytest.raises(BadConfig, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        engine("ray:127.0.0.1:1")
    with pytest.raises(BadConfig, match="is not an address of a Ray cluster"):
        engine("ray:somewhere")
    assert time.monotonic() - began < 30


class OneNode:
    """As much of Ray as `check` asks, with a node that answers as it is told."""

    exceptions = SimpleNamespace(RayError=OSError)

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "NodeID": "0" * 56, "NodeManagerAddress": "10.0.0.7"}, {"Alive": False}]

    def remote(self, **options: Any) -> Any:
        return lambda function: self

    def options(self, **options: Any) -> Any:
        return SimpleNamespace(remote=lambda: "the question")

    def get(self, question: str, timeout: float) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((None, True), "10.0.0.7 has no holdfast: install"),
        (("0.0.1", True), f"10.0.0.7 has holdfast 0.0.1, the sweep has {__version__}: install the same"),
        ((__version__, False), "10.0.0.7 does not see .*: give --out a folder that all machines share"),
        (OSError("lost"), "10.0.0.7 does not answer: OSError: lost"),
    ],
)
def test_a_ray_node_that_cannot_work_is_named_before_the_first_run(answer: Any, said: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    from holdfast.sweeps.engines.on_ray import Ray

    on = Ray.__new__(Ray)
    on.ray = OneNode(answer)
    with pytest.raises(BadConfig, match=said):
        on.check(tmp_path, ".probe-1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A real cluster on loopback, of one node so far."""
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # stay on 127.0.0.1
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        quick_to_notice = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500,
                           "health_check_failure_threshold": 3}
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": quick_to_notice, **NODE}
        )
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.mark.slow
def test_reproduce_on_ray_ends_with_a_line_that_knows_its_places(
    cluster: Any, tmp_path: Path, undisturbed: dict[int, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.reproduce.configs_of", lambda *wanted: [config(0), config(1, lr=1e30)])
    words = ["reproduce", "table1", "--on", f"ray:{cluster.address}", "--out", str(tmp_path), "--device", "cpu"]
    answer = CliRunner().invoke(cli.app, words)
    assert answer.exit_code == 1 and isinstance(answer.exception, SystemExit), answer.exception
    assert "2 runs: 1 done, 1 failed" in answer.output and "--retry-failed" in answer.output
    done, failed = survey([config(0), config(1, lr=1e30)], tmp_path)
    assert_same(done, undisturbed[0])
    assert "LossNotFinite" in failed.note


@pytest.mark.slow
def test_ray_finishes_every_run_to_the_same_bits_though_a_node_dies(
    cluster: Any, tmp_path: Path, undisturbed: dict[int, Run]
) -> None:
    mortal = cluster.add_node(num_cpus=1, **NODE)
    on = engine(f"ray:{cluster.address}", cpus=1)
    assert on.places == 2
    killed: list[str] = []
    longer = [config(seed, epochs=5) for seed in range(2)]

    def kill_in_the_middle(runs: Sequence[Run]) -> None:
        if not killed and all(run.folder.checkpoints() for run in runs[:2]):
            killed.append(mortal.unique_id)
            cluster.remove_node(mortal, allow_graceful=False)

    runs = survey([*longer, config(2), config(0, lr=1e30)], tmp_path)
    Sweep(runs, machine_at(tmp_path), on).run(kill_in_the_middle)
    assert killed
    assert [run.state for run in runs] == ["done", "done", "done", "failed"]
    assert "LossNotFinite" in runs[3].note
    local = tmp_path / "local"
    for run, same in zip(runs[:2], swept(longer, local, Local(2))):
        assert_same(run, same)
    assert_same(runs[2], undisturbed[2])
