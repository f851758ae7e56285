"""Hostile files: nothing in them is executed, nothing is written outside, no size in them is believed.

Wrong answers of a mirror are in test_data.py.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import resource
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import EpsImagePlugin

from conftest import make_tiny_config
from holdfast import data, files
from holdfast.data import folders, inputs, parse
from holdfast.data import own as own_data
from holdfast.data.published import Packed, Part
from holdfast.errors import BadData, BadFile, BadInput, CannotWrite
from holdfast.estimator import IncrementalClassifier
from holdfast.runs import records
from holdfast.runs.folder import RunFolder

PACKED = Packed("x.tar.gz", 0, "", (Part("a.bin", 5, ""),))


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def make_pickles(mark: Path) -> list[bytes]:
    buffer = io.BytesIO()
    torch.save({"w": Bomb(mark)}, buffer)
    plain = pickle.dumps(Bomb(mark))
    return [plain, buffer.getvalue(), struct.pack("<Q", len(plain)) + plain]


def test_a_pickle_under_any_of_our_names_is_not_unpickled(
    run_tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, mark = make_tiny_config(epochs=1), tmp_path / "executed"
    monkeypatch.setattr("holdfast.data.places.platformdirs.user_cache_path", lambda _: tmp_path / "cache")
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)  # a good copy there would be used instead
    for number, content in enumerate(make_pickles(mark)):
        folder = RunFolder(tmp_path / f"{number}" / config.name)
        folder.path.mkdir(parents=True)
        (folder.path / "checkpoint-000001.safetensors").write_bytes(content)
        folder.result.write_bytes(content)
        with pytest.warns(UserWarning, match="Resuming from the previous checkpoint, or from the start"):
            run_tiny(config, tmp_path / f"{number}")
        (model := tmp_path / f"model-{number}").mkdir()
        (model / "model.safetensors").write_bytes(content)
        with pytest.raises(BadFile):
            IncrementalClassifier.load(model)
        (model / "one.json").write_bytes(content)
        assert records.read(model).left_out
        (home := tmp_path / f"data-{number}" / "MNIST" / "raw").mkdir(parents=True)
        for name in ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"):
            (home / name).write_bytes(content)
        with pytest.raises(BadData):
            data.load("mnist", tmp_path / f"data-{number}", download=False)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()  # the bomb is a bomb


@pytest.mark.parametrize("size", [2**31, 2**40, 2**63, 2**64 - 1])
def test_a_header_of_gigabytes_is_refused_before_it_is_read(size: int, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-000001.safetensors"
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", size))
        file.truncate(3 * 2**30)  # as long as some of them say, but without a byte on the disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadFile, match=r"a header of [\d,]+ bytes"):
        files.read_tensors(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def archive(*members: tuple[str, bytes, bytes, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as made:
        for name, kind, content, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, link, len(content)
            made.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["../a.bin", "/c/a.bin", "c/../a.bin", "c/../../c/a.bin", "./c/a.bin", "c//a.bin"])
def test_a_member_of_a_roundabout_name_is_not_the_one_wanted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadData, match="not in the archive"):
        parse.untar(archive((name, tarfile.REGTYPE, b"12345", "")), PACKED, "c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_a_member_that_is_a_link_or_a_device_is_refused(kind: bytes, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("12345")
    with pytest.raises(BadData, match="not a regular file"):
        parse.untar(archive(("c/a.bin", kind, b"", str(tmp_path / "secret"))), PACKED, "c")


def test_a_link_first_and_the_file_through_it_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    made = archive(("c", tarfile.SYMTYPE, b"", str(outside)), ("c/a.bin", tarfile.REGTYPE, b"12345", ""))
    assert parse.untar(made, PACKED, "c") == {"a.bin": b"12345"}  # read into memory; no link is ever followed
    assert list(outside.iterdir()) == []


def test_bombs_are_stopped_at_the_size_that_is_wanted() -> None:
    zeros = gzip.compress(bytes(1 << 26), 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadData, match="more than"):
        parse.gunzip(zeros * 4, Part("a", 100, ""))
    bomb = archive(*[(f"c/{i}", tarfile.REGTYPE, bytes(1 << 20), "") for i in range(8)])
    with pytest.raises(BadData, match="more than it should hold"):
        parse.untar(bomb, PACKED, "c")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000  # kB


def test_no_program_is_started_for_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PIL goes by content, not by name: it hands PostScript to Ghostscript, called gs."""
    ran, program, cat = tmp_path / "ran", tmp_path / "bin" / "gs", tmp_path / "train" / "cats" / "cat.png"
    for path in (program, cat):
        path.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # not looked for yet
    cat.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    assert EpsImagePlugin.has_ghostscript()
    ran.unlink(missing_ok=True)  # it was only asked for its version
    for size in (None, 8):
        (_, why), = folders.read([cat], None, size).bad
        assert "cat.png cannot be read as an image: it is none of PNG, JPEG" in why
    with pytest.raises(BadInput, match="it is none of PNG"):
        inputs.images([str(cat)], None)
    (tmp_path / "test").symlink_to("train")
    with pytest.raises(BadData, match="it is none of PNG"):
        own_data.open_pictures(tmp_path)
    assert not ran.exists()


def test_nothing_is_written_through_a_link_in_the_run_folder(run_tiny: Any, tmp_path: Path) -> None:
    config = make_tiny_config(epochs=1)
    (folder := tmp_path / "runs" / config.name).mkdir(parents=True)
    names = [".holder", "config.json", "environment.jsonl", "metrics.jsonl", ".memory-0"]
    names += [f".{name}.{os.getpid()}.part" for name in (".holder", "config.json", "checkpoint-000001.safetensors")]
    for name in names:
        (tmp_path / f"victim-{name}").write_text("mine")
        (folder / name).symlink_to(tmp_path / f"victim-{name}")
    run_tiny(config, tmp_path / "runs", memory_on_disk=True)
    assert {(tmp_path / f"victim-{name}").read_text() for name in names} == {"mine"}


def test_a_lock_that_is_a_link_is_refused(run_tiny: Any, tmp_path: Path) -> None:
    config = make_tiny_config(epochs=1)
    (tmp_path / config.name).mkdir()
    (victim := tmp_path / "victim").write_text("mine")
    (tmp_path / config.name / ".lock").symlink_to(victim)
    with pytest.raises(CannotWrite):
        run_tiny(config)
    assert victim.read_text() == "mine"
