"""Whatever a file holds, loading it raises only our errors, soon, and within a limit of memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import figures
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import files
from holdfast.data import DATASETS, parse
from holdfast.data.published import Packed, Part
from holdfast.errors import BadData, BadFile, HoldfastError
from holdfast.runs.config import PROTOCOL, Config

SHORT = {"tensor_files": 300, "configs": 150, "record_files": 100, "idx_files": 200, "cifar_archives": 100,
         "gzips": 200, "own_arrays": 200, "own_pictures": 100}
LONG = {"tensor_files": 30_000, "configs": 20_000, "record_files": 12_000, "idx_files": 20_000, "cifar_archives": 9_000,
        "gzips": 20_000, "own_arrays": 20_000, "own_pictures": 10_000}

FIELDS = [*(each.name for each in PROTOCOL), *Config("split-digits").resolved().options, "benchmark", "given", "x"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def fuzz(wanted: dict[str, int], seed: int) -> dict[str, Any]:
    script = Path(__file__).with_name("fuzzing.py")
    done = subprocess.run([sys.executable, str(script), json.dumps(wanted), str(seed)], capture_output=True, text=True,
                          timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["escaped"] == []
    assert told["inputs"] == told["refused"] + told["accepted"] and told["refused"] and told["accepted"]
    return told


def test_only_our_own_exceptions_come_out() -> None:
    fuzz(SHORT, 0)


@pytest.mark.torture
def test_only_our_own_exceptions_come_out_of_a_hundred_thousand() -> None:
    seed, total = int(time.time()), {"inputs": 0, "refused": 0, "accepted": 0}
    slowest = growth = 0.0
    by_target, limit = {}, 0
    for name, count in LONG.items():  # one process per loader, so that none hides another's memory
        told = fuzz({name: count}, seed)
        total = {key: total[key] + told[key] for key in total}
        slowest, growth, limit = max(slowest, told["slowest"]), max(growth, told["growth"]), told["limit"]
        by_target[name] = count
    assert total["inputs"] >= 100_000
    figures.keep("fuzz", **total, escaped=0, slowest=round(slowest, 3), growth=round(growth, 1), limit=limit,
                 by_target=by_target, seed=seed)


@given(content=st.binary(max_size=300))
@relaxed
def test_any_bytes_are_no_tensor_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(BadFile):
        files.read_tensors(tmp_path / "x")


@given(value=st.dictionaries(st.sampled_from(FIELDS), values, max_size=4))
@relaxed
def test_any_json_is_a_config_or_refused(value: dict[str, Any]) -> None:
    try:
        config = Config.from_json({"benchmark": "split-digits", **value}).resolved()
    except HoldfastError:
        return
    assert Config.from_json(json.loads(json.dumps(config.to_json()))).resolved() == config


@given(value=values)
@relaxed
def test_any_json_written_as_a_record_comes_back(value: Any, tmp_path: Path) -> None:
    files.write_record(tmp_path / "x.json", {"value": value})
    assert files.read_record(tmp_path / "x.json") == json.loads(files.dumps({"value": value}))


@given(content=st.binary(max_size=200))
@relaxed
def test_any_bytes_are_no_data(content: bytes) -> None:
    with pytest.raises(BadData):
        parse.untar(content, Packed("x", 0, "", (Part("a", 5, ""),)), "c")
    with pytest.raises(BadData):
        parse.gunzip(content, Part("a", 201, ""))
    with pytest.raises(BadData):
        parse.split(DATASETS["mnist"], {"i": content, "l": content}, ("i", "l"))
    with pytest.raises(BadData):
        parse.split(DATASETS["cifar10"], {"b": content}, ("b",))
