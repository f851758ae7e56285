"""A run is a folder: finished once, resumed if broken, never worked on by two."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import assert_same_bits, make_tiny_config
from holdfast import files
from holdfast.errors import BadConfig, BadFile, LossNotFinite, RunLocked
from holdfast.hardware import Machine, choose_device
from holdfast.learning.training import Stopped, Watcher
from holdfast.runs import experiment
from holdfast.runs.build import make_stream
from holdfast.runs.config import Config
from holdfast.runs.folder import RunFolder

Run = Callable[..., experiment.Result]


def stopping_after(steps: int) -> Watcher:
    taken: list[int] = []
    return Watcher(step=taken.append, stop=lambda: len(taken) >= steps)


def left_behind(folder: RunFolder) -> dict[str, Any]:
    """What is in a finished folder, but for times and places."""
    tensors, plain = files.read_tensors(folder.checkpoints()[0])
    timeless = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    result = files.read_json(folder.result)
    for each in (*timeless, result):
        each.pop("seconds", None)
    for name in ("environment", "environments", "digest"):
        result.pop(name, None)
    return {**tensors, "metrics": timeless, "result": result, "at": plain["task"]}


def test_a_run_leaves_its_folder_complete(run_tiny: Run, tmp_path: Path) -> None:
    config = make_tiny_config()
    result = run_tiny(config)
    folder = RunFolder(tmp_path / config.name)
    assert files.read_record(folder.config) == config.to_json()
    assert files.read_record(folder.result) == json.loads(files.dumps(result))
    assert len(folder.checkpoints()) == 1
    assert {p.name for p in folder.path.iterdir()} <= {
        "config.json", "environment.jsonl", "metrics.jsonl", "result.json", folder.checkpoints()[0].name,
        ".lock", ".holder",
    }
    assert len(result["accuracy_matrix"]) == 3
    assert result["final_average_accuracy"] == pytest.approx(sum(result["accuracy_matrix"][-1]) / 3)
    assert result["memory_bytes"] == 12 * 64
    assert result["environment"]["threads"] == 1
    assert result["hash"] == config.hash and config.hash in folder.path.name


@pytest.mark.parametrize("method", ["replay", "finetune", "joint"])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(method: str, run_tiny: Run, tmp_path: Path) -> None:
    config = make_tiny_config(method=method)
    run_tiny(config, tmp_path / "whole")
    total = sum(
        json.loads(line).get("steps", 0)
        for line in RunFolder(tmp_path / "whole" / config.name).metrics.read_text().splitlines()
    )
    for steps in sorted({1, 2, total // 2, total - 1}):
        out = tmp_path / str(steps)
        with pytest.raises(Stopped) as caught:  # held on to: a traceback must not keep the folder locked
            run_tiny(config, out, watcher=stopping_after(steps))
        assert RunFolder(out / config.name).read_result() is None
        run_tiny(config, out)
        assert caught is not None
        resumed, whole = (left_behind(RunFolder(place / config.name)) for place in (out, tmp_path / "whole"))
        assert_same_bits(resumed, whole)


def test_a_finished_run_is_read_and_not_run_again(run_tiny: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_tiny(make_tiny_config())
    monkeypatch.setattr(experiment, "make_trainer", lambda *args: pytest.fail("it trains again"))
    assert run_tiny(make_tiny_config()) == json.loads(files.dumps(first))


def test_a_fresh_start_does_not_look_at_what_was_done(run_tiny: Run, tmp_path: Path) -> None:
    config = make_tiny_config()
    run_tiny(config)
    folder = RunFolder(tmp_path / config.name)
    before = left_behind(folder)
    steps: list[int] = []
    run_tiny(config, resume=False, watcher=Watcher(step=steps.append))
    assert len(steps) == sum(record.get("steps", 0) for record in before["metrics"])
    assert_same_bits(left_behind(folder), before)


@pytest.mark.slow
def test_a_fresh_process_makes_the_same_bits(tmp_path: Path) -> None:
    values = {"backbone": "mlp", "epochs": 1, "memory": 20, "policy": "reservoir", "quick": True}
    code = (
        "import sys, json; from holdfast.hardware import Machine; from holdfast.runs import experiment;"
        "from holdfast.runs.config import Config;"
        "experiment.run(Config('split-digits', **json.loads(sys.argv[1])), Machine(out=sys.argv[2], threads=1))"
    )
    subprocess.run([sys.executable, "-c", code, json.dumps(values), str(tmp_path / "there")], check=True, timeout=120)
    config = Config("split-digits", **values)
    experiment.run(config, Machine(out=str(tmp_path / "here"), threads=1))
    here, there = (left_behind(RunFolder(tmp_path / place / config.name)) for place in ("here", "there"))
    assert_same_bits(here, there)


def test_two_processes_on_one_folder_are_one_too_many(run_tiny: Run, tmp_path: Path) -> None:
    config = make_tiny_config()
    folder = RunFolder(tmp_path / config.name)
    folder.path.mkdir()
    hold = "import filelock, sys; l = filelock.FileLock(sys.argv[1]); l.acquire(); print('held', flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(folder.path / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None and other.stdout.readline().strip() == b"held"
        with pytest.raises(RunLocked, match=r"Another process.*--out"):
            run_tiny(config)
        assert not folder.config.exists()  # it did not touch a thing
    finally:
        other.kill()  # and a process that died holds nothing
        other.communicate()
    run_tiny(config)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(run_tiny: Run, tmp_path: Path) -> None:
    config = make_tiny_config()
    run_tiny(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        run_tiny(config, tmp_path / "broken", watcher=stopping_after(8))
    folder = RunFolder(tmp_path / "broken" / config.name)
    newest, before = folder.checkpoints()
    content = bytearray(newest.read_bytes())
    content[-5] ^= 255
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match=rf"{newest.name} is damaged"):
        run_tiny(config, tmp_path / "broken")
    assert newest.with_suffix(".damaged").exists() and not before.exists()
    assert_same_bits(left_behind(folder), left_behind(RunFolder(tmp_path / "whole" / config.name)))


def test_with_no_good_checkpoint_left_it_starts_anew(run_tiny: Run, tmp_path: Path) -> None:
    config = make_tiny_config()
    with pytest.raises(Stopped):
        run_tiny(config, watcher=stopping_after(8))
    folder = RunFolder(tmp_path / config.name)
    for path in folder.checkpoints():
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="damaged"):
        run_tiny(config)
    run_tiny(config, tmp_path / "whole")
    assert_same_bits(left_behind(folder), left_behind(RunFolder(tmp_path / "whole" / config.name)))


@pytest.mark.parametrize("damage", ["{", "altered"])
def test_a_damaged_result_is_named_put_aside_and_made_again(damage: str, run_tiny: Run, tmp_path: Path) -> None:
    config = make_tiny_config()
    run_tiny(config)
    folder = RunFolder(tmp_path / config.name)
    before, text = left_behind(folder), folder.result.read_text()
    folder.result.write_text(damage if damage == "{" else text.replace('"forgetting": ', '"forgetting": 1'))
    steps: list[int] = []
    with pytest.warns(UserWarning, match=r"result\.json"):
        run_tiny(config, watcher=Watcher(step=steps.append))
    assert not steps  # the last checkpoint has all it takes
    assert_same_bits(left_behind(folder), before)


def test_a_checkpoint_without_a_number_is_nobodys(run_tiny: Run, tmp_path: Path) -> None:
    config = make_tiny_config()
    with pytest.raises(Stopped):
        run_tiny(config, watcher=stopping_after(3))
    folder = RunFolder(tmp_path / config.name)
    for name in ("checkpoint-best", "checkpoint-000001 (copy)", "checkpoint-"):
        (folder.path / f"{name}.safetensors").write_text("nothing")
    run_tiny(config)
    assert len(list(folder.path.glob("*.safetensors"))) == 4  # these three, and the run's last
    assert [p.name for p in folder.checkpoints()] == ["checkpoint-000007.safetensors"]


@pytest.mark.parametrize("wrong", [{"accuracy_matrix": []}, {"seconds": "x"}, {"mean_drift": 300.0}, {}], ids=str)
def test_a_result_written_by_hand_that_cannot_be_shown_is_made_again(
    wrong: dict[str, Any], run_tiny: Run, tmp_path: Path
) -> None:
    config = make_tiny_config()
    made = files.plain(run_tiny(config))
    folder = RunFolder(tmp_path / config.name)
    files.write_json(folder.result, {**(made if wrong else {}), "hash": config.hash, **wrong})
    with pytest.warns(UserWarning, match=next(iter(wrong), "Not a whole record").replace("_", ".")):
        assert files.plain(run_tiny(config)) == made


def test_a_result_names_all_the_environments_that_its_run_has_had(run_tiny: Run, tmp_path: Path) -> None:
    config = make_tiny_config()
    folder = RunFolder(tmp_path / config.name)
    with pytest.raises(Stopped):
        run_tiny(config, watcher=stopping_after(3))
    first = json.loads(folder.environment.read_text())
    other = {**first, "torch": "1.0"}
    folder.environment.write_text(json.dumps(other) + "\n")  # as if it had been another machine's
    with pytest.warns(UserWarning, match=r"torch 1\.0 before"), pytest.raises(Stopped):
        run_tiny(config, watcher=stopping_after(2))
    result = run_tiny(config)  # in the same environment again: nothing to add
    assert result["environment"] == first and result["environments"] == [other, first]


def test_a_line_of_the_environments_that_cannot_be_read_is_skipped(run_tiny: Run, tmp_path: Path) -> None:
    config = make_tiny_config()
    with pytest.raises(Stopped):
        run_tiny(config, watcher=stopping_after(3))
    environment = RunFolder(tmp_path / config.name).environment
    environment.write_text("{half a li\n" + environment.read_text())
    with pytest.warns(UserWarning, match=r"environment\.jsonl has a line that is not JSON"):
        assert "environments" not in run_tiny(config)


def test_anothers_checkpoint_is_refused(run_tiny: Run, tmp_path: Path) -> None:
    mine, other = make_tiny_config(), make_tiny_config(seed=1)
    with pytest.raises(Stopped):
        run_tiny(other, watcher=stopping_after(3))
    stray, _ = RunFolder(tmp_path / other.name).checkpoints()
    (tmp_path / mine.name).mkdir()
    stray.rename(tmp_path / mine.name / stray.name)
    with pytest.raises(BadFile, match=rf"{other.hash}.*{mine.hash}.*--fresh"):
        run_tiny(mine)


def test_a_learning_rate_that_blows_up_keeps_the_last_good_checkpoint(run_tiny: Run, tmp_path: Path) -> None:
    good = make_tiny_config(method="finetune", optimizer="sgd", lr=1e18, epochs=3)
    with pytest.raises(LossNotFinite, match=r"step \d+ of epoch \d, task \d, with learning rate 1e\+18"):
        run_tiny(good)
    folder = RunFolder(tmp_path / good.name)
    assert not folder.result.exists()
    for path in folder.checkpoints():
        tensors, _ = files.read_tensors(path)
        assert all(v.isfinite().all() for k, v in tensors.items() if k.startswith("learner.") and v.is_floating_point())


def test_checkpoints_come_after_each_epoch_and_two_are_kept(run_tiny: Run, tmp_path: Path) -> None:
    config, numbers = make_tiny_config(), []
    folder = RunFolder(tmp_path / config.name)
    watcher = Watcher(step=lambda samples: numbers.append([int(p.stem[-6:]) for p in folder.checkpoints()]))
    run_tiny(config, watcher=watcher)
    assert max(map(len, numbers)) == 2
    assert sorted({n for kept in numbers for n in kept}) == [1, 2, 3, 4, 5]  # and the sixth at the end


def test_the_stream_of_a_run_is_its_seeds() -> None:
    def labels(seed: int) -> tuple[str, ...]:
        return make_stream(make_tiny_config(order="shuffled", seed=seed)).labels

    assert labels(1) == labels(1) != labels(2)


def test_a_validation_share_takes_the_place_of_the_test() -> None:
    whole, held = (make_stream(make_tiny_config(validation=share)) for share in (0.0, 0.25))
    for task, scored in zip(whole.tasks, held.tasks):
        assert len(scored.test) == round(0.25 * len(task.train))
        assert scored.test.images is scored.train.images
        assert not set(scored.test.rows.tolist()) & set(scored.train.rows.tolist())


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadConfig, match=r"'warp'.*--device cpu"):
        choose_device("warp")
    assert choose_device("cpu") == torch.device("cpu")
