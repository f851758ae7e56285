"""The examples run, and show what they say."""

import importlib.util
from pathlib import Path

import pytest
import torch

from holdfast import heads

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
    assert advice.startswith(("Keep", "Refresh", "Rebuild", "Index the input vectors"))


def test_intents_are_added_to_a_running_classifier(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["new_intents.py"])
    example("new_intents").main()
    told = capsys.readouterr().out
    assert "'is it raining': weather" in told and "'order a pizza for me': order" in told


def test_products_are_added_to_an_index_that_is_never_rebuilt(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["new_products.py"])
    example("new_products").main()
    told = capsys.readouterr().out
    assert "80 vectors in the index. Keep the index" in told and "A search finds 100 %" in told


def test_the_simplex_head_learns_inside_avalanche():
    pytest.importorskip("avalanche", reason="avalanche-lib is not installed")
    assert example("with_avalanche").main() > 0.7


@pytest.mark.parametrize("library", ["lightning", "accelerate", "transformers"])
def test_the_simplex_head_learns_in_another_library_s_loop(library):
    pytest.importorskip(library, reason=f"{library} is not installed")
    assert example(f"with_{library}").main() > 0.85


@pytest.mark.parametrize("name", ["simplex", "orthoplex", "cube", "preallocated"])
def test_backbone_and_head_in_a_sequential_are_a_model_for_any_library(name):
    """Logits by calling it, and the usual loss of them is the head's own."""
    backbone, head = torch.nn.Linear(7, 20), heads.build(name, in_features=20, slots=12)
    x, y = torch.randn(9, 7), torch.randint(12, (9,))
    logits = torch.nn.Sequential(backbone, head)(x)
    assert logits.shape == (9, 12)
    torch.testing.assert_close(torch.nn.functional.cross_entropy(logits, y), head.loss(backbone(x), y))
