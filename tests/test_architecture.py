"""Data flows one way: a module imports only from the packages above its own, or from its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"
PACKAGES = ("data", "embedders", "backbones", "heads", "solving", "learning", "loggers", "methods", "runs", "testing",
            "sweeps", "paper", "report", "estimator", "serving", "cli")
LONGEST = 350  # lines; a longer module holds two ideas


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str | None:
    """Return the package a module belongs to; None for the foundations."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else None


def imported(path: Path) -> Iterator[tuple[int, str | None]]:
    """Yield the line and the package of every import of ours in a file: lazy and type-checking ones as well."""
    here = path.relative_to(SOURCE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if node.level:
                base = [*here[: len(here) - node.level + 1], *(node.module.split(".") if node.module else [])]
            elif node.module and node.module.split(".")[0] == "holdfast":
                base = node.module.split(".")[1:]
            else:
                continue
            for name in names:
                full = [*base, name]
                yield node.lineno, full[0] if full[0] in PACKAGES else None
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "holdfast":
                    parts = alias.name.split(".")
                    yield node.lineno, parts[1] if len(parts) > 1 and parts[1] in PACKAGES else None


def test_every_package_has_its_place_in_the_order() -> None:
    found = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert found <= {*PACKAGES}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_imports_against_the_direction(path: Path) -> None:
    own = package_of(path)
    if path.name in ("__main__.py", "__init__.py") and own is None:
        return  # the entry points: `python -m holdfast` and `holdfast.IncrementalClassifier`
    allowed = PACKAGES[: PACKAGES.index(own) + 1] if own else ()
    wrong = [f"line {line}: imports {name}" for line, name in imported(path) if name and name not in allowed]
    assert not wrong, f"{path.relative_to(SOURCE)}: {'; '.join(wrong)}"


def test_a_lazy_and_a_type_checking_import_are_seen() -> None:
    """The estimator's file on models imports its classifier for its types alone, the runs import pictures late."""
    assert "estimator" in {package for _, package in imported(SOURCE / "estimator" / "model_files.py")}
    lines = (SOURCE / "runs" / "experiment.py").read_text().splitlines()
    late = next(number for number, line in enumerate(lines, 1) if line.startswith("    from . import plots"))
    assert (late, "runs") in list(imported(SOURCE / "runs" / "experiment.py"))


def test_no_module_holds_two_ideas() -> None:
    long = {str(path.relative_to(SOURCE)): count for path in modules()
            if (count := len(path.read_text().splitlines())) > LONGEST}
    assert not long


def test_no_name_explains_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "misc", "common"}
    assert not [path for path in modules() if path.stem in vague or path.parent.name in vague]
