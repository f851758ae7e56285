"""Registries: names to things, the nearest name for a wrong one, and what other packages add."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import torch

from steadfast import registry
from steadfast.benchmarks import BENCHMARKS
from steadfast.errors import BadConfig, SteadfastError, UnknownName
from steadfast.heads import HEADS
from steadfast.methods import METHODS


@pytest.fixture
def colours() -> registry.Registry[object]:
    made: registry.Registry[object] = registry.Registry("colour", "steadfast.tests.colours")
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
    assert isinstance(caught.value, SteadfastError) and "Did you mean" not in str(caught.value)


def test_a_name_cannot_be_taken_twice(colours: registry.Registry[object]) -> None:
    with pytest.raises(BadConfig, match=r"'red' is registered already.*another name"):
        colours.register("red", "another")(3)
    colours.register("red", "the same again, as when a module is reloaded")(1)
    assert colours["red"] == 1


def test_a_notebook_s_cell_can_be_run_twice_but_not_name_another_function(colours: registry.Registry[object]) -> None:
    cell = "def blue(images):\n    return images // {}\n"

    def run(number: int) -> object:
        names: dict[str, object] = {"__name__": "notebook"}
        exec(cell.format(number), names)
        return colours.register("blue", "like the sky")(names["blue"])

    run(2)
    assert run(2) is colours["blue"]
    with pytest.raises(BadConfig, match=r"'blue' is registered already, as notebook.blue, which is another"):
        run(3)

    def by(factor: int) -> object:
        return lambda images: images * factor

    colours.register("grey", "twice")(by(2))
    colours.register("grey", "twice")(by(2))
    held = torch.zeros(3)
    for _ in range(2):  # what it holds need not be comparable
        colours.register("pale", "a tensor in its closure")(lambda: held)
    with pytest.raises(BadConfig, match="registered already"):
        colours.register("grey", "thrice")(by(3))


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


@pytest.mark.parametrize("things", [BENCHMARKS, HEADS, METHODS])
def test_everything_registered_says_what_it_is_in_a_line(things: registry.Registry[object]) -> None:
    for name, line in things.describe().items():
        assert line and "\n" not in line and name == name.lower()
