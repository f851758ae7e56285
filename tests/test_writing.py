"""Other people's images become a benchmark's source, whatever container they come in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast import data
from holdfast.errors import BadInput
from holdfast.runs.config import Config
from holdfast.runs.experiment import run

NAMES = ["wasp", "ant", "bee", "fly"]  # not sorted: a container's own order is kept
PIXELS = np.random.default_rng(0).integers(0, 60, (40, 3, 8, 8), dtype=np.uint8)
NUMBERS = np.arange(40) % 4
for picture, number in zip(PIXELS, NUMBERS):
    picture[:, 2 * number : 2 * number + 2] += np.uint8(180)


def pictures() -> list[Image.Image]:
    return [Image.fromarray(each.transpose(1, 2, 0)) for each in PIXELS]


class Folder:
    """A data set as torchvision's are."""

    classes = NAMES

    def __len__(self) -> int:
        return 40

    def __getitem__(self, at: int) -> tuple[Image.Image, int]:
        return pictures()[at], int(NUMBERS[at])


def stream() -> Iterator[tuple[np.ndarray, str]]:
    for each, number in zip(PIXELS, NUMBERS):
        yield each.transpose(1, 2, 0), NAMES[number]


def hugging_face(*, streamed: bool) -> Any:
    datasets = pytest.importorskip("datasets", reason="the extra others is not installed")
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    found = datasets.Dataset.from_dict({"image": pictures(), "label": NUMBERS.tolist()}, features=kinds)
    return found.to_iterable_dataset() if streamed else found


def table() -> Any:
    pandas = pytest.importorskip("pandas", reason="the extra others is not installed")
    return pandas.DataFrame(PIXELS.reshape(40, -1)).assign(kind=[NAMES[number] for number in NUMBERS])


SOURCES: dict[str, Any] = {
    "arrays": lambda: (PIXELS.transpose(0, 2, 3, 1), NUMBERS),
    "torchvision": Folder,
    "generator": stream,
    "loader": lambda: torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.tensor(PIXELS), torch.tensor(NUMBERS)), batch_size=7),
    "hugging face": lambda: hugging_face(streamed=False),
    "hugging face, streamed": lambda: hugging_face(streamed=True),
    "table": table,
}
KEEPS_ORDER = ("torchvision", "hugging face", "hugging face, streamed")
NUMBERED = ("arrays", "loader")


@pytest.mark.parametrize("kind", SOURCES)
def test_every_container_becomes_the_same_images_under_its_own_labels(kind: str, tmp_path: Path) -> None:
    extra: dict[str, Any] = {"label": "kind", "pixels": (3, 8, 8)} if kind == "table" else {}
    name = data.write_arrays(tmp_path / "insects", SOURCES[kind](), SOURCES[kind](), **extra)
    assert name == f"arrays:{tmp_path / 'insects'}"
    found = data.load(name)
    assert torch.equal(found.train_images[torch.arange(40)], torch.tensor(PIXELS))
    assert torch.equal(found.test_images[torch.arange(40)], torch.tensor(PIXELS))
    own = ["0", "1", "2", "3"] if kind in NUMBERED else NAMES
    assert list(found.classes) == (own if kind in KEEPS_ORDER or kind in NUMBERED else sorted(NAMES))
    for labels in (found.train_labels, found.test_labels):
        assert [found.classes[label] for label in labels] == [own[number] for number in NUMBERS]
    assert {path.name for path in tmp_path.iterdir()} == {"insects"}, "nothing half-written is left"


def test_a_benchmark_runs_on_it_and_knows_it_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = Config(data.write_arrays("insects", Folder(), Folder()), tasks=2, epochs=1, backbone="mlp", memory=8)
    result = run(config)
    assert result["labels"] == NAMES and len(result["accuracy_matrix"]) == 2
    assert result["data"] == data.fingerprint("arrays:insects")
    assert run(config) == result
    same = data.write_arrays("again", hugging_face(streamed=True), stream())
    assert data.fingerprint(same) == result["data"], "the fingerprint is of the content, not of the container"


def test_a_stream_is_read_one_sample_at_a_time(tmp_path: Path) -> None:
    """The images read so far are on disk before the next one is asked for, up to the file's buffer."""
    seen = []

    def watched() -> Iterator[tuple[np.ndarray, int]]:
        for at in range(60):
            yield np.full((64, 64, 3), at, np.uint8), at % 2
            (path,) = tmp_path.glob(".big.part/train_images.npy")
            seen.append(path.stat().st_size)

    data.write_arrays(tmp_path / "big", watched(), (np.zeros((2, 64, 64, 3), np.uint8), [0, 1]))
    images = 64 * 64 * 3
    assert all(size >= (at + 1) * images - 2**17 for at, size in enumerate(seen)) and seen[-1] > 50 * images


def test_grey_pictures_stay_grey_and_larger_ones_are_scaled(tmp_path: Path) -> None:
    grey = [Image.fromarray(each[0]) for each in PIXELS]
    assert data.load(data.write_arrays(tmp_path / "grey", (grey, NUMBERS), (grey, NUMBERS))).train_images.shape[1:] == (
        1, 8, 8)
    small = data.write_arrays(tmp_path / "small", Folder(), Folder(), size=(4, 6))
    assert data.load(small).train_images.shape == (40, 3, 4, 6)


@pytest.mark.parametrize(
    ("train", "test", "options", "told"),
    [(([*PIXELS], [*NUMBERS]), ([*PIXELS[:1]], [0]), {}, "no training or no test samples: 1, 2, 3"),
     ((PIXELS, [0]), (PIXELS, NUMBERS), {}, "needs as many labels"),
     (iter(()), Folder(), {}, "no train samples. An iterator can be read only once"),
     (iter([(np.zeros(4), "a")]), Folder(), {"pixels": (1, 2, 3)}, r"Sample 0 of the train samples has 4 numbers"),
     (iter([(np.zeros(4), "a")]), Folder(), {}, r"Image 0 of the train samples has shape \(4,\)"),
     ((PIXELS, ["a\nb"] * 40), (PIXELS, ["a\nb"] * 40), {}, "a name is one line"),
     ((PIXELS, [0.5] * 40), (PIXELS, [0.5] * 40), {}, "all strings or all whole numbers")],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    train: Any, test: Any, options: Any, told: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=told):
        data.write_arrays(tmp_path / "insects", train, test, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "insects").mkdir()
    with pytest.raises(BadInput, match="exists already"):
        data.write_arrays(tmp_path / "insects", Folder(), Folder())


def test_a_number_without_a_name_is_refused(tmp_path: Path) -> None:
    """Hugging Face marks samples without a label by -1."""

    class Unlabelled(Folder):
        def __getitem__(self, at: int) -> tuple[Image.Image, int]:
            return pictures()[at], -1

    with pytest.raises(BadInput, match="-1 is not one of the 4 classes"):
        data.write_arrays(tmp_path / "insects", Unlabelled(), Folder())
