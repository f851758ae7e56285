"""What the documentation shows is run here as it stands, and so is a package that adds to holdfast from outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import make_tiny_stream, make_tiny_trainer
from holdfast.methods import METHODS

PAGES = ("index.md", "concepts.md", "tutorials/teach.md", "tutorials/compare.md", "how-to/other-data.md",
         "how-to/search-index.md", "how-to/logging.md")
PAGE = Path(__file__).parent.parent / "docs" / "adding-a-method.md"


def example(number: int = 0) -> str:
    """A code block of the page: a method, a head, a benchmark."""
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)[number]


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type]:
    """The page's code, saved as my_pull.py and imported; its name is free again afterwards."""
    (tmp_path / "my_pull.py").write_text(example())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(METHODS, "_things", dict(METHODS._things))
    monkeypatch.setattr(METHODS, "_lines", dict(METHODS._lines))
    monkeypatch.delitem(sys.modules, "my_pull", raising=False)
    import my_pull

    yield my_pull.Pull
    del sys.modules["my_pull"]


def test_a_method_from_nothing_takes_less_than_sixty_lines() -> None:
    method = example()[example().index("@METHODS") :]
    assert len(method.strip().splitlines()) < 60


def test_the_documented_method_keeps_its_promises(documented: type) -> None:
    """With every head; stopped at every step and resumed to the same bits; the page's own test says so."""
    assert type(make_tiny_trainer(method="my-pull").method) is documented
    exec(compile(example(3), "docs/adding-a-method.md", "exec"), found := {})
    found["test_my_pull_keeps_its_promises"]()


def test_the_documented_method_moves_its_weights_less(documented: type) -> None:
    """Its one promise: in the second task the weights move less than by fine-tuning."""
    moved = {}
    for pull in (0.0, 0.1):
        trainer = make_tiny_trainer(make_tiny_stream(classes=4, per_class=40), method="my-pull", pull=pull, epochs=3)
        trainer.run()
        pairs = [(trainer.learner.get_parameter(name), old) for name, old in trainer.method.state().items()]
        moved[pull] = sum(float((now - old).detach().square().sum()) for now, old in pairs)
    assert moved[0.1] < 0.7 * moved[0.0]


# From a package outside holdfast.


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with a package that adds a method, a head, a data set, a benchmark, and a broken method."""
    folder = tmp_path_factory.mktemp("outside")
    package, info = folder / "site" / "outside", folder / "site" / "outside-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    for name, text in {"__init__": "", "my_pull": example(), "head": example(1), "benchmark": example(2)}.items():
        (package / f"{name}.py").write_text(text)
    (package / "broken.py").write_text("raise RuntimeError('this package has a bug')")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    points = """
        [holdfast.methods]
        my-pull = outside.my_pull
        broken = outside.broken
        [holdfast.heads]
        narrow = outside.head
        [holdfast.datasets]
        stripes = outside.benchmark
        [holdfast.benchmarks]
        split-stripes = outside.benchmark
    """
    (info / "entry_points.txt").write_text(textwrap.dedent(points))
    path = os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "OUT": str(folder / "runs")}


def holdfast(installed: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *words]
    return subprocess.run(command, env=installed, capture_output=True, text=True, timeout=300)


RUN = ("run", "split-stripes", "--method", "my-pull", "--head", "narrow", "--threads", "1")


def test_a_package_s_options_are_flags_that_are_run_and_reported(installed: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = holdfast(installed, *RUN, "--power", "3", "--numbers", "5", "--out", str(out))
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("split-stripes-my-pull-narrow-*/result.json")
    config = json.loads(path.read_text())["config"]
    assert (config["power"], config["numbers"]) == (3, 5) and "pull" not in config
    report = holdfast(installed, "report", str(out), "--out", str(tmp_path / "page"))
    assert report.returncode == 0, report.stderr
    page = (tmp_path / "page" / "report.html").read_text()
    assert "my-pull + narrow" in page and "power 3" in page and "numbers 5" in page


def test_a_package_s_options_are_in_the_help_under_their_owner(installed: dict[str, str]) -> None:
    text = holdfast(installed, "run", "--help").stdout
    panel = text[text.index("Options of my-pull") :]
    assert "--power" in panel and "power of the distance" in panel and "(default: 2.0)" in panel
    assert "--numbers" in text[text.index("Options of narrow") :]


def test_a_package_s_options_are_validated(installed: dict[str, str]) -> None:
    wrong = holdfast(installed, *RUN, "--power", "-1")
    assert wrong.returncode == 2 and "power is -1.0; it must be a finite number, 1 or more." in wrong.stderr
    other = holdfast(installed, "run", "split-digits", "--power", "3")
    assert other.returncode == 2 and "choose one of my-pull" in other.stderr


def test_a_package_s_options_are_hashed_and_searched(installed: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = holdfast(installed, *RUN, "--search", "power=1,2", "--validation", "0.2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert len(list(out.glob("split-stripes-my-pull-narrow-*/result.json"))) == 2
    assert "--power 1" in done.stdout


def test_listing_methods_names_the_ones_from_outside_and_the_broken_one(installed: dict[str, str]) -> None:
    done = holdfast(installed, "methods")
    assert done.returncode == 0, done.stderr
    assert "my-pull" in done.stdout and "no memory" in done.stdout
    assert "'broken'" in done.stderr and "this package has a bug" in done.stderr


def test_the_tables_say_what_the_records_say() -> None:
    told = subprocess.run(
        [sys.executable, str(PAGE.parents[1] / "tools" / "show_results.py"), "--check"], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout + told.stderr


# The site.


@pytest.mark.parametrize("name", PAGES)
def test_every_block_of_the_page_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.loggers import LOGGERS

    for registry in (METHODS, LOGGERS):
        for part in ("_things", "_lines"):
            monkeypatch.setattr(registry, part, dict(getattr(registry, part)))
    blocks = re.findall(r"^```python\n(.*?)^```", (PAGE.parent / name).read_text(), flags=re.M | re.S)
    assert blocks
    names: dict[str, object] = {"__name__": "documented_page"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{name}, block {number}", "exec", dont_inherit=True), names)


def test_every_page_with_python_is_run_by_some_test() -> None:
    run = {*PAGES, "adding-a-method.md", "your-own-data.md", "pretrained.md", "solved.md"}
    pages = [path for path in PAGE.parent.rglob("*.md") if "```python" in path.read_text()]
    assert {str(path.relative_to(PAGE.parent)) for path in pages} <= run


def test_every_page_is_in_the_navigation_and_the_generated_ones_say_what_the_code_says() -> None:
    made = {"results.md", "reproducibility.md", "reference/options.md"}
    there = {str(path.relative_to(PAGE.parent)) for path in PAGE.parent.rglob("*.md")}
    listed = set(re.findall(r"[\w/-]+\.md", (PAGE.parents[1] / "mkdocs.yml").read_text()))
    assert listed == there | made
    sys.path.insert(0, str(PAGE.parents[1] / "tools"))
    import site_pages

    methods = site_pages.reproduced()
    assert all(f"`{name}" in methods for name in METHODS)
    assert "| `replay+simplex` | split-mnist | 100 | 82.32 ± 2.19 |" in methods
    options = site_pages.options()
    assert "| `--power` |" not in options and "| `--gem-replay` | `False` |" in options
    assert "| `slots` | `1000` |" in site_pages.parameters()
    told = site_pages.linked("[`gem.py`](../src/gem.py), [here](../../src/a.py), [solved](../solved.md)", "how-to/x.md")
    assert told == "`gem.py`, here (`src/a.py`), [solved](../solved.md)"
    told = site_pages.titled("[solved.md](../solved.md#forget), [docs/none.md](../none.md)", "how-to/x.md")
    solved = "[Solved: classes learned in closed form on frozen features](../solved.md#forget)"
    assert told == f"{solved}, [docs/none.md](../none.md)"
