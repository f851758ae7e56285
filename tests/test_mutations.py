"""tools/mutate_methods.py, which shows that the tests notice a wrong equation, fits the methods as they are."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from holdfast.methods import METHODS

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("mutate_methods", ROOT / "tools/mutate_methods.py")
assert spec is not None and spec.loader is not None
mutate_methods = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutate_methods)


def test_every_error_changes_exactly_one_place() -> None:
    for method, errors in mutate_methods.ERRORS.items():
        for what, file, text, wrong in errors:
            source = (ROOT / mutate_methods.METHODS / file).read_text()
            assert source.count(text) == 1 and wrong != text, f"{method}: {what} ({file})"


def test_every_method_with_an_equation_of_its_own_has_errors() -> None:
    without = {"finetune", "joint", "solved", "online-ewc"}  # plain training; tests/test_solving_*.py; EWC's importance
    assert set(METHODS) - without == set(mutate_methods.ERRORS)


def test_tests_that_fail_without_an_error_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate_methods, "fails", lambda folder, method: True)
    monkeypatch.setattr(sys, "argv", ["mutate_methods.py", "lwf"])
    with pytest.raises(SystemExit, match="The tests of lwf fail without an error"):
        mutate_methods.main()
