"""What a release needs: one version, complete package data, workflows that say what the Makefile can do."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_version_is_written_in_one_place() -> None:
    assert not re.search(r'^version\s*=\s*"', (ROOT / "pyproject.toml").read_text(), flags=re.M)
    assert holdfast.__version__ in (ROOT / "CHANGELOG.md").read_text()
    assert re.fullmatch(r"\d+\.\d+\.\d+", holdfast.__version__)


def test_every_file_that_is_no_module_is_package_data() -> None:
    """A template that the wheel lacks is missed only by those who install the wheel."""
    listed = re.search(r"^holdfast = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), flags=re.M)
    assert listed is not None
    patterns = re.findall(r'"([^"]+)"', listed.group(1))
    package = ROOT / "src" / "holdfast"
    found = [str(path.relative_to(package)) for path in package.rglob("*")
             if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert "py.typed" in found
    assert [name for name in found if not any(fnmatch.fnmatch(name, each) for each in patterns)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_only_targets_that_the_makefile_has(path: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    for line in re.findall(r"run: make (.*)", path.read_text()):
        assert {word for word in line.split() if "=" not in word} <= {*targets}


@pytest.mark.parametrize("line", ["Project-URL: Source, https://example.org", "Keywords: a"])
def test_a_wheel_without_an_address_is_told_from_one_with_it(line: str, tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    import try_wheel

    with zipfile.ZipFile(tmp_path / "a.whl", "w") as packed:
        packed.writestr("a-1.dist-info/METADATA", f"Name: a\n{line}\n\nThe text may say\nProject-URL: nothing\n")
    assert try_wheel.has_addresses(tmp_path / "a.whl") == line.startswith("Project-URL")


def test_a_release_without_an_address_of_the_project_is_refused() -> None:
    assert "make dist RELEASE=--release" in (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "tools/try_wheel.py dist $(RELEASE)" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_supported_python_is_tested(python: str) -> None:
    assert f"Python :: {python}" in (ROOT / "pyproject.toml").read_text()
    assert f'"{python}"' in (ROOT / ".github" / "workflows" / "tests.yml").read_text()


def test_the_workflows_and_the_citation_fit_their_schemas() -> None:
    pytest.importorskip("check_jsonschema", reason="the extra dist is not installed")
    for schema, paths in (("github-workflows", WORKFLOWS), ("citation-file-format", [ROOT / "CITATION.cff"])):
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
