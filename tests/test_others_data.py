"""The estimator takes other libraries' data sets where it takes arrays, and shows itself in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import make_blobs

from conftest import make_tiny_config
from holdfast import IncrementalClassifier
from holdfast.data import others
from holdfast.errors import BadConfig, BadInput
from holdfast.runs.shown import Result

NAMES = ["ant", "bee"]
X, Y = make_blobs(60, centers=[[-5.0] * 4, [5.0] * 4], random_state=0)


def answers(X: Any, y: Any = None) -> list[Any]:
    """Teach these samples and return what the arrays' own samples are then taken for."""
    return IncrementalClassifier(slots=4).fit(X, y).predict(globals()["X"]).tolist()


WANTED = [NAMES[label] for label in Y]


class Pictures:
    """A data set as torchvision's are: a length, pairs, and the names of its classes."""

    classes = NAMES

    def __len__(self) -> int:
        return 40

    def __getitem__(self, at: int) -> tuple[Image.Image, int]:
        if at >= 40:
            raise IndexError
        pixels = np.random.default_rng(at).integers(0, 60, (8, 8, 3), dtype=np.uint8)
        pixels[:, :4] += np.uint8(180 * (at % 2))
        return Image.fromarray(pixels), at % 2


def test_a_torchvision_style_data_set_brings_its_labels_by_name() -> None:
    model = IncrementalClassifier(slots=4).fit(Pictures())
    assert model.classes_.tolist() == NAMES
    assert model.predict(Pictures()).tolist() == [NAMES[at % 2] for at in range(40)]


def test_a_generator_of_samples_and_labels_is_taken() -> None:
    def stream() -> Iterator[tuple[np.ndarray, str]]:
        for row, label in zip(X, Y):
            yield row, NAMES[label]

    assert answers(stream()) == WANTED
    images = ((picture, NAMES[label]) for picture, label in map(Pictures().__getitem__, range(40)))
    assert IncrementalClassifier(slots=4).fit(images).classes_.tolist() == NAMES


def test_a_loader_of_batches_is_taken() -> None:
    data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    found = answers(torch.utils.data.DataLoader(data, batch_size=7))
    assert found == Y.tolist()
    samples, labels = others.labelled(torch.utils.data.DataLoader(data, batch_size=7), None)
    assert np.array_equal(samples, X) and labels == Y.tolist()


def test_a_table_is_taken_with_the_name_of_its_labels() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame(X, columns=list("abcd")).assign(kind=WANTED)
    model = IncrementalClassifier(slots=4).fit(table, "kind")
    assert model.feature_names_in_.tolist() == list("abcd")
    assert model.predict(table.drop(columns="kind")).tolist() == WANTED
    with pytest.raises(BadInput, match=r"no column 'kin'; it has a, b"):
        IncrementalClassifier().fit(table, "kin")
    texts = pandas.DataFrame({"text": ["a", "b"], "kind": NAMES})
    assert others.labelled(texts, "kind") == (["a", "b"], NAMES)


def test_a_hugging_face_data_set_is_taken_in_memory_and_streamed() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    features = datasets.Features({"vector": datasets.Sequence(datasets.Value("float32")),
                                  "label": datasets.ClassLabel(names=NAMES)})
    found = datasets.Dataset.from_dict({"vector": X.tolist(), "label": Y.tolist()}, features=features)
    assert answers(found) == WANTED
    assert answers(found, "label") == WANTED
    assert answers(found.to_iterable_dataset()) == WANTED
    model = IncrementalClassifier(slots=4).fit(found)
    assert model.predict(found.remove_columns("label")).tolist() == model.predict(found).tolist() == WANTED


class Columns:
    """What a Hugging Face data set offers, without the library."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns_, self.column_names, self.features = columns, list(columns), None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns_, row)) for row in zip(*self.columns_.values()))


@pytest.mark.parametrize(
    ("given", "y", "told"),
    [(Columns(text=["a"], intent=["b"]), None, "None of the columns text, intent holds labels for sure: name one as y"),
     (Columns(text=["a"], intent=["b"]), "label", "no column 'label'; it has text, intent"),
     (Columns(text=["a"], more=["c"], label=["b"]), None, r"any of the columns text, more: keep one .*select_columns"),
     (Columns(text=["a"], label=["b"]), ["b"], "y is a list; for a data set with columns it is a column's name"),
     (Pictures(), NAMES, "has labels of its own: leave y out"),
     (iter([1, 2]), None, r"Item 0 of the list_iterator is a int, not \(sample, label\)"),
     (iter([([1.0], "a"), ([1.0, 2.0], "b")]), None, "different lengths")],
)
def test_what_is_ambiguous_is_refused_with_the_next_step(given: Any, y: Any, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        others.labelled(given, y)


def test_arrays_and_lists_are_left_as_they_are() -> None:
    for given in (X, X.tolist(), torch.tensor(X), ["a.png"], ("a", "b")):
        assert others.labelled(given, Y)[0] is given and others.samples(given) is given


# Notebooks.


def test_an_estimator_shows_what_it_learned_and_escapes_it() -> None:
    model = IncrementalClassifier(slots=4)
    assert "last taught" not in model._repr_html_()
    model.partial_fit(X[Y == 0], ["<b>ant"] * 30).partial_fit(X[Y == 1], ["bee"] * 30)
    page = model._repr_mimebundle_()["text/html"]
    assert "2 classes, 60 samples in 2 batches (solved)." in page
    assert "&lt;b&gt;ant" in page and "<b>ant" not in page.split("last taught")[1]
    assert "2 classes" in model._repr_html_()


def test_stability_is_a_table_with_its_answer() -> None:
    model = IncrementalClassifier(slots=4, epochs=3).fit(X, WANTED)
    page = model.stability_._repr_html_()
    assert page.count("<tr>") == 4, "a head, two classes, all"
    assert model.stability_.answer.split(":")[0] in page


def test_a_result_is_a_dict_a_table_and_a_picture(run_tiny: Any) -> None:
    config = make_tiny_config(method="finetune", epochs=1)
    result = run_tiny(config)
    assert isinstance(result, Result) and isinstance(run_tiny(config), Result), "run, and read again"
    page = result._repr_html_()
    assert f"{result['final_average_accuracy']:.2f}" in page and page.count("<tr>") == 4
    for what in ("accuracy", "drift"):
        assert result.plot(what)._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(BadConfig, match="'accuracy' or 'drift'"):
        result.plot("speed")
