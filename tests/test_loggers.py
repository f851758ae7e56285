"""Loggers hear a run's epochs, tasks and end, and nothing between two steps."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from conftest import make_tiny_config
from holdfast import loggers
from holdfast.errors import BadConfig, Stopped, UnknownName
from holdfast.learning.training import Watcher
from holdfast.loggers import LOGGERS, Logger, Run
from holdfast.loggers.base import FEWEST, Scalars

CONFIG = make_tiny_config(method="finetune")


class Heard(Logger):
    """Writes down every call."""

    calls: list[tuple[Any, ...]]

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.calls.append(("open", run.folder.is_dir()))

    def losses(self, losses: torch.Tensor, step: int) -> None:
        self.calls.append(("losses", step, len(losses)))

    def epoch(self, record: dict[str, Any], step: int) -> None:
        self.calls.append(("epoch", record["task"], record["epoch"], step))

    def task(self, record: dict[str, Any], step: int) -> None:
        self.calls.append(("task", record["task"], step))

    def end(self, result: dict[str, Any]) -> None:
        self.calls.append(("end", result["hash"]))

    def close(self) -> None:
        self.calls.append(("close",))


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    for part in ("_things", "_lines"):
        monkeypatch.setattr(LOGGERS, part, dict(getattr(LOGGERS, part)))
    LOGGERS.register("heard", "for this test")(Heard)
    Heard.calls = []
    yield Heard.calls


def logged_run(run_tiny: Callable[..., Any], out: Path, name: str, watcher: Watcher | None = None) -> Any:
    run = Run(CONFIG.name, out / CONFIG.name, CONFIG.to_json())
    with loggers.logging([name], run, watcher) as logged:
        result = run_tiny(CONFIG, out, watcher=logged.watcher)
        logged.end(result)
    return result


WHOLE = [  # 3 tasks, 2 epochs each, 12 samples in batches of 8
    call for task in range(3) for call in (
        ("losses", 4 * task, 2), ("epoch", task + 1, 1, 4 * task + 2),
        ("losses", 4 * task + 2, 2), ("epoch", task + 1, 2, 4 * task + 4), ("task", task + 1, 4 * task + 4),
    )
]


def test_a_logger_hears_a_run_from_its_first_epoch_to_its_end(
    heard: list[tuple[Any, ...]], run_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    logged_run(run_tiny, tmp_path, "heard")
    assert heard == [("open", True), *WHOLE, ("end", CONFIG.hash), ("close",)]
    heard.clear()
    logged_run(run_tiny, tmp_path, "heard")  # finished: the result is only read
    assert heard == []


def test_a_run_that_resumes_continues_its_log(
    heard: list[tuple[Any, ...]], run_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    count = itertools.count()
    with pytest.raises(Stopped):
        logged_run(run_tiny, tmp_path, "heard", Watcher(stop=lambda: next(count) == 5))
    assert heard[-1] == ("close",) and not any(call[0] == "end" for call in heard)
    logged_run(run_tiny, tmp_path, "heard")
    assert [call for call in heard if call[0] not in ("open", "close", "end")] == WHOLE


def test_nothing_is_added_to_the_step(heard: list[tuple[Any, ...]], tmp_path: Path) -> None:
    watcher = Watcher(step=lambda samples: None, stop=lambda: False)
    with loggers.logging(["heard"], Run("a", tmp_path), watcher) as logged:
        assert logged.watcher.step is watcher.step and logged.watcher.stop is watcher.stop


@pytest.mark.parametrize(("steps", "every"), [(3, 1), (FEWEST, 1), (10 * FEWEST, 10)])
def test_the_losses_of_an_epoch_are_sampled(steps: int, every: int, tmp_path: Path) -> None:
    written: list[tuple[int, float]] = []

    class Written(Scalars):
        def write(self, values: dict[str, float], step: int) -> None:
            written.append((step, values["train/loss"]))

    Written(Run("a", tmp_path)).losses(torch.arange(steps).float(), 1000)
    assert written == [(1000 + at, float(at)) for at in range(0, steps, every)]


def test_an_unknown_logger_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="tensorboard"), loggers.logging(["tensorbord"], Run("a", tmp_path)):
        pass


def test_a_missing_library_is_named_with_its_extra_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "holdfast.loggers.to_wandb", raising=False)
    monkeypatch.setattr(LOGGERS, "_things", {k: v for k, v in LOGGERS._things.items() if k != "wandb"})
    with pytest.raises(BadConfig, match=r"holdfast\[wandb\]"), loggers.logging(["wandb"], Run("a", tmp_path)):
        pass


def test_tensorboard_reads_the_numbers_of_the_metrics(run_tiny: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = logged_run(run_tiny, tmp_path, "tensorboard")
    folder = tmp_path / CONFIG.name
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    seen = [(event.step, event.value) for event in events.Scalars("train/epoch_loss")]
    assert seen == [(2 * (at + 1), pytest.approx(line["loss"])) for at, line in enumerate(filter(epoch, lines))]
    averages = [event.value for event in events.Scalars("test/average_accuracy")]
    assert averages == pytest.approx(result["average_accuracy"])
    assert [event.step for event in events.Scalars("test/task_3")] == [12]
    assert len(events.Scalars("train/loss")) == 12
    (final,) = events.Scalars("result/final_average_accuracy")
    assert final.value == pytest.approx(result["final_average_accuracy"])


def epoch(line: dict[str, Any]) -> bool:
    return "epoch" in line


def test_mlflow_has_the_run_s_config_and_numbers(
    run_tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "")  # put back afterwards
    del os.environ["MLFLOW_ALLOW_FILE_STORE"]
    count = itertools.count()
    with pytest.raises(Stopped):
        logged_run(run_tiny, tmp_path, "mlflow", Watcher(stop=lambda: next(count) == 5))
    result = logged_run(run_tiny, tmp_path, "mlflow")
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("holdfast")
    (run,) = client.search_runs([experiment.experiment_id])  # one, though it was stopped
    assert run.info.status == "FINISHED" and run.data.params["method"] == "finetune"
    history = client.get_metric_history(run.info.run_id, "test/average_accuracy")
    assert [(point.step, point.value) for point in history] == list(zip((4, 8, 12), result["average_accuracy"]))
    assert run.data.metrics["result/forgetting"] == result["forgetting"]


def test_wandb_gets_the_run_s_config_and_numbers(
    run_tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for wandb: only the calls are checked."""
    calls: list[tuple[str, Any]] = []

    class Handle:
        class summary:
            update = staticmethod(lambda values: calls.append(("summary", values)))

        def log(self, values: dict[str, float], step: int) -> None:
            calls.append(("log", (step, values)))

        def finish(self) -> None:
            calls.append(("finish", None))

    stand_in = ModuleType("wandb")
    stand_in.init = lambda **options: calls.append(("init", options)) or Handle()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    monkeypatch.delitem(sys.modules, "holdfast.loggers.to_wandb", raising=False)
    monkeypatch.setattr(LOGGERS, "_things", {k: v for k, v in LOGGERS._things.items() if k != "wandb"})
    monkeypatch.setenv("WANDB_MODE", "")  # put back afterwards
    del os.environ["WANDB_MODE"]
    result = logged_run(run_tiny, tmp_path, "wandb")
    monkeypatch.delitem(sys.modules, "holdfast.loggers.to_wandb")
    kind, options = calls[0]
    assert kind == "init" and os.environ["WANDB_MODE"] == "offline" and options["id"] == CONFIG.name
    assert options["config"] == CONFIG.to_json() and options["dir"] == str(tmp_path / CONFIG.name)
    averages = [values["test/average_accuracy"] for kind, (_, values) in
                ((k, v) for k, v in calls if k == "log") if "test/average_accuracy" in values]
    assert averages == pytest.approx(result["average_accuracy"])
    steps = [step for kind, (step, _) in ((k, v) for k, v in calls if k == "log")]
    assert steps == sorted(steps), "wandb drops numbers of an earlier step"
    assert calls[-1] == ("finish", None) and calls[-2][1]["forgetting"] == result["forgetting"]


@pytest.mark.slow
def test_the_real_wandb_writes_an_offline_run(tmp_path: Path) -> None:
    """In a process of its own, because wandb starts a service."""
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    command = [sys.executable, "-m", "holdfast", "run", "split-digits", "--quick", "--epochs", "1", "--method",
               "finetune", "--log", "wandb", "--out", str(tmp_path)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*/wandb/offline-run-*/*.wandb")
    written = path.read_bytes()
    assert b"test/average_accuracy" in written and b"train/epoch_loss" in written and b"forgetting" in written
