"""Records are checked before they count; what does not count is named, with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadConfig, BadFile
from holdfast.runs import records
from holdfast.runs.config import Config
from records_factory import make_features, make_record

BASE = Config("split-mnist", memory=100)


def put(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_good_record_counts_from_a_file_or_from_a_run_folder(tmp_path: Path) -> None:
    put(tmp_path, "a.json", make_record(BASE, 81.0))
    put(tmp_path, "some-run/result.json", make_record(Config("split-mnist", memory=100, seed=1), 82.0))
    put(tmp_path, "some-run/config.json", {})
    found = records.read(tmp_path)
    assert [(run.name, run.seed, round(run.accuracy, 6)) for run in found.runs] == [
        ("a.json", 0, 81.0), ("some-run", 1, 82.0)
    ]
    assert not found.left_out


def test_one_run_folder_is_a_folder_of_one_record(tmp_path: Path) -> None:
    put(tmp_path, "result.json", make_record(BASE))
    put(tmp_path, "config.json", {})
    found = records.read(tmp_path)
    assert len(found.runs) == 1 and not found.left_out


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "JSON"),
        ("", "JSON"),
        ("[1]", "not an object"),
        ("[" * 100_000, "JSON"),
        ("{}", "Not a whole record"),
    ],
)
def test_what_is_not_a_record_is_left_out_by_name(tmp_path: Path, content: str, reason: str) -> None:
    put(tmp_path, "bad.json", content)
    put(tmp_path, "good.json", make_record(BASE))
    found = records.read(tmp_path)
    assert [run.name for run in found.runs] == ["good.json"]
    assert [each.name for each in found.left_out] == ["bad.json"]
    assert reason in found.left_out[0].reason and str(tmp_path) not in found.left_out[0].reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"environment": {"holdfast": "9.0.0"}}, "Made by holdfast 9.0.0"),
        ({"environment": {"holdfast": "0.10.0"}}, "Made by holdfast 0.10.0"),
        ({"environment": {}}, "which holdfast"),
        ({"environment": None}, "which holdfast"),
        ({"format": 2}, "format"),
        ({"hash": "000000000000"}, "altered"),
        ({"config": {"benchmark": "split-mnist", "memory": 100, "warp": 9}}, "warp"),
        ({"config": {"benchmark": "no-such-thing"}}, "no-such-thing"),
        ({"config": {"benchmark": "split-mnist", "memory": "many"}}, "memory"),
        ({"config": {"benchmark": "split-mnist", "lr": "fast"}}, "config"),
        ({"config": []}, "configuration"),
        ({"final_average_accuracy": 99.0}, "final_average_accuracy"),
        ({"final_average_accuracy": float("nan")}, "final_average_accuracy"),
        ({"average_accuracy": [99.0]}, "average_accuracy"),
        ({"average_accuracy": None}, "average_accuracy"),
        ({"forgetting": -50.0}, "forgetting"),
        ({"accuracy_matrix": [[99.0]]}, "5 rows"),
        ({"accuracy_matrix": [[99.0]] * 5}, "Row 2"),
        ({"accuracy_matrix": [[101.0]] + [[50.0] * i for i in range(2, 6)]}, "101.0"),
        ({"accuracy_matrix": [[True]] + [[50.0] * i for i in range(2, 6)]}, "True"),
        ({"accuracy_matrix": [[float("inf")]] + [[50.0] * i for i in range(2, 6)]}, "inf"),
        ({"seconds": -1}, "seconds"),
        ({"mean_drift": 400.0}, "mean_drift"),
        ({"mean_head_drift": -1.0}, "mean_head_drift"),
        ({"separation": [None, 200.0]}, "separation"),
        ({"separation": "wide"}, "separation"),
        ({"quick": True}, "quick"),
        ({"quick": "no"}, "quick"),
    ],
)
def test_a_record_that_does_not_agree_with_itself_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises((BadFile, BadConfig, KeyError), match=reason):
        records.checked("x.json", make_record(BASE, **changes))


def test_an_altered_seed_is_noticed() -> None:
    record = make_record(BASE)
    record["config"]["seed"] = 7
    with pytest.raises(BadFile, match="altered"):
        records.checked("x.json", record)


def test_a_validation_run_is_not_a_test_run() -> None:
    with pytest.raises(BadFile, match="validation"):
        records.checked("x.json", make_record(Config("split-mnist", memory=100, validation=0.1)))


def test_two_records_of_one_run_count_once_and_are_named(tmp_path: Path) -> None:
    put(tmp_path, "a.json", make_record(BASE, 81.0))
    put(tmp_path, "b.json", make_record(BASE, 81.0))
    spelled_out = Config("split-mnist", memory=100, softmax_over="all")  # the same run
    put(tmp_path, "c.json", make_record(spelled_out, 85.0))
    found = records.read(tmp_path)
    assert [run.name for run in found.runs] == ["a.json"]
    assert [each.name for each in found.left_out] == ["b.json", "c.json"]
    assert "a.json" in found.left_out[0].reason and "same accuracies" in found.left_out[0].reason
    assert "different accuracies" in found.left_out[1].reason


def test_a_quick_run_and_a_full_one_are_different_runs(tmp_path: Path) -> None:
    put(tmp_path, "a.json", make_record(BASE))
    put(tmp_path, "b.json", make_record(Config("split-mnist", memory=100, quick=True), quick=True))
    found = records.read(tmp_path)
    assert [run.quick for run in found.runs] == [False, True] and not found.left_out


def test_a_huge_file_is_not_even_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LARGEST", 10)
    put(tmp_path, "a.json", make_record(BASE))
    assert "bytes" in records.read(tmp_path).left_out[0].reason


def test_a_joint_run_has_one_row() -> None:
    record = records.checked("x.json", make_record(Config("split-mnist", method="joint"), 97.0))
    assert record.averages == [97.0]


def test_a_folder_that_is_not_there_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="no folder"):
        records.read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "content",
    [
        {"kind": "features"},
        {**make_features(), "format": 2},
        {**make_features(), "environment": {"holdfast": "9.9.0"}},
        {"kind": "features", "format": 1, "heads": [], "labels": ["0"]},
        {"kind": "features", "format": 1, "labels": ["0"], "heads": [{"frames": [
            {"seen": [0], "clouds": [[["<script>", 0]]], "weights": [[0, 1]]}]}]},
    ],
)
def test_a_broken_record_of_a_feature_figure_is_left_out(tmp_path: Path, content: dict[str, Any]) -> None:
    put(tmp_path, "features.json", content)
    found = records.read(tmp_path)
    assert not found.features and [each.name for each in found.left_out] == ["features.json"]


def test_a_feature_figure_that_is_there_twice_is_drawn_once(tmp_path: Path) -> None:
    put(tmp_path, "features.json", make_features())
    put(tmp_path, "features-again.json", make_features())
    put(tmp_path, "features-quick.json", {**make_features(), "quick": True})
    found = records.read(tmp_path)
    assert len(found.features) == 2
    assert [(each.name, "second record" in each.reason) for each in found.left_out] == [("features.json", True)]
