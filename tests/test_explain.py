"""What `inspect` says of a model: confusions, doubtful samples, classes with few samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from holdfast import IncrementalClassifier
from holdfast.cli.main import app
from holdfast.estimator import explain
from holdfast.solving import Solver, SolverOptions


def test_confusions_count_both_directions_of_a_pair() -> None:
    found = explain.confusions(["a", "b", "c"], np.array([0, 0, 1, 1, 2, 2]), np.array([1, 0, 0, 1, 0, 2]))
    assert found == [explain.Confusion("a", "b", 2, 4), explain.Confusion("a", "c", 1, 4)]


CHANCES = np.array([[0.9, 0.1, 0.0], [0.02, 0.48, 0.5], [0.01, 0.0, 0.99]])


def test_the_border_is_where_label_and_rival_are_equally_likely() -> None:
    found = explain.border(["a", "b", "c"], CHANCES, np.array([0, 1, 2]), most=2)
    assert found == [explain.Doubt(1, "b", "c", 0.48, 0.5), explain.Doubt(0, "a", "b", 0.9, 0.1)]


def test_a_label_is_suspicious_if_the_model_finds_it_very_unlikely() -> None:
    assert explain.suspicious(["a", "b", "c"], CHANCES, np.array([0, 1, 0]), most=5) == [
        explain.Doubt(2, "a", "c", 0.01, 0.99)
    ]


def clouds(seed: int = 0, each: int = 40) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.RandomState(seed)
    centres = np.array([[4, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 0]])
    labels = np.repeat(np.array(["east", "north", "up"]), each)
    return (np.repeat(centres, each, axis=0) + draw.randn(3 * each, 4)).astype(np.float32), labels


def test_held_samples_are_judged_as_if_they_had_not_been_learned() -> None:
    """Against a solver that never saw the sample, with the same penalty."""
    x, labels = clouds(each=12)
    slots = torch.tensor(np.unique(labels, return_inverse=True)[1])
    options = SolverOptions(width=0, held=100, penalty=1.0)
    solver = Solver(options).learn(x, slots)
    found_slots, found = solver.left_out()
    held = solver.held.features.float()
    for row in (0, 7, 20):
        original = int((torch.tensor(x) == held[row]).all(1).nonzero()[0])
        others = [i for i in range(len(x)) if i != original]
        without = Solver(options).learn(x[others], slots[others])
        wanted = torch.softmax(without.scores(x[[original]]) / solver.calibration().temperature, 1)[0]
        assert found_slots[row] == slots[original]
        assert found[row].numpy() == pytest.approx(wanted.numpy(), abs=1e-6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain")
    x, labels = clouds()
    labels[3] = "north"  # planted: the sample lies in the east
    IncrementalClassifier(slots=10).partial_fit(x, labels).partial_fit(
        np.full((2, 4), -4, np.float32), ["few", "few"]
    ).save(folder / "m")
    np.savez(folder / "data.npz", vectors=x, labels=labels)
    return folder


def test_inspect_names_a_planted_wrong_label_and_a_class_with_few_samples(model: Path) -> None:
    done = CliRunner().invoke(app, ["inspect", str(model / "m"), str(model / "data.npz")])
    text = " ".join(done.output.split())
    assert done.exit_code == 0, done.output
    assert "Fewer than 5 samples, so answers are uncertain: few." in text
    assert "moved" not in text and "if rebuilt" not in text  # frozen vectors
    suspicious = text.partition("Suspicious labels")[2].partition("Nearest to the border")[0]
    assert "│ north │" in suspicious and "│ east │" in suspicious
    assert "data.npz:3" in "".join(suspicious.split())
    assert (model / "m" / "model.png").stat().st_size > 10_000


def test_inspect_refuses_samples_whose_labels_it_does_not_know(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", vectors=np.zeros((2, 4), np.float32), labels=np.array(["x", "y"]))
    done = CliRunner().invoke(app, ["inspect", str(model / "m"), str(tmp_path / "other.npz")])
    assert done.exit_code != 0 and "No sample has a label that the model knows" in str(done.exception)
