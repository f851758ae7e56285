"""Compatibility between the models of a run, against searches and measures written out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.errors import BadFile
from holdfast.hardware import Machine
from holdfast.learning import compatibility
from holdfast.learning.streams import Samples, Task
from holdfast.runs import results
from holdfast.runs.config import Config
from holdfast.runs.experiment import run


def task_of(slots: list[int], index: int = 0) -> Task:
    images = torch.arange(len(slots), dtype=torch.uint8).view(-1, 1, 1, 1)
    samples = Samples(images, torch.arange(len(slots)), torch.tensor(slots))
    return Task(index, tuple(sorted({*slots})), samples, samples)


def test_queries_and_gallery_are_disjoint_and_balanced() -> None:
    queries, gallery = compatibility.chosen(task_of([3, 5, 3, 5, 3, 3, 5]), classes=2)
    assert queries.tolist() == [0, 2, 1]  # two of class 3, one of class 5, which has three samples
    assert gallery.tolist() == [4, 5, 3]


def test_the_number_of_samples_per_class_is_limited_by_the_number_of_classes() -> None:
    queries, gallery = compatibility.chosen(task_of([0] * 50 + [1] * 50), classes=200)
    assert len(queries) == len(gallery) == 2 * (compatibility.MOST // 200)


def test_a_search_agrees_with_one_sample_at_a_time_in_numpy() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, gallery = (torch.nn.functional.normalize(torch.randn(60, 5, generator=generator)) for _ in range(2))
    slots = torch.arange(60) % 4
    single, mean = compatibility.search(queries, gallery, slots)
    right_single = right_mean = 0
    means = {c: np.mean([g for g, s in zip(gallery.numpy(), slots.tolist()) if s == c], axis=0) for c in range(4)}
    for query, slot in zip(queries.double().numpy(), slots.tolist()):
        nearest = max(range(60), key=lambda row: float(np.dot(query, gallery[row].double().numpy())))
        right_single += slots[nearest].item() == slot
        cosines = {c: np.dot(query, m) / np.linalg.norm(m) for c, m in means.items()}
        right_mean += max(cosines, key=lambda c: cosines[c]) == slot
    assert single == pytest.approx(100 * right_single / 60)
    assert mean == pytest.approx(100 * right_mean / 60)


def test_the_measures_of_a_matrix_computed_by_hand() -> None:
    found = compatibility.summary([[90.0], [92.0, 80.0], [85.0, 80.0, 70.0]], [[1.0], [1.0, 1.0], [1.0, 1.0, 1.0]])
    assert found is not None
    assert found["ac"] == pytest.approx(100 * 2 / 3)  # 92 >= 90, 85 < 90, 80 >= 80
    assert found["am"] == pytest.approx((90 + 92 + 80 + 85 + 80 + 70) / 6)
    assert found["bc"] == pytest.approx(((85 - 90) + (80 - 80)) / 2)
    assert found["fc"] == pytest.approx(((92 - 80) + (80 - 70)) / 2)


def test_nothing_is_reported_for_one_task_or_without_queries() -> None:
    assert compatibility.summary([[90.0]], [[90.0]]) is None
    assert compatibility.summary([[math.nan], [90.0, 90.0]], [[90.0], [90.0, 90.0]]) is None


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(Config("split-digits", quick=True, memory=50),
               Machine(out=str(tmp_path_factory.mktemp("runs")), device="cpu"))


def test_a_run_reports_a_triangle_whose_first_row_is_the_first_model_alone(result: dict[str, Any]) -> None:
    found = result["compatibility"]
    assert [len(row) for row in found["matrix"]] == [1, 2, 3, 4, 5] == [len(row) for row in found["means"]]
    results.check(Config.from_json(result["config"]), result)


@pytest.mark.parametrize(("name", "value"), [("ac", 50.5), ("bc", 7.0), ("matrix", [[200.0]]), ("means", None)])
def test_a_result_with_an_altered_compatibility_is_refused(result: dict[str, Any], name: str, value: Any) -> None:
    altered = {**result, "compatibility": {**result["compatibility"], name: value}}
    with pytest.raises(BadFile, match="compatibility"):
        results.check(Config.from_json(result["config"]), altered)


def test_a_model_that_does_not_change_is_compatible_with_itself() -> None:
    """The same learner after every task: each row repeats the column's diagonal, so AC is 100 and BC is 0."""

    class Still:
        shift = torch.zeros(1)

        class head:
            dim = 3

        def embed_frozen(self, images: torch.Tensor) -> torch.Tensor:
            generator = torch.Generator().manual_seed(1)
            table = torch.randn(256, 3, generator=generator)
            return table[images.flatten().long()]

    tasks = [task_of([0, 1] * 20), task_of([2, 3] * 20, 1), task_of([4, 5] * 20, 2)]
    galleries = compatibility.Galleries()
    for index in range(3):
        galleries.add(Still(), tasks[: index + 1], classes=6)  # type: ignore[arg-type]
    found = compatibility.summary(galleries.single, galleries.means)
    assert found is not None
    assert (found["ac"], found["bc"]) == (100.0, 0.0)
    assert found["matrix"][2][0] == found["matrix"][1][0] == found["matrix"][0][0]
