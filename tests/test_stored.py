"""Images on disk are learned from as resident ones are, in far less memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import assert_same_bits, bits, make_tiny_config, make_tiny_stream, make_tiny_trainer
from steadfast import data, experiment, streams
from steadfast.errors import BadData, BadInput
from steadfast.stored import Mapped, Pictures, Stored, open_arrays, open_pictures


def write_arrays(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    for part in ("train", "test"):
        np.save(folder / f"{part}_images.npy", images)
        np.save(folder / f"{part}_labels.npy", labels)


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (12, 1, 8, 8), dtype=np.uint8)
    write_arrays(tmp_path, images, np.arange(12) % 4)
    return tmp_path


def test_a_mapped_array_gives_the_rows_of_the_array(arrays: Path) -> None:
    images, rows = Mapped(arrays / "train_images.npy"), torch.tensor([5, 0, 5, 11])
    resident = torch.from_numpy(np.load(arrays / "train_images.npy"))
    assert torch.equal(images[rows], resident[rows]) and images[:0].shape == (0, 1, 8, 8)
    assert images.shape == (12, 1, 8, 8) and len(images) == 12


def test_a_run_on_mapped_arrays_and_with_its_memory_on_disk_has_the_bits_of_a_resident_one(tmp_path: Path) -> None:
    stream = make_tiny_stream()
    resident = make_tiny_trainer(stream)
    resident.run()
    np.save(tmp_path / "images.npy", stream.tasks[0].train.images.numpy())
    mapped = Mapped(tmp_path / "images.npy")
    tasks = tuple(
        streams.Task(t.index, t.slots, streams.Samples(mapped, t.train.rows, t.train.slots), t.test)
        for t in stream.tasks
    )
    trainer = make_tiny_trainer(streams.Stream("mapped", tasks, stream.labels, stream.mean, stream.std))
    assert trainer.method.memory is not None
    trainer.method.memory.to_disk(tmp_path / "memory")
    assert not (tmp_path / "memory").exists()
    trainer.run()
    assert_same_bits(bits(trainer), bits(resident))


def test_files_decoded_ahead_are_the_files(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(4):
                pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / name / f"{number}.png")
    found = open_pictures(tmp_path, size=8, workers=1)
    images = found.train_images
    assert isinstance(images, Pictures) and found.classes == ("cat", "dog")
    assert found.train_labels.tolist() == [0] * 4 + [1] * 4
    expected = np.stack([np.asarray(Image.open(path)).transpose(2, 0, 1) for path in images.paths])
    batches = torch.tensor([3, 1, 7, 0, 2, 4]).split(2)
    images.expect(iter(batches))
    for batch in (batches[0], torch.tensor([6]), *batches[1:]):  # one of them unexpected
        assert torch.equal(images[batch], torch.from_numpy(expected)[batch])


def test_what_is_no_data_set_is_refused_by_name(arrays: Path, tmp_path: Path) -> None:
    assert isinstance(data.load(f"arrays:{arrays}").train_images, Stored)
    np.save(arrays / "test_labels.npy", np.arange(3))
    with pytest.raises(BadData, match=r"test_labels.npy holds int64 of shape \(3,\)"):
        open_arrays(arrays)
    np.save(arrays / "train_images.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(BadData, match=r"train_images\.npy cannot be read"):
        open_arrays(arrays)
    np.save(arrays / "train_images.npy", np.zeros((2, 3), dtype=np.float32))
    with pytest.raises(BadData, match="images are bytes"):
        open_arrays(arrays)
    with pytest.raises(BadData, match="train/CLASS"):
        open_pictures(tmp_path / "nothing")
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(BadInput, match=r"bad\.png cannot be read"):
        Pictures([tmp_path / "bad.png"], (3, 8, 8))[torch.tensor([0])]


LARGE = """
import sys
from pathlib import Path
import torch
from torch import nn
from steadfast import backbones, experiment, randomness, streams
from steadfast.config import Config
from steadfast.stored import open_arrays

torch.set_num_threads(1)
@backbones.register("shrink", "an average, for the test of a large set")
def shrink(shape):
    return nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(3 * 8 * 8, 16))

data = open_arrays(sys.argv[1])
stream = streams.split(data, 5, generator=randomness.generator(0, "stream"))
config = Config("split-digits", backbone="shrink", epochs=1, memory=1000, batch=64).resolved()
trainer = experiment.make_trainer(config, stream, torch.device("cpu"))
trainer.method.memory.to_disk(Path(sys.argv[1]) / "memory")
trainer.run()
assert len(trainer.at.accuracies) == 2 and len(trainer.method.memory) == 1000
with open("/proc/self/status") as file:  # not ru_maxrss, which a process inherits from the one that started it
    print(next(line.split()[1] for line in file if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_more_than_two_gigabytes_are_learned_from_in_less_than_one(tmp_path: Path) -> None:
    """All that is resident counts, also what is mapped. The file is sparse: it costs no disk."""
    shape = (11_000, 3, 256, 256)
    for part, count in (("train", shape[0]), ("test", 20)):
        array = np.lib.format.open_memmap(
            tmp_path / f"{part}_images.npy", mode="w+", dtype=np.uint8, shape=(count, *shape[1:])
        )
        array[:: max(1, count // 20), :, :8] = 200
        del array
        np.save(tmp_path / f"{part}_labels.npy", np.arange(count) % 10)
    assert (tmp_path / "train_images.npy").stat().st_size >= 2 * 2**30
    done = subprocess.run([sys.executable, "-c", LARGE, str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) * 1024 < 2**30, f"{int(done.stdout) / 1024:.0f} MB were resident"


def test_the_command_keeps_its_memory_on_disk_and_its_numbers(tmp_path: Path) -> None:
    config = make_tiny_config(backbone="mlp", quick=True, epochs=1, batch=64, memory=50)
    plain = experiment.run(config, tmp_path / "plain", device="cpu", threads=1)
    on_disk = experiment.run(config, tmp_path / "disk", device="cpu", threads=1, memory_on_disk=True)
    assert plain["accuracy_matrix"] == on_disk["accuracy_matrix"]
