"""One run: a config becomes a stream, a learner, a method, a trainer; and leaves its result in its folder."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from . import __version__, backbones, benchmarks, data, distributed, files, heads, metrics, performance, randomness
from .config import Config
from .errors import BadConfig, BadFile, NewerFile
from .learner import Learner
from .methods import METHODS, Method
from .own_data import check_same
from .run_folder import Result, RunFolder, checkpoint_number
from .streams import Stream, shortened, validated
from .training import Trainer, Watcher

DECISIVE = ("torch", "device", "threads", "compiled", "layout", "ranks")  # of the environment: a sum's last bits
UNSAID = {"ranks": 1, "layout": "channels last"}  # what an environment means that does not mention it
QUICK_SAMPLES = 1000  # a task, of a run that is marked quick
UNFIT = (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError)  # of a state that was not ours


def run(
    config: Config,
    out: Path | str = "runs",
    *,
    data_root: Path | str | None = None,
    device: str = "auto",
    threads: int | None = None,
    watcher: Watcher | None = None,
    resume: bool = True,
    saved: Callable[[Path], None] | None = None,
    memory_on_disk: bool = False,
    compiled: bool = False,
    contiguous: bool = False,
) -> Result:
    """Do this run, or finish it, or read its result if it is finished; always the same numbers.

    `saved` is called with the run folder after every checkpoint. Of several ranks the first holds the folder; the
    others read its checkpoint, and write nothing."""
    config = config.resolved()
    folder = RunFolder(Path(out) / config.name)
    ranks = distributed.ranks()

    def prepare() -> tuple[Stream, Trainer]:
        performance.keep_freed_memory()
        performance.use_threads(threads)
        place = distributed.device_of(choose_device(device))
        stream = distributed.first(lambda: make_stream(config, data_root))
        trainer = make_trainer(config, stream, place, watcher)
        if contiguous:
            trainer.learner.use(place, torch.contiguous_format, config.precision)
        if compiled:
            trainer.learner.compile_for(config.batch)
        return stream, trainer

    # What cannot work is refused before there is a folder; what is finished needs nothing of it.
    ready = None if resume and folder.result.exists() else prepare()
    with folder.lock() if ranks.rank == 0 else nullcontext():
        if (done := distributed.tell(lambda: begin(config, folder, resume))) is not None:
            now = lambda: data.fingerprint(benchmarks.find(config.benchmark).dataset)  # noqa: E731
            check_same(folder.result, done.get("data"), now)
            return done
        stream, trainer = ready or prepare()
        distributed.tell(lambda: describe(config, folder, trainer.learner))
        if memory_on_disk and trainer.method.memory is not None:
            trainer.method.memory.to_disk(folder.path / f".memory-{ranks.rank}")
        distributed.first(lambda: restore(trainer, folder))
        trainer.save = lambda trainer: save(trainer, folder, saved)
        trainer.run()
        return distributed.tell(lambda: conclude(config, stream, trainer, folder))


def begin(config: Config, folder: RunFolder, resume: bool) -> Result | None:
    """Put the folder in order; the result, if there is one already."""
    folder.tidy()
    if not resume:
        folder.clear()
    return folder.finished(config)


def describe(config: Config, folder: RunFolder, learner: Learner) -> None:
    """What is being run, and where; a run that goes on under other conditions is told so, and what it had before
    stays written down: `before` has the earlier conditions, oldest first."""
    now = environment(learner.shift.device)
    now |= {"compiled": True} if learner.compiled is not None else {}
    now |= {"layout": "contiguous"} if learner.memory_format == torch.contiguous_format else {}
    now |= {"ranks": learner.ranks.world} if learner.ranks is not None else {}
    if folder.checkpoints() and folder.environment.exists():
        last = _environment_before(folder)
        earlier = last.pop("before", [])
        before, current = UNSAID | last, UNSAID | now
        changed = [k for k in DECISIVE if before.get(k) != current.get(k)]
        if other := [f"{k} {before.get(k)} before, {current.get(k)} now" for k in changed]:
            warnings.warn(f"The last bits may differ from an uninterrupted run's: {'; '.join(other)}.", stacklevel=2)
        history = [*(earlier if isinstance(earlier, list) else []), *([last] if last and last != now else [])]
        now |= {"before": history} if history else {}
    files.write_record(folder.config, config.to_json())
    files.write_json(folder.environment, now)


def _environment_before(folder: RunFolder) -> dict[str, Any]:
    """It is only compared with: a garbled one is named, and stops nothing."""
    try:
        before = files.read_json(folder.environment)
        return before if isinstance(before, dict) else {}
    except BadFile as error:
        warnings.warn(f"{error} It is written anew.", stacklevel=4)
        return {}


def conclude(config: Config, stream: Stream, trainer: Trainer, folder: RunFolder) -> Result:
    """The result and its pictures, written down; only the last checkpoint stays.

    The result comes last: a run that has one is not touched again, so nothing may be left to do by then."""
    result = summarise(config, stream, trainer, files.read_json(folder.environment))
    from . import plots  # here, since matplotlib is slow to import and most processes draw nothing

    plots.run_pictures(result, folder.path)
    write_metrics(trainer, folder)  # once more: it may have been killed between its last checkpoint and its metrics
    for path in folder.checkpoints()[1:]:
        path.unlink()
    files.write_record(folder.result, result)
    return result


def write_metrics(trainer: Trainer, folder: RunFolder) -> None:
    """A line an epoch and a line a task."""
    files.write_whole(folder.metrics, "".join(files.dumps(record) + "\n" for record in trainer.at.records).encode())


def choose_device(name: str) -> torch.device:
    """The device of this name, `auto` as well, if it can be used."""
    try:
        device = torch.device(performance.device_name(name))
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise BadConfig(f"The device {name!r} cannot be used: {reason}. Try --device cpu.") from error
    return device


def make_stream(config: Config, data_root: Path | str | None = None) -> Stream:
    """The stream of this run: its order, permutations and validation split come from its seed."""
    benchmark = benchmarks.find(config.benchmark)
    stream = benchmark.stream(
        data.load(benchmark.dataset, data_root),
        generator=randomness.generator(config.seed, "stream"),
        classes_per_task=config.classes_per_task,
        tasks=config.tasks,
        order=config.order,
        validation=config.validation,
    )
    stream = validated(stream) if config.validation else stream
    for task in stream.tasks:
        if not len(task.test):
            raise BadConfig(f"Task {task.index + 1} of {stream.name} has no test samples: its accuracy is undefined.")
    return shortened(stream, QUICK_SAMPLES, randomness.generator(config.seed, "quick")) if config.quick else stream


def make_learner(config: Config, stream: Stream, device: torch.device) -> Learner:
    """Backbone and head, initialised from the run's seed."""
    assert config.backbone and config.head and config.slots
    with randomness.initialising(config.seed, "weights"):
        backbone = backbones.build(config.backbone, stream.shape)
        width = int(backbone.out_features)  # type: ignore[arg-type]
        check_room(config, width)
        head = heads.build(config.head, width, config.slots, over=config.over, embedding=config.embedding)
    learner = Learner(backbone, head, stream.shape, stream.mean, stream.std)
    return learner.use(device, torch.channels_last, config.precision)


def check_room(config: Config, width: int) -> None:
    """Refuse a head that this machine cannot hold, before it is tried: weights, gradients and Adam's two moments."""
    assert config.head and config.slots
    with torch.device("meta"):
        head = heads.build(config.head, width, config.slots, over=config.over, embedding=config.embedding)
    need = 16 * sum(parameter.numel() for parameter in head.parameters())
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else need
    if need > room:
        raise BadConfig(
            f"A {config.head} of {config.slots:,} slots on {width} features takes {need / 1e9:,.0f} GB to train; this "
            f"machine has {room / 1e9:,.0f}. Lower slots, or choose the head 'cube': 64 numbers hold 2^64 classes."
        )


def make_optimizer(config: Config, learner: Learner) -> torch.optim.Optimizer:
    """Adam as the paper sets it, or plain SGD; its state lives on from task to task."""
    parameters = [p for p in learner.parameters() if p.requires_grad]
    assert config.lr is not None
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=config.lr, fused=True)
    return torch.optim.Adam(parameters, lr=config.lr, betas=(0.9, 0.999), fused=True)


def make_method(config: Config, learner: Learner, generator: torch.Generator) -> Method:
    return METHODS[config.method](learner, make_optimizer(config, learner), config, generator)


def make_trainer(config: Config, stream: Stream, device: torch.device, watcher: Watcher | None = None) -> Trainer:
    """Everything of a run, ready to go from its first step."""
    learner = make_learner(config, stream, device).spread(distributed.ranks())
    watcher = replace(watcher or Watcher(), stop=distributed.together((watcher or Watcher()).stop))
    generator = randomness.generator(config.seed, "training", device)
    method = make_method(config, learner, generator)
    assert config.epochs is not None
    return Trainer(
        learner, method, stream.to(device), epochs=config.epochs, batch=config.batch, generator=generator,
        watcher=watcher,
    )


def save(trainer: Trainer, folder: RunFolder, saved: Callable[[Path], None] | None = None) -> None:
    """A checkpoint and the metrics so far; the last two checkpoints are kept. One rank writes for all."""
    if (ranks := trainer.learner.ranks) is not None:
        ranks.check_equal(trainer.learner)
        if ranks.rank:
            return
    tensors, plain = trainer.state()
    plain["run"] = trainer.method.config.hash
    plain |= {"data": trainer.stream.fingerprint} if trainer.stream.fingerprint else {}
    old = folder.checkpoints()
    number = checkpoint_number(old[0]) + 1 if old else 1
    files.write_tensors(folder.path / f"checkpoint-{number:06d}.safetensors", tensors, plain)
    write_metrics(trainer, folder)
    for path in old[1:]:
        path.unlink()
    if saved is not None:
        saved(folder.path)


def restore(trainer: Trainer, folder: RunFolder) -> bool:
    """Take up the newest good checkpoint; a damaged one is named, put aside and passed over for the one before.

    One that is whole but not of this run is refused: nothing is lost, and nothing is continued that is not it."""
    for path in folder.checkpoints():
        try:
            tensors, plain = files.read_tensors(path)
        except NewerFile:
            raise
        except BadFile as error:
            warnings.warn(f"{error} Going on from the one before it, or anew.", stacklevel=2)
            path.rename(path.with_suffix(".damaged"))
            continue
        name = trainer.method.config.hash
        if (owner := plain.pop("run", name)) != name:
            raise BadFile(f"{path} belongs to the run {owner!r}, not to {name}: move it back, or use --fresh.")
        check_same(path, plain.pop("data", None), lambda: trainer.stream.fingerprint)
        try:
            trainer.load(tensors, plain)
        except UNFIT as error:
            raise BadFile(
                f"{path} does not fit this run, though it is whole ({type(error).__name__}: {str(error)[:200]}): "
                f"made by another version of steadfast? Go on with that one, or start anew with --fresh."
            ) from error
        return True
    return False


def summarise(config: Config, stream: Stream, trainer: Trainer, environment: dict[str, Any]) -> Result:
    """The run's result, all of it derived from the trainer's position at the end."""
    at, matrix = trainer.at, trainer.at.accuracies
    slots = [task.slots for task in trainer.tasks]
    features, directions = torch.stack(at.features), torch.stack(at.directions)
    epochs = [record for record in at.records if "epoch" in record]
    drift = metrics.drift(features, slots)
    return {
        "config": config.to_json(),
        "hash": config.hash,
        "quick": config.quick,
        "command": config.command(),
        "accuracy_matrix": matrix,
        "final_average_accuracy": metrics.final_average_accuracy(matrix),
        "average_accuracy": metrics.average_accuracy(matrix),
        "forgetting": metrics.forgetting(matrix),
        "backward_transfer": metrics.backward_transfer(matrix),
        "drift": drift,
        "mean_drift": _mean_of_old(drift, slots),
        "separation": metrics.separation(features, slots),
        "mean_head_drift": _mean_of_old(metrics.drift(directions, slots), slots),
        "alignment": metrics.alignment(features, slots, directions),
        "labels": list(stream.labels),
        "parameters": sum(p.numel() for p in trainer.learner.parameters()),
        "memory_bytes": trainer.method.memory.bytes if trainer.method.memory is not None else 0,
        **({"data": stream.fingerprint} if stream.fingerprint else {}),
        "seconds": round(sum(record["seconds"] for record in epochs), 3),
        "environment": environment,
    }


def environment(device: torch.device) -> dict[str, Any]:
    """What the numbers may depend on besides the config."""
    return {
        "steadfast": __version__,
        "code": code_version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": str(device),
        "threads": torch.get_num_threads(),
    }


def code_version() -> str | None:
    """The commit of a source checkout, with + where it was changed; None if installed from a package."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _mean_of_old(drift: list[list[float | None]], slots: list[tuple[int, ...]]) -> float | None:
    """At the end, over the classes that were learned before the last task."""
    old = [drift[-1][slot] for task in slots[:-1] for slot in task]
    values = [value for value in old if value is not None and not math.isnan(value)]
    return sum(values) / len(values) if values else None
