"""The ablation, and the trials by which the strong recipe was chosen."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from holdfast.data import Dataset
from holdfast.paper import ablation as beyond
from holdfast.report import exports
from holdfast.runs.benchmarks import BENCHMARKS
from holdfast.runs.config import Config


def test_the_ablation_covers_each_option_alone_and_together_for_each_head() -> None:
    configs = beyond.configs([0, 1])
    assert {c.resolved().get("memory") for c in configs} == {100, 1100}
    assert {c.resolved().head for c in configs} == {"simplex", "expanding", "preallocated"}
    assert len({c.hash for c in configs}) == len(configs) == 2 * 2 * 3 * len(beyond.variants(BENCHMARKS["split-mnist"]))


def test_records_become_rows_beside_the_paper_s() -> None:
    configs = beyond.configs([0, 1], heads=["simplex"], memories=[100])
    records = [{"config": c.resolved().to_json(), "final_average_accuracy": 90.0 + c.seed} for c in configs]
    stray = Config("split-mnist", memory=100, lr=0.01).resolved().to_json()
    table = beyond.rows([*records, {"config": stray, "final_average_accuracy": 0.0}])
    assert [row["variant"] for row in table] == ["published", *beyond.variants(BENCHMARKS["split-mnist"])]
    assert table[0]["simplex"]["mean"] == pytest.approx(82.3, abs=0.1)
    assert table[1] == {
        "benchmark": "split-mnist", "memory": 100, "variant": "paper",
        "simplex": {"mean": 90.5, "std": 0.5, "runs": 2}, "expanding": None, "preallocated": None,
    }


def test_the_table_says_what_strong_stands_for() -> None:
    assert beyond.title("split-mnist", "strong") == "strong: balance, augment memory shift, distill features"
    assert beyond.title("split-cifar10", "strong") == "strong: balance, distill logits (weight 2)"
    assert beyond.title("permuted-mnist", "strong") == "strong: balance, distill logits (weight 2)"
    assert beyond.title("split-mnist", "published") == "the paper's own"
    records = [{"config": c.resolved().to_json(), "final_average_accuracy": 90.0}
               for c in beyond.configs([0], heads=["simplex"], memories=[100])]
    rows = exports.ablation_table(SimpleNamespace(ablation=beyond.rows(records)))
    strong = "strong: balance, augment memory shift, distill features"
    assert rows[-1].startswith(f"| split-mnist | 100 | {strong} | 90.00 (1) |")
    assert rows[-2].startswith("| split-mnist | 100 | balance + augment memory | 90.00 (1) |")


def test_a_run_of_ones_own_folder_is_no_row_of_the_ablation(tmp_path: Path) -> None:
    for part in ("train", "test"):
        np.save(tmp_path / f"{part}_images.npy", np.zeros((4, 1, 8, 8), dtype=np.uint8))
        np.save(tmp_path / f"{part}_labels.npy", np.array([0, 1, 0, 1]))
    config = Config(f"arrays:{tmp_path}", tasks=2).resolved()
    assert config.protocol.strong == {"augment_memory": "shift", "distill": "features"}
    assert beyond.rows([{"config": config.to_json(), "final_average_accuracy": 50.0}]) == []


def test_quick_runs_have_an_ablation_of_their_own() -> None:
    config = Config("split-mnist", memory=100, balance=True, quick=True).resolved()
    table = beyond.rows([{"config": config.to_json(), "final_average_accuracy": 50.0}])
    assert [row["variant"] for row in table] == ["published", "balance"]


@pytest.mark.parametrize(("name", "shape"), [("split-mnist", (1, 16, 16)), ("split-cifar10", (3, 32, 32))])
def test_a_trial_is_on_held_back_images_of_the_benchmark_that_it_names(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(__file__).parents[1] / "benchmarks" / "recipe_trials.py"
    spec = importlib.util.spec_from_file_location("recipe_trials", path)
    assert spec is not None and spec.loader is not None
    trials = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trials)
    labels = torch.arange(10).repeat(12)

    def load(dataset: str) -> Dataset:
        channels = {"mnist": 1, "cifar10": 3}[dataset]
        train, test = (torch.full((120, channels, 32, 32), value, dtype=torch.uint8) for value in (7, 200))
        return Dataset(dataset, train, labels, test, labels, tuple("abcdefghij"), (0.5,) * channels, (0.2,) * channels)

    monkeypatch.setattr(trials.data, "load", load)
    stream = trials.stream_of(Config(name, backbone="lenet").resolved(), per=15)
    for task in stream.tasks:
        assert len(task.train) == 15 and len(task.test) == 4  # of 24 images, 4 are held back
        images, _ = task.test.batch(torch.arange(4))
        assert images.shape[1:] == shape and images.eq(7).all()
