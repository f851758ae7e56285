"""Claims hold, fail or lack runs by their intervals over seeds; the intervals are Student's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.learning import compatibility
from holdfast.paper import cells as paper
from holdfast.paper import claims, intervals
from holdfast.paper.editions import editions, key
from holdfast.paper.evidence import Claim
from holdfast.paper.questions import questions
from holdfast.report.tables import tables, tally
from holdfast.runs import records
from holdfast.runs.config import Config
from holdfast.runs.records import Record
from records_factory import make_record


def runs(config: Config, values: Sequence[float], **more: Any) -> list[Record]:
    """One checked record a value, with seeds 0, 1, ..."""
    made = []
    for seed, value in enumerate(values):
        each = dataclasses.replace(config, seed=seed)
        made.append(records.checked(each.name, make_record(each, value, **more)))
    return made


def claim(index: int, *groups: list[Record]) -> Claim:
    return claims.claims(editions([run for group in groups for run in group])[0])[index - 1]


def mnist(head: str, memory: int = 100, **fields: float) -> Config:
    return Config("split-mnist", head=head, memory=memory, **fields)


def test_the_interval_of_a_mean_is_students() -> None:
    # By hand: mean 2, s = 1, n = 3, t(2, 0.975) = 4.302652730.
    found = intervals.mean([1.0, 2.0, 3.0])
    assert found.estimate == 2.0 and found.low is not None and found.high is not None
    assert math.isclose(found.high - 2.0, 4.302652730 / math.sqrt(3), rel_tol=1e-8)
    assert math.isclose(2.0 - found.low, found.high - 2.0)


def test_one_run_has_no_interval() -> None:
    assert not intervals.mean([80.0]).bounded
    assert intervals.mean([80.0]).holds(80.0) is None


def test_pairing_by_seed_removes_what_a_seed_does_to_both() -> None:
    a, b = {0: 10.0, 1: 50.0, 2: 90.0}, {0: 9.0, 1: 49.0, 2: 89.0}
    paired = intervals.difference(a, b)
    assert paired == intervals.Interval(1.0, 1.0, 1.0, 3, "paired by seed")
    unpaired = intervals.difference(a, {seed + 10: value for seed, value in b.items()})
    assert unpaired is not None and unpaired.how == "unpaired"
    assert unpaired.low is not None and unpaired.low < -50


def test_welchs_interval_agrees_with_scipy() -> None:
    from scipy import stats

    a, b = [80.0, 82.0, 85.0, 81.0], [70.0, 75.0, 71.0]
    ours = intervals.difference(dict(enumerate(a)), {seed + 10: value for seed, value in enumerate(b)})
    theirs = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert ours is not None and ours.low == pytest.approx(theirs.low) and ours.high == pytest.approx(theirs.high)


def test_nothing_against_something_is_not_run() -> None:
    assert intervals.difference({}, {0: 1.0}) is None


def test_without_runs_no_claim_is_decided() -> None:
    for each in claims.claims(editions([])[0]):
        assert each.verdict == "not enough runs" and not each.tested and "none of" in each.count


@pytest.mark.parametrize(
    ("simplex", "expanding", "verdict"),
    [
        ([82.0, 83.0, 84.0], [82.0, 83.1, 83.9], "holds"),
        ([90.0, 91.0, 92.0], [80.0, 81.0, 82.1], "holds"),
        ([70.0, 71.0, 72.0], [80.0, 81.0, 82.1], "does not hold"),
        ([70.0, 90.0, 80.0], [80.0, 81.0, 82.0], "not enough runs"),
        ([82.0], [80.0], "not enough runs"),
    ],
)
def test_as_good_is_a_test_of_non_inferiority(simplex: list[float], expanding: list[float], verdict: str) -> None:
    found = claim(1, runs(mnist("simplex"), simplex), runs(mnist("expanding"), expanding))
    assert found.verdict == verdict
    assert [each.where for each in found.tested] == ["split-mnist, M=100"]
    assert found.tested[0].paper == pytest.approx(82.32 - 80.1)


def test_one_place_where_a_claim_fails_is_enough() -> None:
    found = claim(
        1,
        runs(mnist("simplex"), [82.0, 83.0, 84.0]), runs(mnist("expanding"), [82.0, 83.1, 83.9]),
        runs(mnist("simplex", 1100), [70.0, 71.0, 72.0]), runs(mnist("expanding", 1100), [80.0, 81.0, 82.1]),
    )
    assert found.verdict == "does not hold"
    assert "Holds on: split-mnist, M=100." in found.scope and "Does not hold on: split-mnist, M=1100." in found.scope


@pytest.mark.parametrize(
    ("small", "verdict"),
    [([90.0, 90.1, 89.9], "holds"), ([80.0, 80.1, 79.9], "does not hold"), ([80.0, 95.0, 85.0], "not enough runs")],
)
def test_less_memory_compares_what_each_head_loses(small: list[float], verdict: str) -> None:
    found = claim(
        2,
        runs(mnist("simplex", 1100), [96.0, 96.1, 96.0]), runs(mnist("simplex"), small),
        runs(mnist("expanding", 1100), [96.0, 96.1, 96.0]), runs(mnist("expanding"), [80.0, 80.0, 80.0]),
    )
    assert found.verdict == verdict


def test_preallocating_compares_many_slots_with_few_on_any_benchmark() -> None:
    few, many = runs(mnist("simplex"), [80.0, 81.0, 82.0]), mnist("simplex", slots=1000)
    assert claim(3, few, runs(many, [80.0, 81.1, 82.0])).verdict == "holds"
    assert claim(3, few, runs(many, [60.0, 61.1, 62.0])).verdict == "does not hold"
    assert claim(3, few).verdict == "not enough runs"
    cifar = Config("split-cifar10", memory=100)
    found = claim(3, runs(cifar, [31.0, 32.0]), runs(dataclasses.replace(cifar, slots=1000), [31.0, 32.0]))
    assert [each.where for each in found.tested] == ["split-cifar10, M=100, K=10 to 1000"]
    assert found.tested[0].paper == pytest.approx(32.27 - 31.8)


def test_geometry_compares_how_far_weights_and_features_turned() -> None:
    fixed = runs(mnist("simplex"), [82.0, 83.0], drift=40.0, mean_head_drift=0.0, separation=[90.0, 80.0])
    free = runs(mnist("expanding"), [82.0, 83.0], drift=33.0, mean_head_drift=30.0, separation=[90.0, 55.0])
    found = claim(4, fixed, free)
    assert [(each.where, each.verdict) for each in found.tested] == [
        ("split-mnist, M=100, weights", "holds"), ("split-mnist, M=100, features", "holds")
    ]
    weights, features = (each.interval for each in found.tested)
    assert weights is not None and weights.estimate == pytest.approx(30.0)
    assert features is not None and features.estimate == pytest.approx(60.0 - 50.0)  # 33 of 55, 40 of 80
    assert found.verdict == "holds"
    more = runs(mnist("simplex"), [82.0, 83.0], drift=70.0, mean_head_drift=0.0, separation=[90.0, 80.0])
    assert claim(4, more, free).verdict == "does not hold"


def searched(kept: float) -> dict[str, Any]:
    """Compatibility of models that find `kept` percent in old galleries, and everything in their own."""
    matrix = [[100.0 if i == j else kept for j in range(i + 1)] for i in range(5)]
    summary = compatibility.summary(matrix, matrix)
    assert summary is not None
    return summary


def test_geometry_is_judged_by_compatibility_too() -> None:
    fixed = runs(mnist("simplex"), [82.0, 83.0], drift=None, compatibility=searched(98.0))
    free = runs(mnist("expanding"), [82.0, 83.0], drift=None, compatibility=searched(95.0))
    (found,) = claim(4, fixed, free).tested
    assert (found.where, found.verdict) == ("split-mnist, M=100, compatibility", "holds")
    assert found.interval is not None and found.interval.estimate == pytest.approx(3.0)
    assert found.note == "simplex -2.0 points, expanding -5.0 points"
    assert claim(4, free, runs(mnist("simplex"), [82.0, 83.0], drift=None, compatibility=searched(90.0))).verdict == (
        "does not hold"
    )


def test_the_sphere_and_the_strong_recipe_stand_beside_the_papers_claim_and_do_not_decide_it() -> None:
    free = runs(mnist("expanding"), [82.0, 83.0], drift=30.0, separation=[60.0])
    fixed = runs(mnist("simplex"), [82.0, 83.0], drift=50.0, separation=[60.0])
    sphere = runs(mnist("simplex", vertex_probability=0.99), [82.0, 83.0], drift=10.0, separation=[60.0])
    found = claim(4, fixed, free, sphere)
    assert [(each.where, each.verdict, each.beyond) for each in found.tested] == [
        ("split-mnist, M=100, features", "does not hold", False),
        ("split-mnist, M=100, sphere, features", "holds", True),
    ]
    assert found.verdict == "does not hold"
    paper = sum(not each.beyond for each in found.evidence)
    assert found.count == f"does not hold in 1 of {paper} conditions"


def test_geometry_takes_degrees_from_records_that_know_no_separation() -> None:
    fixed, free = runs(mnist("simplex"), [82.0, 83.0], drift=3.0), runs(mnist("expanding"), [82.0, 83.0], drift=30.0)
    found = claim(4, fixed, free)
    assert [each.where for each in found.tested] == ["split-mnist, M=100, features"]
    assert found.tested[0].note == "simplex 3.0°, expanding 30.0°" and found.verdict == "holds"
    assert not claim(4, runs(mnist("simplex"), [82.0, 83.0], drift=None), free).tested


def test_a_penalty_fails_if_replay_is_far_above_it() -> None:
    replay = runs(mnist("simplex"), [82.0, 83.0, 84.0])
    assert claim(5, replay, runs(Config("split-mnist", method="ewc"), [20.0, 19.9, 20.1])).verdict == "holds"
    assert claim(5, replay, runs(Config("split-mnist", method="ewc"), [80.0, 80.9, 82.1])).verdict == "does not hold"


def test_every_cell_finds_the_runs_of_its_own_configuration() -> None:
    keys = {cell: key(cell.config()) for cell in paper.cells()}
    for cell in paper.cells():
        made = runs(cell.config(), [50.0, 52.0])
        edition = editions(made)[0]
        assert edition.of_cell(cell) == tuple(made)
        assert not any(edition.of_cell(other) for other in keys if keys[other] != keys[cell])
    assert len(set(keys.values())) == 40 + 16 + 16 - 4  # Tables 2 and 3 start with four simplex cells of Table 1


def test_a_run_with_another_strength_is_in_no_cell_and_has_no_published_number() -> None:
    other = Config("split-cifar10", method="ewc", strength=50.0)
    edition = editions(runs(other, [30.0, 31.0]))[0]
    assert tally(tables(edition)).run == 0 and len(edition.alike) == 1
    assert paper.published(other) is None
    assert paper.published(Config("split-cifar10", method="ewc", seed=4)) is not None


def test_a_run_off_the_protocol_is_in_no_cell() -> None:
    edition = editions(runs(Config("split-mnist", memory=100, epochs=1), [70.0]))[0]
    assert tally(tables(edition)).run == 0 and len(edition.alike) == 1


def test_quick_runs_never_mix_with_full_ones() -> None:
    quick = runs(Config("split-mnist", memory=100, quick=True), [50.0, 51.0])
    full = runs(mnist("simplex"), [80.0])
    cell = next(c for c in paper.cells("table1") if c.config() == Config("split-mnist", head="simplex", memory=100))
    first, second = editions(quick + full)
    assert first.of_cell(cell) == tuple(full) and not first.mark
    assert second.of_cell(cell) == tuple(quick) and second.mark == "quick, scaled down"
    assert [edition.quick for edition in editions(quick)] == [True]


def test_the_two_by_two_is_shown_with_what_is_missing() -> None:
    def permuted(head: str, softmax_over: str) -> Config:
        return Config("permuted-mnist", memory=100, head=head, softmax_over=softmax_over)

    some = runs(permuted("simplex", "all"), [81.0]) + runs(permuted("expanding", "all"), [79.0])
    some += runs(permuted("preallocated", "seen"), [64.0])
    square = questions(editions(some)[0])[0]
    assert [each.text for each in square.readings] == ["81.00", "not run", "79.00", "64.00"]
    assert "+15.00 points" in square.answer and "no interval" in square.answer
    assert "--softmax-over seen" in square.readings[1].config.command()


def test_each_question_of_two_heads_names_its_own_columns() -> None:
    by_title = {question.title: question for question in questions(editions(())[0])}
    rates = by_title["Which learning rate? split-mnist, M=100"]
    assert rates.columns == ("learning rate 0.001", "learning rate 0.0001")
    assert {row: [each.config.lr for each in some] for row, some in rates.rows.items()} == {
        "simplex": [0.001, 0.0001], "expanding": [0.001, 0.0001]
    }
    pair = by_title["Does GEM train on its memory as well? split-mnist, M=100"]
    assert pair.columns == ("",) and list(pair.rows) == ["new data alone", "memory as well"]


def test_pre_allocation_is_asked_on_split_mnist_for_both_heads() -> None:
    def slots(head: str, number: int) -> Config:
        return Config("split-mnist", memory=100, head=head, slots=number)

    some = runs(slots("simplex", 10), [80.0, 82.0, 81.0]) + runs(slots("simplex", 1000), [81.0, 84.0, 82.0])
    some += runs(slots("preallocated", 10), [79.0]) + runs(slots("preallocated", 50), [77.0])
    (asked,) = [each for each in questions(editions(some)[0]) if each.title.endswith("accuracy? split-mnist, M=100")]
    assert [each.text for each in asked.rows["trainable"]] == ["79.00", "77.00", "not run", "not run"]
    # differences 1, 2, 1: mean 1.33, deviation 0.577, t(0.975, 2 degrees of freedom) = 4.303
    assert asked.answer == (
        "Against 10 slots: simplex, 1000 slots: +1.33 points (95 %: −0.10 to +2.77); "
        "trainable, 50 slots: −2.00 points (one seed, no interval)."
    )
