"""The 2-D feature figure: six classes and three more, in the plane, drawn and counted in degrees."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from holdfast import data
from holdfast.errors import BadConfig
from holdfast.learning import streams
from holdfast.learning.training import Stopped, Watcher
from holdfast.paper import feature_plots, features
from holdfast.runs import records
from records_factory import make_features

SMALL: dict[str, Any] = {"dataset": "digits", "epochs": 1, "memory": 60, "start": 6, "add": 2, "quick": True}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("features")
    return out, features.feature_figure(out, **SMALL)


def test_each_head_has_a_frame_a_step_with_every_class_that_has_come(made: tuple[Path, dict[str, Any]]) -> None:
    _, record = made
    assert [head["head"] for head in record["heads"]] == ["polygon", "preallocated"]
    for head in record["heads"]:
        assert [frame["seen"] for frame in head["frames"]] == [list(range(n)) for n in (6, 7, 8)]
        for frame in head["frames"]:
            assert len(frame["weights"]) == 10 and all(0 < len(c) <= features.SHOWN for c in frame["clouds"])


def test_the_polygon_does_not_move_and_the_trainable_head_does(made: tuple[Path, dict[str, Any]]) -> None:
    fixed, free = made[1]["heads"]
    assert [value for value in fixed["weights_turned"] if value is not None] == [0.0] * 7
    assert max(value for value in free["weights_turned"] if value is not None) > 0
    assert fixed["weights_turned"][7] is None  # learned last: it has had no time to turn
    for frame, known in zip(free["frames"], (0, 6, 7)):
        assert sum(value is not None for value in frame["features_moved"]) == known


def test_degrees_follow_from_the_weights_in_the_record(made: tuple[Path, dict[str, Any]]) -> None:
    free = made[1]["heads"][1]
    before, after = (torch.tensor(free["frames"][step]["weights"][:6]).double() for step in (0, 2))
    cosine = (before * after).sum(1) / before.norm(dim=1) / after.norm(dim=1)
    expected = torch.rad2deg(torch.acos(cosine.clamp(-1, 1)))
    assert torch.allclose(torch.tensor(free["weights_turned"][:6]).double(), expected, atol=3)  # drawn to 3 digits


def test_the_record_counts_for_a_report_and_the_pictures_are_there(made: tuple[Path, dict[str, Any]]) -> None:
    out, record = made
    found = records.read(out)
    assert len(found.features) == 1 and not found.left_out
    assert sorted(path.name for path in out.iterdir()) == [f"features.{end}" for end in ("gif", "json", "png", "svg")]
    with Image.open(out / "features.gif") as picture:
        assert picture.n_frames == 3
    assert "quick, scaled down" in (out / "features.svg").read_text()
    assert len((out / "features.json").read_bytes()) < 100_000
    assert record["labels"] == [str(label) for label in range(8)]


def test_stopped_and_started_again_it_gives_the_same_record(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    steps = 0

    def stop() -> bool:
        nonlocal steps
        steps += 1
        return steps == 12

    with pytest.raises(Stopped):
        features.feature_figure(tmp_path, **SMALL, watcher=Watcher(stop=stop))
    assert not (tmp_path / "features.json").exists()
    assert features.feature_figure(tmp_path, **SMALL)["heads"] == made[1]["heads"]


def test_the_animation_stays_on_its_last_frame() -> None:
    with Image.open(io.BytesIO(feature_plots.animation(make_features(steps=3)))) as picture:
        times = []
        for index in range(picture.n_frames):
            picture.seek(index)
            times.append(picture.info["duration"])
    assert times == [1600, 1600, 3200]


def test_tasks_of_given_sizes_leave_the_other_classes_out() -> None:
    digits = data.load("digits")
    stream = streams.split_sizes(digits, [6, 1, 1], generator=torch.Generator())
    assert [task.slots for task in stream.tasks] == [(0, 1, 2, 3, 4, 5), (6,), (7,)]
    assert len(stream.labels) == 8
    assert set(stream.tasks[1].train.slots.tolist()) == {6}
    for sizes in ([6, 5], [0, 1], []):
        with pytest.raises(BadConfig):
            streams.split_sizes(digits, sizes, generator=torch.Generator())


def test_an_unknown_data_set_is_named_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="digits"):
        features.feature_figure(tmp_path, dataset="shapes")
