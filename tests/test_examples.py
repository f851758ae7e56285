"""The examples run, and show what they say."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_simplex_head_learns_in_a_plain_loop(capsys):
    assert example("plain_loop").main() > 0.85
    assert "% right" in capsys.readouterr().out


@pytest.mark.parametrize("kind, package", [("Faiss", "faiss"), ("Usearch", "usearch")])
def test_an_index_lives_on_while_classes_are_added(kind, package):
    pytest.importorskip(package, reason=f"the extra {package} is not installed")
    module = example("vector_index")
    kept, rebuilt, advice = module.live(getattr(module, kind), slots=20, epochs=10, memory=400)
    assert kept > 0.85 and rebuilt > 0.9
    assert advice.startswith(("Keep", "Refresh", "Rebuild"))
