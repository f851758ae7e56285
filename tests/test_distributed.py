"""One run over two processes is the run of one: the same batches, losses and weights, but for rounding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from distributed_worker import BROKEN_OFF, CASES, HALF, State, results
from holdfast import files
from holdfast.cli import main as cli
from holdfast.errors import BadConfig, Stopped
from holdfast.hardware import Machine
from holdfast.learning.distributed import Ranks, alone, session, synchronise
from holdfast.runs import experiment
from holdfast.runs.config import Config
from holdfast.runs.folder import RunFolder

TESTS = Path(__file__).parent
SMALL_RUN: dict[str, Any] = {"backbone": "mlp", "epochs": 2, "quick": True, "seed": 3}


def torchrun(*words: str, ranks: int = 2, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """On loopback, one thread a process."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", *words,
    ]
    return subprocess.run(command, env=environment, cwd=TESTS, capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case done by two ranks, in one torchrun; some of them begun by one, here."""
    out = tmp_path_factory.mktemp("by-two")
    for case in BROKEN_OFF:
        files.write_tensors(out / f"{case}-begun-by-one.safetensors", *results(case, most=HALF))
    done = torchrun("distributed_worker.py", str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def assert_alike(one: State, other: State) -> None:
    """The same run: losses, accuracies and every tensor, but for rounding."""
    (mine, plain), (theirs, told) = one, other
    for records in zip(plain["records"], told["records"], strict=True):
        losses = [record.get("loss", 0.0) for record in records]
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-7, atol=1e-9)
    assert told["accuracies"] == plain["accuracies"]
    assert theirs.keys() == mine.keys()
    for name, value in mine.items():
        torch.testing.assert_close(theirs[name], value, rtol=1e-6, atol=1e-8, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.slow
def test_no_thread_of_the_group_outlives_the_session(by_two: Path) -> None:
    """Such a thread may want the interpreter's lock when the interpreter is gone, and aborts the process."""
    for rank in (0, 1):
        assert not [name for name in files.read_json(by_two / f"threads-{rank}.json") if "gloo" in name]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_do_what_one_does(case: str, by_two: Path) -> None:
    assert_alike(results(case), files.read_tensors(by_two / f"{case}.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("case", BROKEN_OFF)
def test_what_one_rank_broke_off_two_end_and_the_other_way_round(case: str, by_two: Path) -> None:
    whole, begun = results(case), files.read_tensors(by_two / f"{case}-begun.safetensors")
    assert begun[1]["step"], "broken off in the midst of an epoch"
    assert_alike(whole, files.read_tensors(by_two / f"{case}-ended.safetensors"))
    assert_alike(whole, results(case, begun))


@pytest.fixture(scope="module")
def commanded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """`torchrun ... -m holdfast run` of a small run, and what it printed."""
    out = tmp_path_factory.mktemp("commanded")
    flags = ["--backbone", "mlp", "--epochs", "2", "--quick", "--seed", "3", "--out", str(out), "--device", "cpu"]
    done = torchrun("-m", "holdfast", "run", "split-digits", *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    return out, done.stdout


def losses(result_folder: Path) -> list[float]:
    lines = (result_folder / "metrics.jsonl").read_text().splitlines()
    return [record["loss"] for record in map(files.json.loads, lines) if "loss" in record]


@pytest.mark.slow
def test_the_command_by_two_ranks_has_the_losses_of_one_and_talks_once(
    commanded: tuple[Path, str], tmp_path: Path
) -> None:
    config = Config("split-digits", **SMALL_RUN).resolved()
    experiment.run(config, Machine(out=str(tmp_path), device="cpu", threads=1))
    out, printed = commanded
    # Single precision here: Adam turns rounding into steps where a gradient is almost zero.
    torch.testing.assert_close(losses(out / config.name), losses(tmp_path / config.name), rtol=1e-3, atol=1e-4)
    assert printed.count("Final average accuracy") == 1


@pytest.mark.slow
def test_what_two_ranks_began_one_goes_on_with(commanded: tuple[Path, str], tmp_path: Path) -> None:
    config = Config("split-digits", **SMALL_RUN).resolved()
    out, _ = commanded
    (last,) = RunFolder(out / config.name).checkpoints()
    folder = RunFolder(tmp_path / config.name)
    folder.path.mkdir()
    for path in (last, out / config.name / "environment.jsonl"):
        (folder.path / path.name).write_bytes(path.read_bytes())
    # All tasks are done in it; one rank takes it up and comes to the same result without a step.
    with pytest.warns(UserWarning, match="last bits may differ.*ranks 2 before, None now"):
        result = experiment.run(config, Machine(out=str(tmp_path), device="cpu", threads=1))
    assert "ranks" not in result["environment"]
    assert result["accuracy_matrix"] == files.read_record(out / config.name / "result.json")["accuracy_matrix"]


def test_a_stop_under_torchrun_says_to_go_on_with_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: Any, **options: Any) -> None:
        raise Stopped

    monkeypatch.setattr(experiment, "run", stop)
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)  # it would be in the command
    words = ["run", "split-digits", "--out", str(tmp_path)]
    assert "\nholdfast run split-digits --out" in CliRunner().invoke(cli.app, words).output
    monkeypatch.setattr("holdfast.cli.run.distributed.ranks", lambda: Ranks(0, 2))
    assert "\ntorchrun ... -m holdfast run split-digits --out" in CliRunner().invoke(cli.app, words).output


@pytest.mark.slow
def test_an_error_of_one_rank_ends_all_and_is_told_once(tmp_path: Path) -> None:
    done = torchrun("-m", "holdfast", "run", "split-digits", "--quick", "--out", str(tmp_path), "--device", "cuda:9",
                    timeout=120)
    assert done.returncode != 0
    assert "cuda:9" in done.stderr


def test_slices_cover_a_batch_once() -> None:
    batch = torch.arange(7)
    for world in (1, 2, 3, 5, 9):
        assert torch.cat([Ranks(rank, world).mine(batch) for rank in range(world)]).equal(batch)


def test_a_synchronised_norm_keeps_its_parameters_and_refuses_what_it_does_not_know() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    names, weight = list(network.state_dict()), network[1].weight
    synchronise(network)
    assert list(network.state_dict()) == names and network[1].weight is weight
    x = torch.randn(3, 1, 8, 8)
    plain = nn.Sequential(network[0], nn.BatchNorm2d(2)).eval()
    assert torch.equal(network.eval()(x), plain(x))

    class WithActivation(nn.BatchNorm2d):
        pass

    with pytest.raises(BadConfig, match="WithActivation cannot be synchronised"):
        synchronise(nn.Sequential(WithActivation(2)))


def test_a_synchronised_norm_counts_a_bfloat16_batch_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.all_reduce", lambda tensor: None)  # one rank: its sum is all of it
    network = nn.Sequential(nn.BatchNorm1d(2, momentum=1.0))
    synchronise(network)
    x = torch.randn(1001, 2).bfloat16()  # bfloat16 has no 1001
    network(x)
    torch.testing.assert_close(network[0].running_mean, x.float().mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(network[0].running_var, x.float().var(0), rtol=1e-5, atol=1e-6)


def test_half_a_torchrun_and_sweeps_under_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(BadConfig, match="RANK is not set"), session():
        pass
    with pytest.raises(BadConfig, match="without torchrun"):
        alone("reproduce")
