"""What the benchmarks record, and the page of plots and tables that is made from it."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast import files
from holdfast.backbones.networks import LeNet
from holdfast.errors import BadFile
from holdfast.heads.polytopes import Cube, Orthoplex, Simplex
from holdfast.runs.environment import code_version

ROOT = Path(__file__).parents[1]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A script of benchmarks/ or tools/ by its name."""
    for folder in ("benchmarks", "tools"):
        monkeypatch.syspath_prepend(ROOT / folder)
    return importlib.import_module


def run(script: ModuleType, words: str, record: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its main with these words; the record it wrote."""
    monkeypatch.setattr(sys, "argv", [f"benchmarks/{script.__name__}.py", *words.split(), "--record", str(record)])
    script.main()
    return files.read_record(record)


TINY = {
    "loop_speed": "--backbone mlp --steps 2 --rounds 2 --cpu-time",
    "method_cost": "ewc --rounds 2 --backbone mlp",
    "multi_seed": "--backbones mlp --seeds 2 --steps 1 --rounds 2 --batch 16 --threads 1",
    "importance": "--rounds 2",
    "defaults": "--backbone resnet20 --steps 1 --rounds 2 --batch 4 --cpu-time",
    "convolutions": "--backbones lenet --repeats 1 --rounds 2",
    "head_cost": "--quick --rounds 2 --batch 4 --cpu-time",
}


LONG = ("multi_seed", "defaults")  # seconds each, and seldom changed


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in TINY])
def test_a_benchmark_records_what_it_measured(
    name: str, module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = module(name)
    if name == "importance":
        monkeypatch.setattr(script, "SHAPES", {"mlp": (1, 32, 32)})
    if name == "convolutions":
        monkeypatch.setattr(script, "BATCH", 4)
    if name == "head_cost":
        monkeypatch.setattr(script, "sizes", lambda quick: [Simplex(100), Orthoplex(10**5), Cube(2**64)])
    record = run(script, TINY[name], tmp_path / "records" / "made.json", monkeypatch)
    assert record["benchmark"] == name and record["threads"] == 1
    assert record["clock"] == ("wall" if name == "multi_seed" else "cpu")
    assert record["command"] == f"python benchmarks/{name}.py {TINY[name]}"
    assert record["versions"].keys() == {"python", "torch", "holdfast"} and record["cpu"] and record["cores"] >= 1
    assert str(tmp_path) not in json.dumps(record)
    assert any(row["unit"] in ("ratio", "share", "times the speed") for row in record["rows"])
    for row in record["rows"]:
        low, high = row.get("quartiles", [row["median"]] * 2)
        assert row["name"] and row["what"] and low <= row["median"] <= high


def test_the_loop_is_told_as_a_share_of_the_bare_ones_speed(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = module("loop_speed")
    seconds = {5: 2.0, 2: 1.6}  # a block after so many tasks
    monkeypatch.setattr(script, "block", lambda trainer, clock: seconds[trainer.at.task])
    monkeypatch.setattr(script, "bare_block", lambda trainer, batch, steps, clock: 1.0)
    record = run(script, "--backbone mlp --steps 2 --rounds 2", tmp_path / "a.json", monkeypatch)
    told = {row["what"]: row["median"] for row in record["rows"]}
    assert told == {"bare loop": 256, "holdfast": 128, "holdfast / bare loop": 0.5,
                    "step of the last task / of the second": 1.25}
    assert record["code"] == code_version()


def test_two_runs_at_once_are_told_beside_one_after_the_other(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By a made-up clock: a block takes a second, and half of one with two threads."""
    script, now, begun = module("loop_speed"), [0.0], []

    class Run:
        def __init__(self, run: Any, backbone: str, steps: int, threads: int) -> None:
            self.seconds = 1 / threads

        def begin(self, order: str) -> None:
            begun.append(self.seconds)

        def wait(self) -> None:
            now[0] += max(begun, default=0)  # those that were begun together end together
            begun.clear()

        def stop(self) -> None:
            pass

    monkeypatch.setattr(script.turns, "Apart", Run)
    monkeypatch.setattr(script, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    record = run(script, "--at-once --backbone mlp --steps 2 --rounds 3", tmp_path / "a.json", monkeypatch)
    assert record["clock"] == "wall" and record["threads"] == 2
    assert {row["what"]: row["median"] for row in record["rows"]} == {
        "at once, one thread each": 512, "at once / at once, one thread each": 1,
        "one after the other, one thread": 256, "at once / one after the other, one thread": 2,
        "one after the other, two threads": 512, "at once / one after the other, two threads": 1,
    }


class Counter:
    """Counts in its own process."""

    def __init__(self, start: int) -> None:
        self.count = start

    def add(self, more: int) -> tuple[int, int]:
        self.count += more
        return self.count, os.getpid()

    def die(self) -> None:
        os._exit(3)


def test_what_is_apart_has_a_process_of_its_own_and_its_end_is_seen(module: Any) -> None:
    apart = module("turns").Apart(Counter, 5)
    assert apart.wait() is None
    assert apart.do("add", 2)[0] == 7
    count, process = apart.do("add", 3)
    assert count == 10 and process != os.getpid()
    with pytest.raises(SystemExit, match="has ended"):
        apart.do("die")
    apart.stop()


def test_avalanche_is_told_in_neighbouring_blocks(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    script = module("against_avalanche")
    teams = [script.Team("holdfast", 1, 2), script.Team("avalanche", 1, 2),
             script.Team("holdfast", 2, 1), script.Team("avalanche", 2, 1)]
    for team, speed in zip(teams, (300, 100, 450, 200)):
        team.do = lambda order, team=team, speed=speed: [  # twice as many images at once for a team of two
            {"images": speed * 4 / team.size, "seconds": 4 - worker, "steps": 8, "peak": 100 * speed}
            for worker in range(team.size)
        ]
        for _ in range(script.TASKS):
            team.block()
    rows = {what: values for what, _, values in script.show(teams, "made up")}
    assert rows["holdfast, 1 x 2 thread(s)"] == [300] * 5 and rows["holdfast, 2 x 1 thread(s)"] == [450] * 5
    assert rows["holdfast, 1 x 2 thread(s) / avalanche, 1 x 2 thread(s)"] == [3] * 5
    assert rows["holdfast, 2 x 1 thread(s) / avalanche, 1 x 2 thread(s)"] == [4.5] * 5
    assert rows["holdfast, 2 x 1 thread(s) / avalanche, 2 x 1 thread(s)"] == [2.25] * 5
    assert rows["avalanche, 2 x 1 thread(s), peak of a run"] == [20_000]
    assert teams[2].steps == [(4 / 8 + 3 / 8) / 2] * 5  # the mean of both


def test_the_usual_lenet_is_ours_in_another_order(module: Any) -> None:
    usual, ours = module("usual").UsualLeNet((1, 12, 12)), LeNet((1, 12, 12))
    ours.load_state_dict(usual.state_dict())
    x = torch.randn(8, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    made = usual(x), ours(x)
    assert torch.equal(*made)
    for features in made:
        features.square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(usual.parameters(), ours.parameters()))


def test_a_networks_convolutions_are_counted(module: Any) -> None:
    script = module("convolutions")
    found = script.convolutions_of("resnet56")
    assert found.total() == 1 + 2 * 27 + 2  # the stem, two a block, two shortcuts
    assert found[script.Convolution(16, 16, 3, 1, 32, first=False)] == 18
    forward = sum(often * kind.products for kind, often in found.items()) / script.BATCH
    assert 125e6 < forward < 127e6  # ResNet56: 126 million multiplications an image
    stem = next(iter(found))
    assert stem.first and len(stem.passes()) == 2


def test_a_row_has_the_median_and_the_quartiles(module: Any) -> None:
    row = module("recording").row("lenet", "step", "ms", [5.0, 1.0, 2.0, 4.0, 3.0], compiled=True)
    assert row == {"name": "lenet", "what": "step", "unit": "ms", "rounds": 5, "compiled": True, "median": 3.0,
                   "quartiles": [2.0, 4.0]}
    assert "quartiles" not in module("recording").row("lenet", "step", "ms", [5.0])


@pytest.mark.parametrize("words", [["--record", "/here/a.json"], ["--record=/here/a.json"], []])
def test_the_command_is_one_that_a_reader_can_type(words: list[str], module: Any) -> None:
    given = [*words[:1], *words[1:], "--avalanche-python", "/here/bin/python", "--backbone", "mlp", "--tuned"]
    told = module("recording").command("against_avalanche.py", given)
    assert told == "python benchmarks/against_avalanche.py --avalanche-python PATH --backbone mlp --tuned"


def test_a_record_is_written_whole_or_not_at_all(module: Any, tmp_path: Path) -> None:
    recording, place = module("recording"), tmp_path / "a.json"
    asked = argparse.Namespace(record=place)
    recording.write(asked, "some.py", [{"median": 1}], clock="cpu", threads=1)
    before = place.read_bytes()
    with pytest.raises(TypeError):
        recording.write(asked, "some.py", [{"median": object()}], clock="cpu", threads=1)
    assert place.read_bytes() == before and [*tmp_path.iterdir()] == [place]
    recording.write(argparse.Namespace(record=None), "some.py", [], clock="cpu", threads=1)
    assert [*tmp_path.iterdir()] == [place]


def test_cpu_time_of_several_threads_is_refused(module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, words in (("loop_speed", "--cpu-time --at-once"), ("head_cost", "--cpu-time --threads 2")):
        with pytest.raises(SystemExit):
            run(module(name), words, tmp_path / "a.json", monkeypatch)


# The page.


def made_up(recording: ModuleType) -> dict[str, Any]:
    """A record of every benchmark, by file name: the words after the script, and its rows."""
    row = recording.row
    loop = {
        "bare loop": ("images/s", [1000, 1000]), "holdfast": ("images/s", [980, 960]),
        "holdfast / bare loop": ("ratio", [0.96, 0.98]),
        "step of the last task / of the second": ("ratio", [1.0, 1.04]),
    }
    one_two, two_one = "1 x 2 thread(s)", "2 x 1 thread(s)"
    avalanche = [
        *(row("mlp", f"{side}, {one_two}, peak of a run", "MB", [400]) for side in ("holdfast", "avalanche")),
        row("mlp", f"holdfast, {one_two} / avalanche, {one_two}", "ratio", [4, 5]),
        row("mlp", f"holdfast, {two_one} / avalanche, {one_two}", "ratio", [5, 6]),
        row("mlp", f"holdfast, {one_two}, step of the last task / of the second", "ratio", [1, 1.2]),
    ]
    heads = []
    for name, slots, dim in (("simplex", 100, 99), ("simplex", 10**6, 10**6 - 1), ("orthoplex", 1000, 500),
                             ("cube", 2**8, 8), ("cube", 2**64, 64)):
        shape = {"slots": slots, "dim": dim, "features": 512 * dim}
        heads += [row(name, "closed, time", "s", [1e-4, 2e-4], **shape),
                  row(name, "closed, memory", "B", [1101 * dim], **shape)]
        if slots <= 1000:
            heads += [row(name, "dense, time", "s", [2e-3, 3e-3], **shape),
                      row(name, "dense, memory", "B", [4e6], **shape),
                      row(name, "dense / closed, time", "ratio", [10, 20], **shape)]
        else:
            heads.append(row(name, "dense, memory by arithmetic", "B", [4e12], **shape))
    seeds = {"seeds": 2, "batch": 128}
    at_once = [each for what in ("at once, one thread each", "one after the other, one thread") for each in
               (row("lenet", what, "images/s", [900, 950]), row("lenet", f"at once / {what}", "ratio", [1.8, 1.9]))]
    return {
        "loop_speed": [row("lenet", what, *values, compiled=False) for what, values in loop.items()],
        "loop_speed --at-once": at_once,
        "against_avalanche": [{**each, "tuned": False} for each in avalanche],
        "multi_seed": [row("mlp", what, unit, [0.8, 0.9], **seeds) for what, unit in (
            ("batched", "images/s"), ("one by one", "images/s"), ("processes", "images/s"),
            ("batched / one by one", "ratio"), ("batched / processes", "ratio"))],
        "method_cost": [row(name, what, unit, values) for name in ("finetune", "ewc") for what, unit, values in (
            ("step", "ms", [100, 120]), ("step / finetune's", "ratio", [1.0, 1.1]))],
        "importance": [row("mlp", what, unit, [3, 5]) for what, unit in (
            ("loop", "ms a sample"), ("loop / loop", "times the speed"), ("holdfast", "ms a sample"),
            ("holdfast / loop", "times the speed"))],
        "defaults": [each for what in ("before", "default") for each in (
            row("resnet56", what, "images/s", [50, 60]), row("resnet56", f"{what} / default", "ratio", [0.5, 0.7]))]
        + [row("resnet56", "convolutions / step", "share", [0.8, 0.9])],
        "convolutions": [
            row("lenet", "5x5, 1 to 20, 32x32, forward", "share", [0.3, 0.5], often=1),
            row("lenet", "5x5, 1 to 20, 32x32, gradient of the weights", "share", [0.2, 0.4], often=1),
            row("lenet", "all of a step", "share", [0.6, 0.8]),
        ],
        "head_cost": heads,
    }


@pytest.fixture
def project(module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A folder with made-up records, the real page and its tool."""
    recording = module("recording")
    for number, (words, rows) in enumerate(made_up(recording).items()):
        script, *rest = words.split()
        monkeypatch.setattr(sys, "argv", [script, *rest])
        asked = argparse.Namespace(record=tmp_path / "benchmarks" / "records" / f"{number}.json")
        recording.write(asked, f"{script}.py", rows, clock="cpu", threads=1)
    (tmp_path / "docs" / "images").mkdir(parents=True)
    (tmp_path / "docs" / "speed.md").write_text((ROOT / "docs" / "speed.md").read_text())
    tool = module("show_speed")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(module("pages"), "ROOT", tmp_path)

    def shown(*words: str) -> int:
        """How it exits."""
        monkeypatch.setattr(sys, "argv", ["show_speed.py", *words])
        try:
            tool.main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    return shown


def test_the_page_shows_the_records(project: Any, tmp_path: Path) -> None:
    assert project() == 0
    page = (tmp_path / "docs" / "speed.md").read_text()
    assert "    python benchmarks/loop_speed.py\n" in page and "    python benchmarks/loop_speed.py --at-once\n" in page
    for line in (
        "| LeNet | 1,000 | 970 | 97.0 % (96.5 % to 97.5 %) | 1.02 (1.01 to 1.03) |",
        "| 1 run of 2 threads each | 4.50 (4.25 to 4.75) |",
        "| 2 runs of 1 thread / 1 run of 2 threads | 5.50 (5.25 to 5.75) |",
        "| ewc | 110 | 1.05 (1.02 to 1.07) |",
        "| ResNet56 | before | 55 | 0.60 (0.55 to 0.65) |",
        "Convolutions' share of the default's step: 85% (82% to 88%) on ResNet56.",
        "| LeNet | 5x5, 1 to 20, 32x32 | 1 | 40% |  | 30% |",
        "| LeNet | all of a step |  | 70% (65% to 75%) |  |  |",
        "| simplex | 1,000,000 | – | 150 µs | – | (would need 4 TB) | 1.1 GB | 2.15 |",
    ):
        assert line in page
    for name in ("speed-heads", "speed-loop", "speed-methods"):
        assert "<svg" in (tmp_path / "docs" / "images" / f"{name}.svg").read_text()
    assert project("--check") == 0


def test_the_same_records_give_the_same_bytes_without_a_date(project: Any, tmp_path: Path) -> None:
    project()
    images = sorted((tmp_path / "docs" / "images").iterdir())
    before = [image.read_bytes() for image in images]
    project()
    assert before == [image.read_bytes() for image in images]
    assert not any(re.search(rb"dc:date|20\d\d-\d\d-\d\d", content) for content in before)


def test_the_check_sees_a_typed_number_a_missing_picture_and_a_new_record(
    project: Any, module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project()
    page, picture = tmp_path / "docs" / "speed.md", tmp_path / "docs" / "images" / "speed-loop.svg"
    good, drawn = page.read_text(), picture.read_text()
    page.write_text(good.replace("97.0 %", "99.0 %"))
    assert project("--check") == 1 and "docs/speed.md is out of date" in capsys.readouterr().out
    page.write_text(good)
    picture.unlink()
    assert project("--check") == 1 and "speed-loop.svg is out of date" in capsys.readouterr().out
    picture.write_text(drawn)
    record = tmp_path / "benchmarks" / "records" / "0.json"
    content = files.read_record(record)
    content["rows"][2]["median"] = 0.5
    files.write_record(record, content)
    assert project("--check") == 1
    told = capsys.readouterr().out
    assert "docs/speed.md" in told and "speed-loop.svg" in told and "speed-heads.svg" not in told


def test_a_record_edited_by_hand_is_refused(project: Any, tmp_path: Path) -> None:
    record = tmp_path / "benchmarks" / "records" / "0.json"
    record.write_text(record.read_text().replace("0.97", "0.99"))
    with pytest.raises(BadFile, match="damaged"):
        project()


def test_a_block_without_a_record_stays_as_it_is_and_is_named(
    project: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "docs" / "speed.md"
    page.write_text(re.sub(r"(<!-- avalanche: .*?-->\n).*?(<!-- end -->)", r"\1\nearlier\n\n\2", page.read_text(),
                           flags=re.DOTALL))
    (tmp_path / "benchmarks" / "records" / "2.json").unlink()
    assert project() == 0
    assert "-->\n\nearlier\n\n<!-- end -->" in page.read_text() and "97.0 %" in page.read_text()
    assert project("--check") == 1 and "no record is behind: avalanche" in capsys.readouterr().out


def test_every_record_in_the_repository_names_the_commit_it_was_measured_at() -> None:
    for path in sorted((ROOT / "benchmarks" / "records").glob("*.json")):
        assert re.fullmatch(r"[0-9a-f]{12}", str(files.read_record(path)["code"])), path.name


def test_the_page_in_the_repository_says_what_its_records_say() -> None:
    tool = str(ROOT / "tools" / "show_speed.py")
    told = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
