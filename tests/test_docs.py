"""What the documentation shows is run here as it stands, and so is a package that adds to steadfast from outside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from conftest import assert_same_bits, bits, make_tiny_stream, make_tiny_trainer
from steadfast import heads
from steadfast.methods import METHODS
from steadfast.training import Stopped, Watcher

PAGE = Path(__file__).parent.parent / "docs" / "adding-a-method.md"


def example(number: int = 0) -> str:
    """A code block of the page: a method, a head, a benchmark."""
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)[number]


@pytest.fixture
def lwf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type]:
    """The page's code, saved as lwf.py and imported; its name is free again afterwards."""
    (tmp_path / "lwf.py").write_text(example())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(METHODS, "_things", dict(METHODS._things))
    monkeypatch.setattr(METHODS, "_lines", dict(METHODS._lines))
    monkeypatch.delitem(sys.modules, "lwf", raising=False)
    import lwf

    yield lwf.LwF
    del sys.modules["lwf"]


def test_a_method_from_nothing_takes_less_than_sixty_lines() -> None:
    assert len(example().strip().splitlines()) < 60


@pytest.mark.parametrize("head", list(heads.HEADS))
def test_the_documented_method_runs_with_every_head(lwf: type, head: str) -> None:
    trainer = make_tiny_trainer(method="lwf", strength=1.0, head=head, epochs=1)
    assert type(trainer.method) is lwf
    trainer.run()
    assert trainer.at.task == 3


@pytest.mark.parametrize("stop", [1, 5])
def test_the_documented_method_resumes_to_the_same_bits(lwf: type, stop: int) -> None:
    whole = make_tiny_trainer(method="lwf", strength=1.0, head="simplex", epochs=1)
    whole.run()
    count = iter(range(stop, -1, -1))
    cut = make_tiny_trainer(
        method="lwf", strength=1.0, head="simplex", epochs=1, watcher=Watcher(stop=lambda: next(count) == 0)
    )
    with pytest.raises(Stopped):
        cut.run()
    resumed = make_tiny_trainer(method="lwf", strength=1.0, head="simplex", epochs=1)
    resumed.load(*cut.state())
    resumed.run()
    assert_same_bits(bits(whole), bits(resumed))


def test_the_documented_method_stays_nearer_to_its_old_answers(lwf: type) -> None:
    """Its one promise: on the new images, the answers over the old classes move less than by fine-tuning."""
    stream = make_tiny_stream(classes=4, per_class=40)
    moved = {}
    for strength in (0.0, 10.0):
        trainer = make_tiny_trainer(stream, method="lwf", strength=strength, epochs=3)
        trainer.run()
        method, task = trainer.method, trainer.tasks[1]
        images, _ = task.train.batch(torch.arange(len(task.train)))
        old = method.teacher.head.seen  # type: ignore[attr-defined]
        assert old.tolist() == [0, 1]
        trainer.learner.eval()
        with torch.no_grad():
            now, before = (
                method.answers(learner, learner.features(images), old).exp()  # type: ignore[attr-defined]
                for learner in (trainer.learner, method.teacher)  # type: ignore[attr-defined]
            )
        moved[strength] = float((now - before).abs().mean())
    assert moved[10.0] < 0.7 * moved[0.0]


# From a package outside steadfast.


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment in which a package with a method, a head, a benchmark and a broken method is installed."""
    package, info = tmp_path / "site" / "outside", tmp_path / "site" / "outside-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    for name, text in {"__init__": "", "lwf": example(), "head": example(1), "benchmark": example(2)}.items():
        (package / f"{name}.py").write_text(text)
    (package / "broken.py").write_text("raise RuntimeError('this package has a bug')")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    points = """
        [steadfast.methods]
        lwf = outside.lwf
        broken = outside.broken
        [steadfast.heads]
        narrow = outside.head
        [steadfast.benchmarks]
        half-digits = outside.benchmark
    """
    (info / "entry_points.txt").write_text(textwrap.dedent(points))
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}


def test_entry_points_bring_methods_heads_and_benchmarks(installed: dict[str, str], tmp_path: Path) -> None:
    """All three at once from the command line; the broken neighbour is named and stops nothing."""
    words = ["run", "half-digits", "--method", "lwf", "--strength", "1", "--head", "narrow", "--threads", "1"]
    command = [sys.executable, "-m", "steadfast", *words, "--out", str(tmp_path / "runs")]
    done = subprocess.run(command, env=installed, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (result,) = (tmp_path / "runs").glob("half-digits-lwf-narrow-*/result.json")
    assert '"accuracy_matrix"' in result.read_text()


def test_listing_methods_names_the_ones_from_outside_and_the_broken_one(installed: dict[str, str]) -> None:
    command = [sys.executable, "-m", "steadfast", "methods"]
    done = subprocess.run(command, env=installed, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "lwf" in done.stdout and "no memory" in done.stdout
    assert "'broken'" in done.stderr and "this package has a bug" in done.stderr


def test_the_tables_say_what_the_records_say() -> None:
    told = subprocess.run(
        [sys.executable, str(PAGE.parents[1] / "tools" / "show_results.py"), "--check"], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout + told.stderr
