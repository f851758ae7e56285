"""Registries: names to things, the nearest name for a wrong one, and what other packages add."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from holdfast import registry
from holdfast.backbones import BACKBONES
from holdfast.data import DATASETS
from holdfast.errors import BadConfig, HoldfastError, UnknownName
from holdfast.heads import HEADS
from holdfast.learning.augment import AUGMENTATIONS
from holdfast.loggers import LOGGERS
from holdfast.methods import METHODS
from holdfast.options import Options, declared, option
from holdfast.runs.benchmarks import BENCHMARKS

EVERY_REGISTRY = [AUGMENTATIONS, BACKBONES, BENCHMARKS, DATASETS, HEADS, LOGGERS, METHODS]


@pytest.fixture
def colours() -> registry.Registry[object]:
    made: registry.Registry[object] = registry.Registry("colour", "holdfast.tests.colours")
    made.register("red", "like blood")(1)
    made.register("green", "like grass")(2)
    return made


def test_it_is_a_mapping_with_a_line_each(colours: registry.Registry[object]) -> None:
    assert dict(colours) == {"red": 1, "green": 2}
    assert colours.describe() == {"red": "like blood", "green": "like grass"}
    assert "red" in colours and "blue" not in colours and len(colours) == 2
    assert colours.get("blue") is None


def test_a_wrong_name_is_answered_with_the_nearest_and_all_known(colours: registry.Registry[object]) -> None:
    with pytest.raises(UnknownName, match=r"no colour called 'gren'. Did you mean 'green'. Known: green, red"):
        colours["gren"]
    with pytest.raises(KeyError) as caught:  # so that it behaves as a mapping
        colours["xyzzy"]
    assert isinstance(caught.value, HoldfastError) and "Did you mean" not in str(caught.value)


def test_a_name_cannot_be_taken_twice(colours: registry.Registry[object]) -> None:
    with pytest.raises(BadConfig, match=r"There is a colour called 'red' already; choose another name"):
        colours.register("red", "another")(3)
    colours.register("red", "the same again, as when a module is reloaded")(1)
    assert colours["red"] == 1


def test_a_notebook_s_cell_can_be_run_again_but_another_function_cannot_take_its_name(
    colours: registry.Registry[object],
) -> None:
    cell = "def blue(images):\n    return images // 2\ndef navy(images):\n    return images // 3\n"

    def run(name: str) -> object:
        names: dict[str, object] = {"__name__": "notebook"}
        exec(cell, names)
        return colours.register("blue", "like the sky")(names[name])

    run("blue")
    assert run("blue") is colours["blue"]  # the latest definition counts
    with pytest.raises(BadConfig, match="There is a colour called 'blue' already"):
        run("navy")


def test_our_own_things_are_imported_when_they_are_used_and_cannot_be_replaced() -> None:
    lazy: registry.Registry[object] = registry.Registry(
        "colour", "holdfast.tests.colours", {"pi": ("math:pi", "a number"), "gone": ("no.such.module:x", "nowhere")}
    )
    assert list(lazy) == ["pi", "gone"] and lazy.describe()["gone"] == "nowhere"
    assert lazy["pi"] == math.pi
    with pytest.raises(ModuleNotFoundError):
        lazy["gone"]
    with pytest.raises(BadConfig, match="There is a colour called 'pi' already"):
        lazy.register("pi", "another")(3)


def test_a_thing_declares_its_options_itself_or_where_it_is_registered(colours: registry.Registry[object]) -> None:
    @dataclass(frozen=True)
    class Shades(Options):
        depth: int = option(3, "how deep", at_least=1)

    class Blue:
        Options = Shades

    colours.register("blue", "like the sky")(Blue)
    colours.register("grey", "like rain", Shades)(lambda: None)
    for name in ("blue", "grey"):
        assert [each.name for each in declared(colours.options(name))] == ["depth"]
    assert declared(colours.options("red")) == ()


def test_another_package_adds_by_an_entry_point(
    colours: registry.Registry[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Offer(EntryPoint):
        def load(self) -> None:
            if self.value == "broken":
                raise ImportError("no such module")
            colours.register(self.name, "theirs")(self.value)

    offers = [Offer("blue", "sky", colours.group), Offer("grey", "broken", colours.group)]
    monkeypatch.setattr(registry, "entry_points", lambda group: offers if group == colours.group else [])
    with pytest.warns(UserWarning, match=r"'grey'.*no such module"):  # their fault does not stop ours
        assert colours["blue"] == "sky"
    assert list(colours) == ["red", "green", "blue"]


@pytest.mark.parametrize("things", EVERY_REGISTRY, ids=lambda things: things.kind)
def test_everything_registered_says_what_it_is_in_a_line(things: registry.Registry[object]) -> None:
    for name, line in things.describe().items():
        assert line and "\n" not in line and name == name.lower()


@pytest.mark.parametrize("registered", [METHODS, HEADS, BACKBONES], ids=lambda things: things.kind)
def test_every_declared_option_has_a_default_that_it_accepts_and_a_help_text(
    registered: registry.Registry[object],
) -> None:
    for name in registered:
        for each in declared(registered.options(name)):
            each.check(each.default)
            assert each.help and not each.help.endswith(".")
