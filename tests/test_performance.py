"""Faster ways to the same run: a compiled backbone, bfloat16; what they may change, and what not."""

from __future__ import annotations

import copy
import dataclasses
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

from conftest import assert_same_bits, bits, make_tiny_config, make_tiny_stream, make_tiny_trainer
from holdfast import files, hardware
from holdfast.backbones import build
from holdfast.backbones.compiled import Compiled, check_compiler
from holdfast.backbones.resnets import through
from holdfast.data import Dataset
from holdfast.errors import BadConfig
from holdfast.hardware import Machine
from holdfast.learning.distributed import Ranks
from holdfast.learning.streams import split
from holdfast.learning.training import Stopped, Watcher
from holdfast.methods import recipes
from holdfast.runs import experiment
from holdfast.runs.build import make_trainer
from holdfast.runs.config import Config
from holdfast.runs.folder import RunFolder

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"backbone": "mlp", "epochs": 1, "optimizer": "sgd", "lr": 0.05}  # Adam enlarges rounding


def can_compile() -> bool:
    try:
        check_compiler(CPU)
    except BadConfig:
        return False
    return True


needs_compiler = pytest.mark.skipif(not can_compile(), reason="there is no C++ compiler here")


def test_a_run_is_channels_last_and_has_a_fused_optimizer() -> None:
    config = Config("split-cifar10", backbone="resnet20", epochs=1, memory=10)
    images, labels = torch.zeros(40, 3, 8, 8, dtype=torch.uint8), torch.arange(40) % 10
    data = Dataset("made up", images, labels, images, labels, tuple("0123456789"), (0.5,) * 3, (0.2,) * 3)
    for optimizer in ("adam", "sgd"):
        full = dataclasses.replace(config, optimizer=optimizer).resolved()
        trainer = make_trainer(full, split(data, 2, generator=torch.Generator()), CPU)
        seen: list[torch.Tensor] = []
        network: Any = trainer.learner.backbone
        network.stem.register_forward_pre_hook(lambda layer, given, seen=seen: seen.append(given[0]))
        trainer.learner.features(data.train_images[:4])
        wide = [p for p in network.parameters() if p.dim() == 4 and p.shape[1] > 1 and p.shape[2] > 1]
        assert len(wide) == 19 and seen
        for tensor in (*wide, *seen):
            assert tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
        assert all(group["fused"] for group in trainer.method.optimizer.param_groups)


def test_a_runs_adam_is_the_published_one() -> None:
    """Kingma and Ba's Algorithm 1, in numpy and double precision; the run's own is one fused kernel in single."""
    trainer = make_tiny_trainer(backbone="mlp", lr=0.01)
    weights, optimizer = list(trainer.learner.parameters()), trainer.method.optimizer
    wanted = [p.detach().double().numpy().copy() for p in weights]
    first, second = ([np.zeros_like(w) for w in wanted] for _ in range(2))
    rng = np.random.default_rng(0)
    for step in range(1, 5):
        for k, p in enumerate(weights):
            g = rng.normal(size=p.shape)
            p.grad = torch.tensor(g, dtype=torch.float32)
            first[k] = 0.9 * first[k] + 0.1 * g
            second[k] = 0.999 * second[k] + 0.001 * g**2
            unbiased = first[k] / (1 - 0.9**step), second[k] / (1 - 0.999**step)
            wanted[k] = wanted[k] - 0.01 * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
        optimizer.step()
    for p, w in zip(weights, wanted):
        np.testing.assert_allclose(p.detach().numpy(), w, rtol=1e-4, atol=1e-5)


def tensors_of(out: Path, config: Config) -> dict[str, torch.Tensor]:
    """Those of a run's last checkpoint."""
    return files.read_tensors(RunFolder(out / config.name).checkpoints()[0])[0]


FAULTS = """
import resource, sys, torch
from holdfast import hardware
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    hardware.keep_freed_memory()
for _ in range(20):
    torch.ones(10_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(10_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or "LD_PRELOAD" in os.environ, reason="only glibc's malloc is told what to keep"
)
@pytest.mark.slow
def test_freed_memory_is_kept_unless_the_environment_says_otherwise() -> None:
    def faults(word: str, **more: str) -> int:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
        told = subprocess.check_output([sys.executable, "-c", FAULTS, word], env={**env, **more}, text=True)
        return int(told)

    given_back = faults("leave")
    assert given_back >= 20 * 15  # 40 MB each time, in pages of at most 2 MB
    assert faults("keep") < given_back / 4
    assert faults("keep", MALLOC_TRIM_THRESHOLD_="131072") >= 20 * 15
    assert faults("keep", MALLOC_ARENA_MAX="2") < given_back / 4  # which says nothing of what is kept


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_threads_that_no_machine_has_are_refused(threads: int, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    with pytest.raises(BadConfig, match=rf"threads is {threads}.*leave --threads out"):
        hardware.use_threads(threads)
    with pytest.raises(BadConfig, match="threads is"):
        experiment.run(make_tiny_config(), Machine(out=str(tmp_path / "runs"), threads=threads))
    assert torch.get_num_threads() == before and not (tmp_path / "runs").exists()


@needs_compiler
@pytest.mark.slow
def test_many_kinds_of_blocks_are_compiled_in_one_process() -> None:
    torch._dynamo.reset()
    x = torch.zeros(2, 3, 8, 8)
    frames = counters["frames"]["ok"]
    compiled = Compiled(2, CPU)
    compiled.call = torch.compile(through, dynamic=False, backend="eager")
    for name in ("resnet20", "resnet18"):  # five kinds and seven: more than PyTorch compiles by itself
        network = build(name, (3, 8, 8)).eval()
        torch.testing.assert_close(compiled(network, x), network(x))
    assert counters["frames"]["ok"] == frames + 5 + 7


@needs_compiler
@pytest.mark.slow
def test_a_compiled_run_is_the_eager_one_but_for_rounding(
    run_tiny: Callable[..., experiment.Result], tmp_path: Path
) -> None:
    config = make_tiny_config(**SMALL)  # 12 samples a task: batches of 8 and 4, then of 4 + 4
    graphs = counters["stats"]["unique_graphs"]
    for name, compiled in (("eager", False), ("compiled", True)):
        run_tiny(config, tmp_path / name, compile=compiled)
    assert counters["stats"]["unique_graphs"] == graphs + 1  # whole batches alone: not the last ones, not the tests
    eager, compiled = (tensors_of(tmp_path / name, config) for name in ("eager", "compiled"))
    assert compiled.keys() == eager.keys()
    for name in eager:
        torch.testing.assert_close(compiled[name], eager[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")

    taken: list[int] = []
    out = tmp_path / "resumed"
    with pytest.raises(Stopped):
        run_tiny(config, out, compile=True, watcher=Watcher(step=taken.append, stop=lambda: len(taken) >= 3))
    run_tiny(config, out, compile=True)
    assert_same_bits(tensors_of(out, config), compiled)


@needs_compiler
def test_a_run_that_goes_on_without_its_compiler_is_told_so(
    run_tiny: Callable[..., experiment.Result], tmp_path: Path
) -> None:
    config = make_tiny_config(**SMALL)
    with pytest.raises(Stopped):  # before the first step, so that nothing has to be compiled
        run_tiny(config, compile=True, watcher=Watcher(stop=lambda: True))
    with pytest.warns(UserWarning, match="last bits may differ.*compiled True before, None now"):
        run_tiny(config)


def test_without_a_compiler_a_run_is_refused_before_it_begins(
    run_tiny: Callable[..., experiment.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BadConfig, match=r"'no-such-compiler' was not found: install one, .* or leave --compile out"):
        run_tiny(make_tiny_config(), compile=True)
    assert not list(tmp_path.iterdir())


def test_one_run_over_several_devices_is_not_compiled() -> None:
    learner = make_tiny_trainer().learner
    learner.ranks = Ranks(0, 2)
    with pytest.raises(BadConfig, match="--compile works with one process only"):
        learner.compile_for(8)


METHODS: dict[str, dict[str, Any]] = {
    "replay": {},
    "strong": recipes.expand("strong", {}),
    "expanding": {"head": "expanding"},
    "resnet": {"backbone": "resnet20", "epochs": 1},
    "ewc": {"method": "ewc", "strength": 1.0},
    "si": {"method": "si", "strength": 1.0},
    "gem": {"method": "gem", "memory": 12},
}


@pytest.mark.parametrize("changes", METHODS.values(), ids=METHODS)
def test_in_bf16_only_what_passes_through_the_backbone_is_rounded(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_tiny_trainer(precision="bf16", **changes)
    learner, seen = trainer.learner, set()
    loss = learner.head.loss

    def watched(features: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        assert features.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        value = loss(features, *args, **options)
        assert value.dtype == torch.float32
        return value

    monkeypatch.setattr(learner.head, "loss", watched)
    first = next(m for m in learner.backbone.modules() if isinstance(m, torch.nn.Conv2d))
    first.register_forward_hook(lambda module, args, out: seen.add((learner.training, out.dtype)))
    trainer.run()
    assert {(True, torch.bfloat16), (False, torch.bfloat16)} <= seen  # in training and at test
    for name, tensor in trainer.state()[0].items():
        assert tensor.dtype != torch.bfloat16, name
    assert all(parameter.isfinite().all() for parameter in learner.parameters())


def test_a_learner_learns_in_bf16_as_well() -> None:
    whole = make_tiny_trainer(make_tiny_stream(per_class=16), epochs=4, memory=60, precision="bf16")
    whole.run()
    assert sum(whole.at.accuracies[-1]) / 3 > 80
    plain = make_tiny_trainer(make_tiny_stream(per_class=16), epochs=4, memory=60)
    plain.run()
    name = "learner.backbone.conv1.weight"
    assert not torch.equal(bits(whole)[name], bits(plain)[name])


def test_the_precision_is_part_of_a_run_and_of_its_command() -> None:
    config = Config("split-mnist", precision="bf16")
    assert config.hash != Config("split-mnist").hash == Config("split-mnist", precision="float32").hash
    assert config.command() == "holdfast run split-mnist --precision bf16"
    assert Config.from_json(config.to_json()) == config
    with pytest.raises(BadConfig, match="precision is 'fp16'; choose one of float32, bf16"):
        Config("split-mnist", precision="fp16")


def test_what_torch_cannot_compile_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.backbones.compiled.check_compiler", lambda device: None)
    trainer = make_tiny_trainer(**SMALL)

    def fail(network: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        raise torch._dynamo.exc.TorchDynamoException("Python.h is missing\nand much more")

    trainer.learner.compile_for(8).compiled.call = fail
    with pytest.raises(BadConfig, match=r"fails on this backbone here: Python.h is missing. Leave --compile out\.$"):
        trainer.run()


@pytest.mark.parametrize(("name", "kinds"), [("resnet56", 5), ("resnet18", 7), ("wrn-28-2", 6)])
def test_each_kind_of_block_is_compiled_once(monkeypatch: pytest.MonkeyPatch, name: str, kinds: int) -> None:
    monkeypatch.setattr("holdfast.backbones.compiled.check_compiler", lambda device: None)
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = Compiled(2, CPU)
    compiled.call = torch.compile(through, backend=counter, dynamic=False)
    torch.manual_seed(0)
    network = build(name, (3, 8, 8))
    twin = copy.deepcopy(network)
    x = torch.randn(2, 3, 8, 8)
    for _ in range(2):  # the second pass, of the copy, finds all of it compiled
        torch.testing.assert_close(compiled(copy.deepcopy(network), x), twin(x))
    assert counter.frame_count == kinds


def test_an_mlp_run_takes_one_thread_and_restores_the_number(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        monkeypatch.setattr(hardware, "cores", lambda: 2)
        watcher = Watcher(step=lambda samples: seen.append(torch.get_num_threads()))
        config = Config("split-digits", backbone="mlp", epochs=1, memory=0, quick=True)
        experiment.run(config, Machine(out=str(tmp_path)), watcher=watcher)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
