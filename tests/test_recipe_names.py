"""What the name of a recipe stands for, and which options go together."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from steadfast.benchmarks import BENCHMARKS
from steadfast.config import Config
from steadfast.errors import BadConfig
from steadfast.methods import recipe
from steadfast.recipes import RECIPES


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_a_recipe_and_its_options_spelled_out_are_the_same_run(name: str) -> None:
    named, spelled = Config(name, recipe="strong"), Config(name, **RECIPES["strong"](BENCHMARKS[name]))
    assert named.resolved() == spelled.resolved()
    assert named.hash == spelled.hash != Config(name).hash


def test_an_option_given_beside_a_recipe_keeps_its_value() -> None:
    assert Config("split-mnist", recipe="strong", vary="crop-flip").resolved().vary == "crop-flip"
    other = Config("permuted-mnist", recipe="strong", distill="features").resolved()
    assert (other.distill, other.distill_weight) == ("features", recipe.WEIGHTS["features"])
    same = Config("permuted-mnist", recipe="strong", distill="logits").resolved()
    assert same == Config("permuted-mnist", recipe="strong").resolved()


@pytest.mark.parametrize("off", [{"balance": False}, {"vary": "none"}, {"distill": "none"}])
def test_an_option_turned_off_beside_a_recipe_is_off(off: dict[str, Any]) -> None:
    (name,) = off
    without, strong = Config("split-mnist", recipe="strong", **off), Config("split-mnist", recipe="strong")
    assert getattr(without.resolved(), name) == off[name] != getattr(strong.resolved(), name)
    assert without.hash != strong.hash
    assert Config.from_json(without.to_json()).hash == without.hash
    others = [other for other in recipe.OFF if other != name]
    assert all(getattr(without.resolved(), other) == getattr(strong.resolved(), other) for other in others)


@pytest.mark.parametrize("name", ["split-mnist", "permuted-mnist"])
def test_without_a_memory_a_recipe_is_what_needs_none(name: str) -> None:
    without = Config(name, recipe="strong", memory=0).resolved()
    assert without == without.resolved() == Config(name, balance=True, memory=0).resolved()
    assert Config(name, memory=0, vary="none", distill="none").hash == Config(name, memory=0).hash
    assert "--balance" in without.command() and "recipe" not in without.command()
    # As such a run was stored before what needs a memory was refused.
    earlier = {**without.to_json(), "vary": "shift", "distill": "features", "distill_weight": 5.0}
    assert Config.from_json(earlier).resolved() == without
    benchmark = dataclasses.replace(BENCHMARKS[name], memory=0)
    assert Config(name, recipe="strong").resolved(benchmark).distill == "none"


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_a_run_of_a_recipe_echoes_its_name(name: str) -> None:
    full = Config(name, recipe="strong", seed=3).resolved()
    assert full.command() == f"steadfast run {name} --seed 3 --recipe strong"
    assert Config(name, balance=True).resolved().command() == f"steadfast run {name} --balance"
    assert Config(name, method="finetune").resolved().command() == f"steadfast run {name} --method finetune"


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


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_strong_stands_for_what_the_documentation_says(name: str) -> None:
    full = Config(name, recipe="strong").resolved()
    assert (full.balance, full.vary, full.distill, full.distill_weight) == STRONG[name]
    flags = re.findall(r"--(\S+)(?: (?!--)(\S+))?", documented()[name])
    given = {flag.replace("-", "_"): float(value) if "weight" in flag else value or True for flag, value in flags}
    assert Config(name, **given).resolved() == full


def test_no_variation_is_done_twice_whatever_the_whole_batch_is_varied_by() -> None:
    assert Config("split-mnist", recipe="strong", augment="shift").resolved().vary == "none"
    assert Config("split-cifar10", recipe="strong", augment="none").resolved().vary == "crop-flip"


def test_two_ways_to_say_one_thing_are_one_run() -> None:
    assert Config("split-mnist", remembered=64).hash == Config("split-mnist").hash
    assert Config("split-mnist", batch=32, remembered=16).hash == Config("split-mnist", batch=32).hash
    assert Config("split-mnist", remembered=46).command() == "steadfast run split-mnist --remembered 46"
    during = Config("split-mnist", insert="during")
    assert Config("split-mnist", insert="during", policy="reservoir").hash == during.hash


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"recipe": "stronk"}, "paper, strong"),
        ({"distill": "labels"}, "logits, features"),
        ({"insert": "before"}, "after, during"),
        ({"balance": True, "empty": 0.0}, "above 0"),
        ({"balance": True, "empty": 1.5}, "at most 1"),
        ({"balance": True, "empty": float("nan")}, "at most 1"),
        ({"balance": "yes"}, "True or False"),
        ({"balance": 1}, "True or False"),
        ({"memory": 0, "vary": "shift"}, "memory is 0.*leave vary out, or give a memory"),
        ({"memory": 0, "distill": "features"}, "leave distill out"),
        ({"memory": 0, "recipe": "strong", "distill": "logits"}, "leave distill out"),
        ({"memory": 0, "insert": "during"}, "leave insert out"),
        ({"memory": 0, "remembered": 32}, "leave remembered out"),
        ({"distill": "logits", "distill_weight": -1.0}, "0 or more"),
        ({"distill": "logits", "distill_weight": float("nan")}, "finite"),
        ({"distill_weight": 0.5}, "distill is off"),
        ({"empty": 0.5}, "balance is off"),
        ({"insert": "during", "policy": "herding"}, "by reservoir"),
        ({"remembered": 128}, "remembered is 128, of a batch of 128"),
        ({"remembered": 0}, "1 or more"),
        ({"method": "gem", "remembered": 32}, "no such option"),
        ({"balance": True, "head": "cube", "slots": 2**40}, "leave balance out .balance=False, or recipe='paper'"),
        ({"distill": "logits", "head": "cube", "slots": 2**40}, "leave distill out .distill='none', or"),
        ({"method": "finetune", "balance": True}, "no such option"),
        ({"method": "agem", "vary": "shift"}, "no such option"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(values: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        Config("split-mnist", **values).resolved()
