"""What the name of a recipe stands for, and which options of replay go together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadConfig
from holdfast.methods import distillation, recipes
from holdfast.runs.benchmarks import BENCHMARKS
from holdfast.runs.config import Config


def strong(name: str, **given: Any) -> Config:
    """The run that `holdfast run NAME --recipe strong` makes, with options given beside it."""
    protocol = {key: given.pop(key) for key in ("augment", "method") if key in given}
    benchmark = BENCHMARKS[name]
    options = recipes.expand(
        "strong", given, method=protocol.get("method", "replay"), augment=protocol.get("augment", benchmark.augment),
        strong=benchmark.strong,
    )
    return Config(name, **protocol, **options).resolved()


def test_the_paper_s_recipe_sets_nothing() -> None:
    assert recipes.expand("paper", {}) == {}
    assert recipes.expand("paper", {"memory": 100}, method="ewc") == {"memory": 100}


@pytest.mark.parametrize(
    ("given", "message"),
    [({"recipe": "stronk"}, "paper, strong"), ({"recipe": "strong", "method": "gem"}, "'replay', not 'gem'")],
)
def test_a_recipe_that_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        recipes.expand(given.pop("recipe"), {}, **given)


def test_an_option_given_beside_a_recipe_keeps_its_value() -> None:
    assert strong("split-mnist", augment_memory="crop-flip").get("augment_memory") == "crop-flip"
    other = strong("permuted-mnist", distill="features")
    assert (other.get("distill"), other.options_of("method").weight) == ("features", distillation.WEIGHTS["features"])
    assert strong("permuted-mnist", distill="logits") == strong("permuted-mnist")


@pytest.mark.parametrize("off", [{"balance": False}, {"augment_memory": "none"}, {"distill": "none"}], ids=str)
def test_an_option_turned_off_beside_a_recipe_is_off(off: dict[str, Any]) -> None:
    (name,) = off
    without, full = strong("split-mnist", **off), strong("split-mnist")
    assert without.get(name) == off[name] != full.get(name)
    assert without.hash != full.hash and Config.from_json(without.to_json()).hash == without.hash
    others = {"balance", "augment_memory", "distill"} - {name}
    assert all(without.get(other) == full.get(other) for other in others)


@pytest.mark.parametrize("name", ["split-mnist", "permuted-mnist"])
def test_without_a_memory_a_recipe_is_what_needs_none(name: str) -> None:
    without = strong(name, memory=0)
    assert without == Config(name, balance=True, memory=0).resolved()
    assert Config(name, memory=0, augment_memory="none", distill="none").hash == Config(name, memory=0).hash
    assert "--balance" in without.command()


def test_a_run_s_command_spells_a_recipe_out() -> None:
    said = strong("split-mnist").command()
    assert said.startswith("holdfast run split-mnist ") and "recipe" not in said
    assert {"--balance", "--augment-memory", "--distill"} <= set(said.split())
    assert Config("split-mnist", balance=True).command() == "holdfast run split-mnist --balance"
    assert Config("split-mnist", method="finetune").command() == "holdfast run split-mnist --method finetune"


# The table of docs/beyond.md, and the weights it leaves to the options.
STRONG = {
    "split-mnist": (True, "shift", "features", 5.0),
    "split-digits": (True, "shift", "features", 5.0),
    "split-fashion-mnist": (True, "crop-flip", "features", 5.0),
    "split-cifar10": (True, "none", "logits", 2.0),
    "split-cifar100": (True, "none", "logits", 2.0),
    "permuted-mnist": (True, "none", "logits", 2.0),
}


def documented() -> dict[str, str]:
    """The table "strong stands for", by benchmark: the flags."""
    page = (Path(__file__).parents[1] / "docs" / "beyond.md").read_text()
    table = page.split("| strong stands for |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return {name: words.split("`")[1] for names, words in rows for name in names.split(", ")}


@pytest.mark.parametrize("name", STRONG)
def test_strong_stands_for_these_options(name: str) -> None:
    full = strong(name)
    options = full.options_of("method")
    assert (options.balance, options.augment_memory, options.distill, options.weight) == STRONG[name]
    assert full.hash != Config(name).hash


@pytest.mark.parametrize("name", STRONG)
def test_strong_stands_for_what_the_documentation_says(name: str) -> None:
    flags = re.findall(r"--(\S+)(?: (?!--)(\S+))?", documented()[name])
    given = {flag.replace("-", "_"): float(value) if "weight" in flag else value or True for flag, value in flags}
    assert Config(name, **given).resolved() == strong(name)


def test_no_augmentation_is_done_twice() -> None:
    assert strong("split-mnist", augment="shift").get("augment_memory") == "none"
    assert strong("split-cifar10", augment="none").get("augment_memory") == "crop-flip"


def test_two_ways_to_say_one_thing_are_one_run() -> None:
    assert Config("split-mnist", memory_batch=64).hash == Config("split-mnist").hash
    assert Config("split-mnist", batch=32, memory_batch=16).hash == Config("split-mnist", batch=32).hash
    assert Config("split-mnist", memory_batch=46).command() == "holdfast run split-mnist --memory-batch 46"
    during = Config("split-mnist", store="during")
    assert Config("split-mnist", store="during", policy="reservoir").hash == during.hash
    weighted = Config("split-mnist", distill="features", distill_weight=distillation.WEIGHTS["features"])
    assert weighted.hash == Config("split-mnist", distill="features").hash


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"distill": "labels"}, "logits, features"),
        ({"store": "before"}, "after, during"),
        ({"augment_memory": "crop"}, "Did you mean 'crop-flip'"),
        ({"balance": True, "absent_count": 0.0}, "above 0"),
        ({"balance": True, "absent_count": 1.5}, "at most 1"),
        ({"balance": True, "absent_count": float("nan")}, "at most 1"),
        ({"balance": "yes"}, "true or false"),
        ({"balance": 1}, "true or false"),
        ({"memory": 0, "augment_memory": "shift"}, "memory is 0.*leave augment_memory out, or give a memory"),
        ({"memory": 0, "distill": "features"}, "leave distill out"),
        ({"memory": 0, "store": "during"}, "leave store out"),
        ({"memory": 0, "memory_batch": 32}, "leave memory_batch out"),
        ({"distill": "logits", "distill_weight": -1.0}, "0 or more"),
        ({"distill": "logits", "distill_weight": float("nan")}, "finite"),
        ({"distill_weight": 0.5}, "distill is off"),
        ({"absent_count": 0.5}, "balance is off"),
        ({"store": "during", "policy": "herding"}, "uses a reservoir"),
        ({"memory_batch": 128}, "memory_batch is 128, but a batch has 128"),
        ({"memory_batch": 0}, "1 or more"),
        ({"balance": True, "head": "cube", "slots": 2**40}, "turn balance off .balance=False, --no-balance"),
        ({"distill": "logits", "head": "cube", "slots": 2**40}, "turn distill off .distill='none'"),
        ({"method": "gem", "memory_batch": 32}, "has such an option.*replay"),
        ({"method": "finetune", "balance": True}, "has such an option.*replay"),
        ({"method": "agem", "augment_memory": "shift"}, "has such an option.*replay"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_before_anything_starts(values: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        Config("split-mnist", **values).resolved()
