"""The command line: what people type, what they read, and what the shell sees."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import holdfast
from conftest import assert_same_bits
from holdfast.backbones import BACKBONES
from holdfast.cli import main as cli
from holdfast.cli.options import PANELS, owned_options
from holdfast.data import places
from holdfast.hardware import Machine
from holdfast.heads import HEADS
from holdfast.methods import METHODS, recipes
from holdfast.options import declared
from holdfast.runs import experiment
from holdfast.runs.benchmarks import BENCHMARKS
from holdfast.runs.config import PROTOCOL, Config
from holdfast.runs.folder import RunFolder
from test_experiment import left_behind

Call = Callable[..., tuple[int, str, str]]
EPOCHS = "6"  # enough of them that a signal comes before the end
FAST = ("--backbone", "mlp", "--device", "cpu", "--threads", "1")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """`holdfast ...` in this process: exit code, stdout, stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["holdfast", *words])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "split-minst"], "Did you mean 'split-mnist'?"),
        (["run", "split-digits", "--head", "simplx"], "Did you mean 'simplex'?"),
        (["run", "split-digits", "--method", "replai"], "Did you mean 'replay'?"),
        (["run", "split-digits", "--policy", "hearding"], "Did you mean 'herding'?"),
        (["run", "split-digits", "--backbone", "lenett"], "Did you mean 'lenet'?"),
        (["run", "split-digits", "--augment", "crop-flop"], "Did you mean 'crop-flip'?"),
        (["data", "minst"], "Did you mean 'mnist'?"),
        (["rum", "split-digits"], "Did you mean 'run'?"),
        (["run", "split-digits", "--recipe", "stronk"], "paper, strong"),
        (["run", "split-digits", "--method", "gem", "--recipe", "strong"], "'replay', not 'gem'"),
        (["run", "split-digits", "--strength", "3"], "choose one of ewc, online-ewc, si, mas"),
        (["run", "split-digits", "--slots", "5"], "5 slots cannot hold the 10 classes"),
        (["run", "split-digits", "--memory", "5"], "at least 10, or 0 for none"),
        (["run", "split-digits", "--head", "polygon", "--slots", "1000"], "choose simplex, orthoplex or cube"),
        (["run", "split-digits", "--device", "warp"], "Try --device cpu"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_answered_in_one_line_with_the_way_out(
    words: list[str], told: str, call: Call, tmp_path: Path
) -> None:
    code, _, complaint = call(*words, *(["--out", str(tmp_path)] if words[0] == "run" else []))
    assert code == 2
    assert complaint.startswith("error:") and told in complaint and "Traceback" not in complaint
    assert not list(tmp_path.glob("*/result.json"))


@pytest.mark.parametrize(
    "words",
    [
        ["run", "split-digits", "--hed", "simplex"],
        ["run", "split-digits", "--memory", "many"],
        ["run", "split-digits", "--threads", "0"],
        ["run"],
    ],
    ids=" ".join,
)
def test_wrong_flags_exit_with_2(words: list[str], call: Call) -> None:
    code, _, complaint = call(*words)
    assert code == 2 and "Traceback" not in complaint


def help_of(*words: str) -> str:
    answer = CliRunner().invoke(cli.app, [*words, "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
    assert answer.exit_code == 0
    return answer.output


def test_the_help_of_run_has_every_option_under_the_name_of_its_owners() -> None:
    told = help_of("run")
    flags = {each.flag for each in PROTOCOL} | {each.flag for each in declared(Machine) if each.name != "share"}
    for flag in {"benchmark", "--recipe", "--resume", "--search", *flags}:
        assert flag in told, flag
    for registry in (METHODS, HEADS, BACKBONES):
        for owner in registry:
            for option in declared(registry.options(owner)):
                panel = next(part for part in told.split("╭─ ") if re.search(rf"│ +{option.flag} ", part))
                assert owner in panel.split("─╮")[0], f"{option.flag} of {owner}"


def test_every_setting_of_the_protocol_is_in_one_group() -> None:
    grouped = [name for names in PANELS.values() for name in names]
    assert sorted(grouped) == sorted([*(each.name for each in PROTOCOL), "recipe"])
    assert not set(grouped) & set(owned_options())


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_is_listed_and_explains_itself(command: str) -> None:
    assert command in help_of() and f"holdfast {command}" in help_of(command).replace("root ", "holdfast ")


def test_the_help_and_the_lists_do_not_import_torch() -> None:
    """So that they answer at once: importing PyTorch takes seconds."""
    code = (
        "import sys; from holdfast.cli import main\n"
        "try: main.app()\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules or 'sklearn' in sys.modules or 'matplotlib' in sys.modules, file=sys.stderr)"
    )
    for words in (["--help"], ["heads"], ["methods"], ["backbones"], ["benchmarks"]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120)
        assert done.stderr.strip() == "False", (words, done.stderr)


def test_the_lists_have_everything_there_is(call: Call) -> None:
    lists = {"benchmarks": BENCHMARKS, "heads": HEADS, "methods": METHODS, "backbones": BACKBONES}
    for command, names in lists.items():
        code, out, _ = call(command)
        assert code == 0
        assert all(name in out for name in names)


def test_the_version_is_told(call: Call) -> None:
    assert call("--version") == (0, f"holdfast {holdfast.__version__}\n", "")


class Caught(Exception):
    pass


CONFIGS = [
    Config("split-digits"),
    Config("split-mnist", memory=100, head="expanding", seed=3),
    Config("split-mnist", method="ewc"),
    Config("split-mnist", method="si", strength=0.25),
    Config("permuted-mnist", method="gem", memory=200, margin=0.25, gem_replay=True),
    Config("split-cifar10", lr=1e-05, softmax_over="seen", order="shuffled", validation=0.1, augment="none"),
    Config("split-cifar10", slots=1000),
    Config("split-digits", tasks=4, policy="herding", batch=64, optimizer="sgd", epochs=3, quick=True),
    Config("split-digits", head="cube", slots=2**64),
    Config("split-digits", head="preallocated", embedding=2, memory=0),
    Config("split-digits", schedule="3,1", distill="features", augment_memory="shift", balance=True, store="during"),
    Config("split-mnist", method="ewc", importance="label", importance_samples=100),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.command())
def test_the_command_of_a_configuration_makes_that_configuration(
    config: Config, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught: list[Config] = []

    def catch(given: Config, *args: Any, **options: Any) -> None:
        caught.append(given)
        raise Caught

    monkeypatch.setattr(experiment, "run", catch)
    for typed in (config, config.resolved()):
        with pytest.raises(Caught):
            call(*shlex.split(typed.command())[1:])
    assert [each.hash for each in caught] == [config.hash] * 2


@pytest.mark.parametrize(("words", "given"), [
    ([], {}),
    (["--no-balance"], {"balance": False}),
    (["--augment-memory", "none", "--memory", "100"], {"augment_memory": "none", "memory": 100}),
])
def test_a_recipe_stands_for_its_options(
    words: list[str], given: dict[str, Any], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught: list[Config] = []
    monkeypatch.setattr(experiment, "run", lambda config, *args, **options: caught.append(config) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call("run", "split-mnist", "--recipe", "strong", *words)
    options = recipes.expand("strong", given, strong=BENCHMARKS["split-mnist"].strong)
    assert caught[0].hash == Config("split-mnist", **options).hash


def test_messages_are_not_taken_for_markup(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise holdfast.errors.BadConfig("pip install 'holdfast[timm]' " + 30 * "and go on " + "[/]")

    monkeypatch.setattr(experiment, "run", refuse)
    code, _, complaint = call("run", "split-digits")
    assert code == 2
    assert complaint == "error: pip install 'holdfast[timm]' " + 30 * "and go on " + "[/]\n"


def test_data_in_a_folder_without_any_is_shown_as_missing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    monkeypatch.setattr(places, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz").write_bytes(b"not a data set")
    code, out, _ = call("data", "mnist", "--data", str(tmp_path))
    assert code == 0
    assert "damaged" in out and "missing" in out
    code, out, _ = call("data", "digits", "--data", str(tmp_path / "nowhere"))
    assert code == 0 and "ok" in out


def folder_in(out: Path) -> RunFolder:
    (path,) = (p for p in out.iterdir() if p.is_dir())
    return RunFolder(path)


def test_a_run_from_end_to_end(call: Call, tmp_path: Path) -> None:
    words = ("run", "split-digits", "--epochs", "1", "--memory", "100", *FAST, "--out", str(tmp_path))
    code, out, complaint = call(*words)
    assert (code, complaint) == (0, "")
    folder = folder_in(tmp_path)
    result = folder.read_result()
    assert result is not None and len(result["accuracy_matrix"]) == 5
    assert f"{result['final_average_accuracy']:.2f} %" in out and str(folder.path) in out
    assert "holdfast run split-digits --backbone mlp --epochs 1 --memory 100\n" in out
    names = {path.name for path in folder.path.iterdir()}
    assert {"config.json", "environment.jsonl", "metrics.jsonl", "result.json", "accuracy.png", "drift.png"} <= names
    assert len(folder.checkpoints()) == 1
    for picture in ("accuracy.png", "drift.png"):
        content = (folder.path / picture).read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n" and len(content) > 5000
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [line["task"] for line in lines if "epoch" in line] == [1, 2, 3, 4, 5]
    before = folder.result.stat().st_mtime_ns
    code, again, _ = call(*words)  # the same command shows the result
    assert code == 0 and f"{result['final_average_accuracy']:.2f} %" in again
    assert folder.result.stat().st_mtime_ns == before


@pytest.mark.slow
def test_ctrl_c_saves_says_how_to_go_on_and_changes_nothing(call: Call, tmp_path: Path) -> None:
    code, told = interrupted(signal.SIGINT, tmp_path / "cut short")
    assert code == 130
    assert "Traceback" not in told
    command = shlex.split(told.strip().splitlines()[-1])
    assert command[0] == "holdfast" and folder_in(tmp_path / "cut short").read_result() is None
    assert call(*command[1:], "--device", "cpu")[0] == 0  # exactly what it said
    words = ("run", "split-digits", "--epochs", EPOCHS, *FAST, "--out", str(tmp_path / "whole"))
    assert call(*words)[0] == 0
    resumed, whole = (left_behind(folder_in(tmp_path / place)) for place in ("cut short", "whole"))
    assert_same_bits(resumed, whole)


@pytest.mark.slow
def test_a_terminated_run_saves_and_exits_with_143(tmp_path: Path) -> None:
    code, told = interrupted(signal.SIGTERM, tmp_path / "out")
    assert code == 143 and "Stopped and saved" in told
    assert folder_in(tmp_path / "out").checkpoints()


def interrupted(with_signal: signal.Signals, out: Path) -> tuple[int, str]:
    """A run in a process of its own, sent a signal as soon as it has saved something: exit code and stderr."""
    words = ["run", "split-digits", "--epochs", EPOCHS, *FAST, "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "60"},
    )
    try:
        limit = time.monotonic() + 100
        while not list(out.glob("*/metrics.jsonl")) and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.005)
        process.send_signal(with_signal)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, told


def test_a_terminal_without_a_degree_sign_gets_a_result_all_the_same() -> None:
    code = (
        "from holdfast.cli import main; from holdfast.cli.options import console;"
        "main.app = lambda: console.print('12.5° turned'); main.main()"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0 and "12.5? turned" in done.stdout, done.stderr
