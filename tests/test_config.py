"""A configuration decides a run's numbers; its hash names the run, however it was typed."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from holdfast.errors import BadConfig, HoldfastError, UnknownName
from holdfast.methods import METHODS
from holdfast.paper import cells as paper
from holdfast.runs.benchmarks import BENCHMARKS, Benchmark
from holdfast.runs.config import Config

# Published results are stored under these names. If one of them changes, every stored run of it is lost:
# let a new option default to what was done before, and leave `to_json` and the defaults as they are.
PINNED = {
    "split-mnist-replay-simplex-m100-s0-f26afb4fd9a3": Config("split-mnist", memory=100),
    "split-mnist-replay-expanding-m100-s0-7adb90d0f7a1": Config("split-mnist", memory=100, head="expanding"),
    "split-mnist-replay-simplex-m1100-s0-be86101412a4": Config("split-mnist"),
    "permuted-mnist-replay-expanding-m100-s3-9fbb917c6273": Config(
        "permuted-mnist", memory=100, head="expanding", seed=3, lr=0.001
    ),
    "permuted-mnist-replay-expanding-m100-s0-a19679f31cd7": Config("permuted-mnist", memory=100, head="expanding"),
    "split-mnist-ewc-expanding-s0-d97afbaf3657": Config("split-mnist", method="ewc"),
    "split-mnist-finetune-expanding-s0-8810463a22da": Config("split-mnist", method="finetune"),
    "split-digits-replay-simplex-m50-s0-4b0fe882c3d3": Config("split-digits"),
}


@pytest.mark.parametrize(("name", "config"), PINNED.items(), ids=PINNED)
def test_runs_keep_the_names_that_results_are_stored_under(name: str, config: Config) -> None:
    assert config.name == name
    assert config.resolved().name == name


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_what_is_left_out_is_the_benchmarks(name: str) -> None:
    benchmark, full = BENCHMARKS[name], Config(name).resolved()
    assert (full.backbone, full.epochs) == (benchmark.backbone, benchmark.epochs)
    assert full.get("memory") == benchmark.options["memory"]
    assert (full.slots, full.augment) == (benchmark.classes, benchmark.augment)
    assert (full.method, full.head, full.optimizer, full.lr) == ("replay", "simplex", "adam", benchmark.lr or 0.001)
    assert full.phases() == benchmark.tasks
    assert full.resolved() == full


PAPERS = {  # protocol.md: data set, tasks x classes, network, epochs a task, augmentation, memories
    "split-mnist": ("mnist", 5, 2, "lenet", 5, "none", [100, 1100]),
    "permuted-mnist": ("mnist", 10, 10, "lenet", 5, "none", [100, 1100]),
    "split-cifar10": ("cifar10", 5, 2, "resnet56", 10, "crop-flip", [100, 1100]),
    "split-cifar100": ("cifar100", 5, 20, "resnet56", 10, "crop-flip", [1400, 5600]),
}


@pytest.mark.parametrize(("name", "protocol"), PAPERS.items(), ids=PAPERS)
def test_the_papers_benchmarks_are_as_the_protocol_has_them(name: str, protocol: tuple[object, ...]) -> None:
    found, full = BENCHMARKS[name], Config(name).resolved()
    memories = sorted({cell.memory for cell in paper.cells() if cell.benchmark == name and cell.memory})
    assert (found.dataset, found.tasks, found.classes_per_task) == protocol[:3]
    assert (full.backbone, full.epochs, full.augment, memories) == protocol[3:]
    assert full.get("memory") in memories and (full.batch, full.order) == (128, "label")


def test_what_is_left_out_is_the_methods() -> None:
    gem = Config("split-mnist", method="gem").resolved()
    assert (gem.optimizer, gem.lr) == ("sgd", 0.01)
    assert Config("split-mnist", method="finetune").resolved().head == "expanding"
    assert Config("split-mnist", method="finetune").resolved().get("memory") is None
    assert Config("permuted-mnist", method="ewc").resolved().get("strength") == 10
    assert Config("permuted-mnist", tasks=3).resolved().slots == 30
    assert Config("split-mnist", quick=True).resolved().epochs == 1


@pytest.mark.parametrize(
    "spelled",
    [
        {"head": "simplex", "epochs": 5, "memory": 1100, "lr": 0.001, "optimizer": "adam", "slots": 10},
        {"softmax_over": "all"},
        {"tasks": 5},
        {"classes_per_task": 2},
        {"tasks": 5, "classes_per_task": 2},
        {"backbone": "lenet", "augment": "none", "batch": 128},
    ],
    ids=str,
)
def test_a_default_spelled_out_names_the_same_run(spelled: dict[str, Any]) -> None:
    assert Config("split-mnist", **spelled).hash == Config("split-mnist").hash


def test_equal_numbers_name_the_same_run() -> None:
    assert Config("split-mnist", method="ewc", strength=600.0).hash == Config("split-mnist", method="ewc").hash
    assert Config("split-mnist", lr=1.0).hash == Config("split-mnist", lr=1).hash
    expanding = Config("split-mnist", head="expanding")
    assert Config("split-mnist", head="expanding", softmax_over="seen").hash == expanding.hash
    assert Config("split-digits", tasks=4).hash == Config("split-digits", classes_per_task=3).hash


def test_different_runs_have_different_names() -> None:
    configs = [
        Config("split-mnist"), Config("split-mnist", seed=1), Config("split-mnist", memory=100),
        Config("split-mnist", softmax_over="seen"), Config("split-mnist", head="expanding"),
        Config("split-mnist", lr=0.01), Config("split-mnist", schedule="3"),
        Config("split-mnist", head="preallocated"), Config("split-mnist", tasks=2), Config("split-mnist", slots=20),
        Config("split-mnist", quick=True), Config("split-fashion-mnist"),
    ]
    assert len({config.hash for config in configs}) == len(configs)


# What cannot be: the value must be named, and so must a way out.
IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"slots": 5}, r"5 slots.*10 classes.*raise slots"),
    ({"memory": 5}, r"memory of 5.*10 classes.*at least 10, or 0"),
    ({"head": "polygon", "slots": 1000}, r"polygon of 1000.*simplex.*100"),
    ({"head": "cube", "slots": 2**65}, r"2\*\*64.*36893488147419103232"),
    ({"embedding": 4}, r"embedding is 4.*leave it out, or choose one of expanding, preallocated"),
    ({"tasks": 6}, r"tasks is 6.*1, 2, 3, 4, 5, 10"),
    ({"tasks": 0}, r"tasks is 0.*1 or more"),
    ({"classes_per_task": 11}, r"classes_per_task is 11.*1 to 10"),
    ({"classes_per_task": 0}, r"classes_per_task is 0.*1 or more"),
    ({"tasks": 5, "classes_per_task": 3}, r"tasks is 5.*classes_per_task is 3.*leave one"),
    ({"benchmark": "permuted-mnist", "classes_per_task": 2}, r"classes_per_task is 2.*set tasks"),
    ({"benchmark": "permuted-mnist", "order": "shuffled"}, r"order is 'shuffled'.*leave it out"),
    ({"batch": 1}, r"batch is 1.*2 or more"),
    ({"batch": 64.5}, r"batch is 64.5.*whole number"),
    ({"epochs": 0}, r"epochs is 0.*1 or more"),
    ({"epochs": True}, r"epochs is True.*whole number"),
    ({"seed": -1}, r"seed is -1.*0 or more"),
    ({"memory": -1}, r"memory is -1.*0 or more"),
    ({"lr": 0.0}, r"lr is 0.*above 0"),
    ({"lr": float("nan")}, r"lr is nan.*finite"),
    ({"lr": "fast"}, r"lr is 'fast'.*number"),
    ({"validation": 1.0}, r"validation is 1.*0 or more, below 1"),
    ({"order": "random"}, r"order is 'random'.*label, shuffled"),
    ({"softmax_over": "some"}, r"softmax_over is 'some'.*all, seen"),
    ({"optimizer": "lion"}, r"optimizer is 'lion'.*adam, sgd"),
    ({"policy": "reservor"}, r"'reservor'.*Did you mean 'reservoir'"),
    ({"head": "simplx"}, r"'simplx'.*Did you mean 'simplex'"),
    ({"method": "replai"}, r"'replai'.*Did you mean 'replay'"),
    ({"backbone": "lenett"}, r"'lenett'.*Did you mean 'lenet'"),
    ({"augment": "crop"}, r"'crop'.*Did you mean 'crop-flip'"),
    ({"benchmark": "split-minst"}, r"'split-minst'.*Did you mean 'split-mnist'"),
    ({"strength": 3.0}, r"strength is 3.*'replay'.*has such an option.*ewc"),
    ({"method": "icarl", "radius": 3.0}, r"radius is 3.*the method 'icarl' nor the head 'expanding' nor the backbone "
                                         r"'lenet' has such an option.*simplex"),
    ({"method": "finetune", "memory": 100}, r"memory is 100.*'finetune'.*has such an option.*replay"),
    ({"method": "gem", "margin": -1.0}, r"margin is -1.*0 or more"),
    ({"schedule": "soon"}, r"schedule is 'soon'.*5,8"),
    ({"schedule": "0,3"}, r"schedule is '0,3'.*5,8"),
    ({"quick": 1}, r"quick is 1.*true or false"),
    ({"epochs": 10**10}, r"epochs is 10000000000.*2,147,483,647"),
    ({"slots": 10**5000}, r"slots is a number of more than 40 digits"),
    ({"head": "preallocated", "slots": 2**62}, r"preallocated.*too large.*lower slots"),
    ({"benchmark": 3}, r"benchmark is 3.*name"),
    ({"augment": len}, r"augment is a function.*register it under a name"),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("benchmark", ["split-digits", "split-fashion-mnist", "tiny"])
def test_no_method_needs_a_number_from_the_user(method: str, benchmark: str) -> None:
    config = Config(benchmark, method=method)
    full = config.resolved()
    missing = [name for _, _, declares in full.owners() for name in declares.fallbacks if full.get(name) is None]
    assert not missing
    if benchmark == "split-digits":
        assert not config.fallbacks()  # searched for, on a validation split
    assert Config.from_json(full.to_json()).hash == full.hash


def test_a_fallback_stands_in_only_where_neither_user_nor_benchmark_chose() -> None:
    assert Config("tiny", method="ewc").fallbacks() == {"strength": 100.0}
    assert Config("tiny", method="ewc").resolved().get("strength") == 100.0
    assert Config("tiny", method="der++", alpha=0.2).fallbacks() == {"beta": 0.5}
    assert Config("split-mnist", method="ewc").fallbacks() == {}
    assert Config("split-mnist", method="ewc").resolved().get("strength") == 600


@pytest.mark.parametrize(("values", "message"), IMPOSSIBLE, ids=[message for _, message in IMPOSSIBLE])
def test_what_cannot_be_is_refused_with_a_remedy(values: dict[str, Any], message: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        Config(**{"benchmark": "split-digits", **values}).resolved()
    assert isinstance(caught.value, BadConfig | UnknownName)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_a_configuration_survives_json() -> None:
    config = Config("split-mnist", method="ewc", strength=0.3, seed=4).resolved()
    again = Config.from_json(json.loads(json.dumps(config.to_json())))
    assert again.resolved() == config and again.hash == config.hash
    assert Config.from_json(Config("split-mnist").to_json()) == Config("split-mnist")


def test_json_holds_only_what_differs_so_that_a_new_field_changes_no_hash() -> None:
    assert Config("split-mnist").to_json() == {"benchmark": "split-mnist"}
    assert Config("split-mnist", seed=0, batch=128, lr=0.1).to_json() == {"benchmark": "split-mnist", "lr": 0.1}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"benchmark": "split-mnist", "memory": [100]}, "names, numbers, true or false"),
        ({"head": "simplex"}, "no benchmark"),
        ([], "no benchmark"),
        ({"benchmark": 3}, "no benchmark"),
        ({"benchmark": "split-mnist", "lr": "0.1"}, "lr is '0.1'"),
    ],
)
def test_json_that_is_no_configuration_is_refused(values: Any, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        Config.from_json(values)


def test_it_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config("split-mnist").seed = 1  # type: ignore[misc]


def test_the_papers_cells_are_known_by_any_seed_and_only_by_the_papers_protocol() -> None:
    cell = paper.published(Config("split-mnist", memory=100, seed=7))
    assert cell is not None and (cell.mean, cell.std) == (82.32, 2.19)
    rival = paper.published(Config("split-mnist", memory=100, head="expanding", softmax_over="seen"))
    assert rival is not None and (rival.mean, rival.std) == (80.10, 3.29)
    for other in ({"epochs": 4}, {"memory": 200}, {"policy": "reservoir"}, {"softmax_over": "seen"}, {"lr": 0.01}):
        assert paper.published(Config("split-mnist", **{"memory": 100, **other})) is None
    assert paper.published(Config("split-cifar10", head="cube")) is None


def test_an_option_that_nobody_has_is_refused_though_the_json_is_a_configuration() -> None:
    with pytest.raises(BadConfig, match=r"colour is 1.*leave it out"):
        Config.from_json({"benchmark": "split-mnist", "colour": 1}).resolved()


def test_the_options_are_those_of_the_method_the_head_and_the_backbone() -> None:
    full = Config("split-mnist", head="expanding", embedding=8, memory=100).resolved()
    assert full.options_of("method").memory == full.get("memory") == full.options["memory"] == 100
    assert full.options_of("head").embedding == 8 and full.options_of("head").softmax_over == "seen"
    assert full.get("strength") is None


def test_a_schedule_has_one_spelling() -> None:
    assert Config("split-mnist", schedule=" 8,5, 8").resolved().schedule == "5,8"
    assert Config("split-mnist", schedule="8,5").hash == Config("split-mnist", schedule="5,8").hash
    assert Config("split-mnist", schedule="5,8").hash != Config("split-mnist").hash


@pytest.mark.parametrize(
    "other", [{"tasks": 2, "classes_per_task": 5}, {"dataset": "mnist"}, {"total": 9}], ids=str
)
def test_a_benchmark_registered_anew_with_other_content_is_another_run(
    other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash covers what a benchmark's name stands for, so that no old result is taken for a new one's."""

    def hashed(benchmark: Benchmark) -> str:
        monkeypatch.setitem(BENCHMARKS._things, "mine", benchmark)
        monkeypatch.setitem(BENCHMARKS._lines, "mine", "for this test")
        return Config("mine", tasks=2, slots=20, memory=20).hash

    mine = dataclasses.replace(BENCHMARKS["split-digits"], name="mine")
    assert hashed(mine) == hashed(dataclasses.replace(mine, options={"memory": 30}))  # a default is not content
    assert hashed(mine) != hashed(dataclasses.replace(mine, **other))


@pytest.mark.parametrize("name", ["batch", "seed", "order", "validation"])
def test_what_has_a_default_is_not_none(name: str) -> None:
    with pytest.raises(BadConfig, match=f"{name} is None|cannot be"):
        Config.from_json({"benchmark": "split-mnist", name: None})
