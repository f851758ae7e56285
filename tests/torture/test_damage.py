"""Truncate a file anywhere, flip any bit: it is refused by name or read as before, never with a wrong answer.

Six kinds of file: checkpoint, result (config.json has the same digest), record, data file, data archive, model.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import figures
import numpy as np
import pytest
import torch
from survivor import differ, remains

from conftest import make_tiny_config, make_tiny_trainer
from data_factory import fake_cifar, fake_idx, use
from holdfast import data, files
from holdfast.errors import BadData, BadFile, HoldfastError
from holdfast.estimator import IncrementalClassifier
from holdfast.runs import experiment, records
from holdfast.runs.config import Config
from holdfast.runs.folder import RunFolder
from records_factory import make_record

Run = Callable[..., experiment.Result]
Read = Callable[[Path], Any]  # raises if it refuses, else gives what can be compared


def plain(value: Any) -> Any:
    """Convert tensors to lists, so that == compares them."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


class Kind:
    """A good file, and how it is read."""

    def __init__(self, path: Path, read: Read, tolerant: bool = False) -> None:
        self.path, self.read, self.whole, self.tolerant = path, read, path.read_bytes(), tolerant
        self.wanted = read(path)

    def answer(self, content: bytes) -> str:
        self.path.write_bytes(content)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                seen = self.read(self.path)
        except HoldfastError as error:
            assert self.path.name in str(error) or isinstance(error, BadData), f"does not name the file: {error}"
            return "refused"
        if self.tolerant and isinstance(seen, dict):  # the name of the digest itself was altered
            seen = {k: v for k, v in seen.items() if k in self.wanted}
        assert seen == self.wanted, "a silent wrong answer"
        return "same"

    def damage(self, flips: int, cuts: int, chance: random.Random) -> tuple[int, int]:
        """Flip bits and cut in every region of the file; 0 flips means every bit."""
        size = len(self.whole)
        bits = range(8 * size) if not flips or flips >= 8 * size else self.spread(8 * size, flips, chance)
        for bit in bits:
            altered = bytearray(self.whole)
            altered[bit // 8] ^= 1 << bit % 8
            self.answer(bytes(altered))
        lengths = range(size) if cuts >= size else self.spread(size, cuts, chance)
        for length in lengths:
            kept = self.answer(self.whole[:length])
            assert kept == "refused" or self.whole[length:].isspace()
        self.path.write_bytes(self.whole)
        return len(bits), len(lengths)

    @staticmethod
    def spread(size: int, count: int, chance: random.Random) -> list[int]:
        """Choose one place in each of `count` equal regions, and all of the first ones, where the header is."""
        regions = [chance.randrange(size * i // count, max(size * i // count + 1, size * (i + 1) // count))
                   for i in range(count)]
        return sorted({*regions, *range(min(size, max(1, count // 4)))})


def make_kinds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Kind]:
    trainer = make_tiny_trainer(backbone="lenet", epochs=1, memory=12)
    run = RunFolder(folder / "run")
    experiment.save(trainer, run, "a run")
    record = make_record(Config("split-digits", memory=50))
    files.write_record(folder / "result.json", record)
    (folder / "records").mkdir()
    shutil.copy(folder / "result.json", folder / "records" / "one.json")

    def read_records(path: Path) -> Any:
        found = records.read(path.parent)
        if found.left_out:
            raise BadFile(f"{path.name} {found.left_out[0].reason}")
        return [{k: v for k, v in run.result.items() if k in record} for run in found.runs]

    mnist, cifar = fake_idx("mnist", seed=1), fake_cifar("cifar10", seed=3)
    use(mnist.entry, monkeypatch)
    use(cifar.entry, monkeypatch)
    monkeypatch.setattr("holdfast.data.places.platformdirs.user_cache_path", lambda _: folder / "cache")
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    mnist.write(folder / "data", mnist.entry.folders[0], packed=False)
    cifar.write(folder / "data", cifar.entry.folders[0], packed=True)

    def read_data(name: str) -> Read:
        def read(path: Path) -> Any:
            found = data.load(name, folder / "data", download=False)
            return plain([found.train_images[:2], found.train_labels, found.test_labels])

        return read

    inputs = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    model = IncrementalClassifier(epochs=1, slots=8, memory=12, backbone="mlp").fit(inputs, np.arange(30) % 3)
    model.save(folder / "model")

    def read_model(path: Path) -> Any:
        return IncrementalClassifier.load(path, device="cpu").predict_proba(inputs).tolist()

    images = folder / "data" / mnist.entry.folders[0] / "train-images-idx3-ubyte"
    archive = folder / "data" / cifar.entry.folders[0] / cifar.entry.packed[0].file
    return {
        "checkpoint": Kind(run.checkpoints()[0], lambda path: plain(list(files.read_tensors(path)))),
        "result": Kind(folder / "result.json", files.read_record, tolerant=True),
        "record": Kind(folder / "records" / "one.json", read_records),
        "data file": Kind(images, read_data("mnist")),
        "data archive": Kind(archive, read_data("cifar10")),
        "model": Kind(folder / "model" / "model.safetensors", read_model),
    }


def test_damage_is_refused_or_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in make_kinds(tmp_path, monkeypatch).items():
        kind.damage(*{"result": (2000, 300), "data file": (60, 20), "data archive": (10, 5)}.get(name, (16, 8)),
                    random.Random(name))


@pytest.mark.torture
def test_damage_anywhere_is_refused_or_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = [0, 0]
    for name, kind in make_kinds(tmp_path, monkeypatch).items():
        many = {"result": (0, 10**6), "record": (5000, 1000), "data file": (4000, 1000), "data archive": (600, 200)}
        flips, cuts = many.get(name, (1500, 500))
        for index, count in enumerate(kind.damage(flips, cuts, random.Random())):
            total[index] += count
    figures.keep("damage", flips=total[0], cuts=total[1], wrong=0)


def test_a_run_whose_files_were_all_damaged_ends_as_it_did(run_tiny: Run, tmp_path: Path) -> None:
    """If all files of a finished run are damaged, the run is learned again, to the same bits."""
    config = make_tiny_config(epochs=1)
    run_tiny(config, tmp_path / "whole")
    run_tiny(config, tmp_path / "hurt")
    folder = RunFolder(tmp_path / "hurt" / config.name)
    for path in (folder.result, folder.config, folder.metrics, folder.environment, *folder.checkpoints()):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 8
        path.write_bytes(content[:-3])
    with pytest.warns(UserWarning) as told:
        run_tiny(config, tmp_path / "hurt")
    assert any("result.json" in str(w.message) for w in told) and any("checkpoint-" in str(w.message) for w in told)
    assert folder.result.with_suffix(".damaged").exists()
    differ(remains(tmp_path / "hurt"), remains(tmp_path / "whole"), "the hurt run")


def test_a_result_without_a_digest_is_read_and_one_with_a_wrong_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    files.write_json(path, {"a": 1})
    assert files.read_record(path) == {"a": 1}
    files.write_record(path, {"a": 1.5, "b": [None, "ä"]})
    assert files.read_record(path) == {"a": 1.5, "b": [None, "ä"]}
    path.write_text(path.read_text().replace("1.5", "2.5"))
    with pytest.raises(BadFile, match=r"result\.json is damaged"):
        files.read_record(path)
