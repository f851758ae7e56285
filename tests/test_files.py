"""Files are whole or absent; what is read is what was written, or it is refused by name."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from holdfast import files
from holdfast.errors import BadFile

TENSORS = {
    "weights": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
    "bytes": torch.arange(6, dtype=torch.uint8),
    "nothing": torch.empty(0, 2),
    "one": torch.tensor(5),
    "last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
}


def test_tensors_and_state_come_back_as_they_were(tmp_path: Path) -> None:
    state = {"step": 3, "records": [{"loss": 0.1 + 0.2}], "name": "ä"}
    files.write_tensors(tmp_path / "a.safetensors", TENSORS, state)
    tensors, read = files.read_tensors(tmp_path / "a.safetensors")
    assert read == state
    assert tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert tensors[name].dtype == value.dtype and torch.equal(tensors[name], value)


def test_tensors_that_share_memory_can_be_written_together(tmp_path: Path) -> None:
    base = torch.arange(10.0)
    files.write_tensors(tmp_path / "a", {"a": base, "b": base[2:5]}, {})
    assert torch.equal(files.read_tensors(tmp_path / "a")[0]["b"], base[2:5])


def test_any_altered_byte_and_any_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    files.write_tensors(path, {"w": torch.arange(4.0)}, {"step": 3})
    whole = path.read_bytes()
    for place in range(len(whole)):
        altered = bytearray(whole)
        altered[place] ^= 1
        path.write_bytes(altered)
        try:
            tensors, state = files.read_tensors(path)
        except BadFile as error:
            assert str(path) in str(error)
        else:  # JSON spelled otherwise may mean the same; the content must be
            assert (state, tensors["w"].tolist()) == ({"step": 3}, [0, 1, 2, 3])
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(BadFile):
            files.read_tensors(path)


def test_foreign_and_newer_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors.torch.save({"w": torch.ones(2)}))
    with pytest.raises(BadFile, match="not a holdfast tensor file"):
        files.read_tensors(path)
    path.write_bytes(safetensors.torch.save({}, metadata={"format": "999", "state": "{}", "digest": ""}))
    with pytest.raises(BadFile, match=r"999.*upgrade"):
        files.read_tensors(path)
    with pytest.raises(BadFile, match="absent"):
        files.read_tensors(tmp_path / "absent")


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    files.write_json(path, {"a": 1})

    def full(descriptor: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="space"):
        files.write_json(path, {"a": 2})
    assert files.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_json_is_strict_sorted_and_has_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    files.write_json(path, {"b": (1, math.nan), "a": {2: math.inf}})
    text = path.read_text()
    assert json.loads(text) == {"a": {"2": None}, "b": [1, None]}
    assert text.index('"a"') < text.index('"b"')
    assert files.dumps({"x": -math.inf, "a": 1}) == '{"a": 1, "x": null}'


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 100_000])
def test_bad_json_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=r"config\.json"):
        files.read_json(path)
