"""Images on disk are learned from as resident ones are, in far less memory."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from conftest import assert_same_bits, bits, make_tiny_stream, make_tiny_trainer
from holdfast import data, files
from holdfast.cli import main as cli
from holdfast.data import own as own_data
from holdfast.data.own import open_arrays, open_pictures
from holdfast.data.stored import Mapped, Pictures, Stored
from holdfast.errors import BadConfig, BadData, BadInput, HoldfastError
from holdfast.hardware import Machine
from holdfast.learning import streams
from holdfast.learning.training import Stopped, Watcher
from holdfast.runs import benchmarks, experiment
from holdfast.runs.build import make_stream, make_trainer
from holdfast.runs.config import Config
from holdfast.runs.folder import Result, RunFolder
from holdfast.sweeps.engines import Job, work
from holdfast.sweeps.survey import survey
from test_experiment import left_behind


def machine_at(out: Path, **more: Any) -> Machine:
    return Machine(out=str(out), device="cpu", threads=1, **more)


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


def write_pictures(folder: Path, classes: tuple[str, ...]) -> None:
    generator = np.random.default_rng(1)
    for part in ("train", "test"):
        for name in classes:
            (folder / part / name).mkdir(parents=True)
            for number in range(4):
                pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{number}.png")


def test_files_decoded_ahead_are_the_files_and_a_killed_decoder_is_told(tmp_path: Path) -> None:
    write_pictures(tmp_path, ("cat", "dog"))
    found = open_pictures(tmp_path, size=8, workers=1)
    images = found.train_images
    assert isinstance(images, Pictures) and found.classes == ("cat", "dog")
    assert found.train_labels.tolist() == [0] * 4 + [1] * 4
    expected = np.stack([np.asarray(Image.open(path)).transpose(2, 0, 1) for path in images.paths])
    batches = torch.tensor([3, 1, 7, 0, 2, 4]).split(2)
    images.expect(iter(batches))
    for batch in (batches[0], torch.tensor([6]), *batches[1:]):  # one of them unexpected
        assert torch.equal(images[batch], torch.from_numpy(expected)[batch])
    assert images._pool is not None
    for process in images._pool._processes.values():
        process.kill()
        process.join()
    with pytest.raises(HoldfastError, match=r"was killed.* give the same command to resume"):
        images.expect(iter(batches))
        assert [images[batch] for batch in batches]


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


def npy(shape: str, body: bytes = bytes(96), kind: str = "<i8") -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + body


@pytest.mark.parametrize("name, content", [
    *(("train_labels", npy(shape)) for shape in (
        f"({10**13},)", f"({10**30},)", "(True,)", "(12,", "(-12,)", "(12.0,)",
    )),
    ("train_labels", npy("(12,)}\n {0")), ("train_labels", npy("(12,)", kind="<V999999999")),
    ("train_labels", b"\x93NUMPY\2\0\xff\xff\xff\xff"), ("train_labels", b"PK\3\4, a zip"), ("train_labels", b""),
    *(("train_images", npy(shape, bytes(5120), "|u1")) for shape in ("(-5, 1, 32, 32)", "(12, 1, 8, 99999999999)")),
])
def test_a_header_that_lies_is_refused_and_nothing_of_its_size_is_made(name: str, content: bytes, arrays: Path) -> None:
    (arrays / f"{name}.npy").write_bytes(content)
    with pytest.raises(BadData, match=rf"{name}\.npy cannot be read as a \.npy array: \w+Error: "):
        open_arrays(arrays)


def test_a_label_beyond_what_there_is_makes_no_classes(arrays: Path) -> None:
    for dtype, label, told in (
        (np.int64, 2**36, rf"has the label {2**36}, but only 24 samples: number the classes .* in a classes\.txt"),
        (np.uint64, 2**64 - 1, "labels are 12 whole numbers from 0"), (np.int8, -1, "12 whole numbers from 0"),
    ):
        labels = (np.arange(12) % 4).astype(dtype)
        labels[3] = label
        np.save(arrays / "train_labels.npy", labels)
        with pytest.raises(BadData, match=told):
            open_arrays(arrays)
    np.save(arrays / "train_labels.npy", np.arange(12) + 50)  # few samples of many classes, if these are named
    (arrays / "classes.txt").write_text("".join(f"kind {n}\n" for n in range(62)))
    assert open_arrays(arrays).classes[-1] == "kind 61"
    (arrays / "classes.txt").write_text("".join(f"kind {n}\n" for n in range(61)))
    with pytest.raises(BadData, match="labels up to 61, 61 names"):
        open_arrays(arrays)
    (arrays / "classes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BadData, match=r"classes\.txt cannot be read as one name per line"):
        open_arrays(arrays)


# A folder of one's own as the benchmark of a run.


OWN = ["--classes-per-task", "2", "--backbone", "mlp", "--epochs", "2", "--batch", "4", "--memory", "8"]


def stopped_and_gone_on_with(config: Config, tmp_path: Path) -> None:
    """Whole, and cut off in the second task's first epoch, then finished by a worker from the configuration's JSON."""
    experiment.run(config, machine_at(tmp_path / "whole"))
    (whole,) = (tmp_path / "whole").iterdir()
    count = iter([False] * 7 + [True])
    with pytest.raises(Stopped):
        experiment.run(config, machine_at(tmp_path / "cut"), watcher=Watcher(stop=lambda: next(count)))
    assert not RunFolder(tmp_path / "cut" / config.name).result.exists()
    work(Job(config.resolved().to_json(), machine_at(tmp_path / "cut"), name=config.name))
    assert_same_bits(left_behind(RunFolder(tmp_path / "cut" / whole.name)), left_behind(RunFolder(whole)))


def test_the_command_learns_arrays_and_its_run_goes_on_to_the_same_bits(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(arrays.parent)
    address, out = f"arrays:{arrays.name}", tmp_path / "out"
    words = ["run", address, *OWN, "--out", str(out), "--device", "cpu", "--threads", "1"]
    answer = CliRunner().invoke(cli.app, words)
    assert answer.exit_code == 0, answer.output
    (folder,) = out.iterdir()
    result = RunFolder(folder).read_result()
    assert result is not None and len(result["accuracy_matrix"]) == 2 and result["labels"] == list("0123")
    assert result["config"]["benchmark"] == f"arrays:{arrays}" and folder.name.startswith(f"arrays-{arrays.name}-")
    stopped_and_gone_on_with(Config(address, backbone="mlp", classes_per_task=2, epochs=2, batch=4, memory=8), tmp_path)
    (whole,) = (tmp_path / "whole").iterdir()
    assert whole.name == folder.name, "the same run, however it was started"
    assert_same_bits(left_behind(RunFolder(folder)), left_behind(RunFolder(whole)))


def test_a_run_is_not_gone_on_with_nor_its_result_shown_with_other_data(arrays: Path, tmp_path: Path) -> None:
    config = Config(f"arrays:{arrays}", backbone="mlp", classes_per_task=2, epochs=2, batch=4, memory=8).resolved()
    out, labels = tmp_path / "out", np.load(arrays / "train_labels.npy")
    good = np.load(arrays / "train_images.npy")

    def go_on(stops: Iterator[bool] | None = None, resume: bool = True) -> Result:
        watcher = Watcher(stop=lambda: next(stops)) if stops else None
        return experiment.run(config, machine_at(out), watcher=watcher, resume=resume)

    with pytest.raises(Stopped):
        go_on(iter([False] * 7 + [True]))
    inverted, fewer, (newest, *_) = ~good, good[:8], RunFolder(out / config.name).checkpoints()
    for images, their in ((inverted, labels), (fewer, labels[:8]), (good, labels[::-1])):
        np.save(arrays / "train_images.npy", images)
        np.save(arrays / "train_labels.npy", their)
        with pytest.raises(BadData, match=rf"data changed since .*{newest.name} was written .* start anew"):
            go_on()
    np.save(arrays / "train_images.npy", good)
    np.save(arrays / "train_labels.npy", labels)
    done = go_on()
    assert done == go_on() and done["data"] == data.fingerprint(config.benchmark)
    assert survey([config], out)[0].state == "done"
    np.save(arrays / "train_images.npy", inverted)
    (run,) = survey([config], out)
    assert run.state == "failed" and "data changed since" in run.note and run.result is None
    assert run.note.endswith(f"or start it anew: {config.command()} --fresh.")
    with pytest.raises(BadData, match=r"data changed since .*result\.json was written"):
        go_on()
    assert go_on(resume=False)["data"] == data.fingerprint(config.benchmark) != done["data"]


def test_a_checkpoint_from_before_there_were_fingerprints_is_gone_on_with(arrays: Path, tmp_path: Path) -> None:
    config = Config(f"arrays:{arrays}", backbone="mlp", classes_per_task=2, epochs=1, batch=4, memory=8).resolved()
    trainer = make_trainer(config, make_stream(config), torch.device("cpu"))
    experiment.save(trainer, RunFolder(tmp_path / "run"), config.hash)
    (path,) = RunFolder(tmp_path / "run").checkpoints()
    tensors, plain = files.read_tensors(path)
    assert plain.pop("data") == data.fingerprint(config.benchmark)
    files.write_tensors(path, tensors, plain)
    assert experiment.restore(trainer, RunFolder(tmp_path / "run"), config.hash)


def test_a_fingerprint_is_of_content_and_order_not_of_names(tmp_path: Path) -> None:
    write_pictures(tmp_path, ("cat", "dog"))
    first, second, *_ = files_of = sorted((tmp_path / "train" / "cat").iterdir())
    before = data.fingerprint(f"images:{tmp_path}")
    files_of[-1].rename(files_of[-1].with_name("9.png"))
    assert data.fingerprint(f"images:{tmp_path}") == before == open_pictures(tmp_path, workers=0).fingerprint
    first.rename(first.with_name("1a.png"))  # now after the second
    assert data.fingerprint(f"images:{tmp_path}") != before
    first.with_name("1a.png").rename(first)
    second.write_bytes(second.read_bytes()[:-1] + b"x")
    assert data.fingerprint(f"images:{tmp_path}") != before
    assert data.fingerprint("mnist") is None


def test_a_fingerprint_of_much_data_is_of_some_of_it(arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_data, "WHOLE", 100)
    monkeypatch.setattr(own_data, "MEASURED", 3)  # the first, the sixth and the last
    before, images = data.fingerprint(f"arrays:{arrays}"), np.load(arrays / "train_images.npy")
    for row, told in ((4, False), (5, True), (11, True)):
        changed = images.copy()
        changed[row, 0, 3, 3] ^= 1
        np.save(arrays / "train_images.npy", changed)
        assert (data.fingerprint(f"arrays:{arrays}") != before) == told


@pytest.mark.slow
def test_a_run_on_image_files_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    write_pictures(tmp_path / "my birds", ("blackbird", "robin", "wren"))
    config = Config(f"images:{tmp_path / 'my birds'}", backbone="mlp", tasks=2, epochs=2, batch=4, memory=9)
    stopped_and_gone_on_with(config, tmp_path)
    result = RunFolder(tmp_path / "cut" / config.name).read_result()
    assert result is not None and result["labels"] == ["blackbird", "robin", "wren"]
    assert f"run 'images:{tmp_path}/my birds'" in result["command"] and "images-my-birds-replay" in config.name


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_a_run_on_image_files_saves_on_ctrl_c_and_leaves_no_process(number: int, tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to the processes that decode as well."""
    write_pictures(tmp_path / "birds", ("robin", "wren"))
    words = ["run", f"images:{tmp_path / 'birds'}", "--tasks", "1", "--backbone", "mlp", "--epochs", "10000",
             "--batch", "4", "--out", str(tmp_path / "runs"), "--device", "cpu", "--threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )
    try:
        limit = time.monotonic() + 200
        while not list(tmp_path.glob("runs/*/metrics.jsonl")) and time.monotonic() < limit:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.1)
        os.killpg(process.pid, number) if number == signal.SIGINT else process.kill()
        _, told = process.communicate(timeout=100)  # it returns when every process that holds stderr has ended
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert "Traceback" not in told
    assert number == signal.SIGKILL or (process.returncode == 130 and "Stopped and saved" in told), told


def test_a_folder_is_a_benchmark_of_its_classes_and_names_the_run(arrays: Path, tmp_path: Path) -> None:
    here = Config(f"arrays:{arrays}")
    assert benchmarks.find(here.benchmark).classes == here.resolved().slots == 4
    assert here.resolved().get("memory") == 80
    assert here.phases() == 4 and Config(here.benchmark, classes_per_task=3).phases() == 2  # 3 and 1
    (tmp_path / "other").mkdir()
    for path in arrays.glob("*.npy"):
        (tmp_path / "other" / path.name).write_bytes(path.read_bytes())
    assert Config(f"arrays:{tmp_path / 'other'}").hash != here.hash, "other data, though they are alike"
    assert Config(f"arrays:{arrays}/../{arrays.name}").hash == here.hash == Config.from_json(here.to_json()).hash
    with pytest.raises(BadConfig, match=r"classes_per_task is 5; arrays:.* has 4 classes"):
        Config(here.benchmark, classes_per_task=5).resolved()
    own = Config(here.benchmark, method="ewc")
    assert own.fallbacks() == {"strength": own.resolved().get("strength")}, "no method needs a number from the user"


@pytest.mark.parametrize("kind", ["arrays", "images"])
def test_a_folder_that_is_not_there_is_named(kind: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=rf"no folder {tmp_path}/nowhere here; name one that holds"):
        Config(f"{kind}:{tmp_path}/nowhere").resolved()
    with pytest.raises(BadData, match=f"write it like {kind}:/data/birds"):
        Config(f"{kind}:").resolved()


LARGE = """
import sys
from pathlib import Path
import torch
from torch import nn
from holdfast import backbones, randomness
from holdfast.data.own import open_arrays
from holdfast.learning import streams
from holdfast.runs.build import make_trainer
from holdfast.runs.config import Config

torch.set_num_threads(1)
@backbones.register("shrink", "an average, for the test of a large set")
def shrink(shape):
    return nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(3 * 8 * 8, 16))

data = open_arrays(sys.argv[1])
stream = streams.split(data, 5, generator=randomness.generator(0, "stream"))
config = Config("split-digits", backbone="shrink", epochs=1, memory=1000, batch=64).resolved()
trainer = make_trainer(config, stream, torch.device("cpu"))
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


def test_a_run_keeps_its_memory_on_disk_and_its_numbers(tmp_path: Path) -> None:
    config = Config("split-digits", backbone="mlp", quick=True, epochs=1, batch=64)
    plain = experiment.run(config, machine_at(tmp_path / "plain"))
    on_disk = experiment.run(config, machine_at(tmp_path / "disk", memory_on_disk=True))
    assert plain["accuracy_matrix"] == on_disk["accuracy_matrix"]
