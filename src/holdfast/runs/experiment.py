"""Execute a run, resume it, or return its result if it is finished; the numbers are always the same."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from .. import data, files, hardware
from ..data.own import check_same
from ..errors import BadFile, NewerFile
from ..hardware import Machine
from ..learning import compatibility, distributed, metrics
from ..learning.streams import Stream
from ..learning.training import Trainer, Watcher
from . import environment
from .build import make_stream, make_trainer
from .config import Config
from .folder import RunFolder, checkpoint_number
from .shown import Result

UNFIT = (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError)  # loading a foreign checkpoint


@hardware.own_threads()
def run(
    config: Config,
    machine: Machine | None = None,
    *,
    watcher: Watcher | None = None,
    resume: bool = True,
    saved: Callable[[Path], None] | None = None,
) -> Result:
    """Return the result of this run; start or resume it in its folder in `machine.out` if necessary.

    `saved` is called with the run folder after every checkpoint. Of several ranks only the first locks the folder and
    writes to it; the others read its checkpoint."""
    config, machine = config.resolved(), machine or Machine()
    folder = RunFolder(Path(machine.out) / config.name)
    ranks = distributed.ranks()

    def prepare() -> tuple[Stream, Trainer]:
        hardware.keep_freed_memory()
        hardware.use_threads(machine.threads)
        device = distributed.device_of(hardware.choose_device(machine.device))
        stream = distributed.first(lambda: make_stream(config, machine.data))
        trainer = make_trainer(config, stream, device, watcher)
        hardware.use_threads(machine.threads, enough=getattr(trainer.learner.backbone, "threads", None))
        if machine.compile:
            trainer.learner.compile_for(config.batch)
        return stream, trainer

    # Errors in the config surface before a folder is created. A finished run skips this.
    ready = None if resume and folder.result.exists() else prepare()
    with folder.lock() if ranks.rank == 0 else nullcontext():
        if (done := distributed.tell(lambda: begin(config, folder, resume))) is not None:
            check_same(folder.result, done.get("data"), lambda: data.fingerprint(config.protocol.dataset))
            return done
        stream, trainer = ready or prepare()
        files.check_room(folder.path, checkpoint_bytes(trainer))
        distributed.tell(lambda: describe(config, folder, trainer))
        if machine.memory_on_disk and trainer.method.memory is not None:
            trainer.method.memory.to_disk(folder.path / f".memory-{ranks.rank}")
        distributed.first(lambda: restore(trainer, folder, config.hash))
        trainer.save = lambda trainer: save(trainer, folder, config.hash, saved)
        trainer.run()
        return distributed.tell(lambda: conclude(config, stream, trainer, folder))


def checkpoint_bytes(trainer: Trainer) -> int:
    """Estimate the bytes of a run's folder: three checkpoints of weights, Adam's moments, importances and memory."""
    parameters = sum(p.numel() * p.element_size() for p in trainer.learner.parameters())
    memory = trainer.method.memory.bytes if trainer.method.memory is not None else 0
    return 3 * (5 * parameters + memory)


def begin(config: Config, folder: RunFolder, resume: bool) -> Result | None:
    """Delete temporary files, and return the result if the run is finished."""
    folder.tidy()
    if not resume:
        folder.clear()
    return folder.finished(config)


def describe(config: Config, folder: RunFolder, trainer: Trainer) -> None:
    """Write the config and the environment into the folder."""
    files.write_record(folder.config, config.to_json())
    now = environment.environment(trainer.learner.shift.device, trainer.learner)
    environment.append(folder.environment, now, bool(folder.checkpoints()))


def conclude(config: Config, stream: Stream, trainer: Trainer, folder: RunFolder) -> Result:
    """Write the plots and the result, and delete all checkpoints but the last.

    The result is written last, because a run that has one counts as finished and is not touched again."""
    result = summarise(config, stream, trainer, environment.read(folder.environment))
    from . import plots  # imported here because matplotlib is slow to import

    plots.run_pictures(result, folder.path)
    write_metrics(trainer, folder)  # again, in case the process was killed between checkpoint and metrics
    for path in folder.checkpoints()[1:]:
        path.unlink()
    files.write_record(folder.result, result)
    return result


def write_metrics(trainer: Trainer, folder: RunFolder) -> None:
    """Write one line per epoch and one per task."""
    files.write_whole(folder.metrics, "".join(files.dumps(record) + "\n" for record in trainer.at.records).encode())


def save(trainer: Trainer, folder: RunFolder, run: str, saved: Callable[[Path], None] | None = None) -> None:
    """Write a checkpoint and the metrics, and keep the last two checkpoints. Only rank 0 writes."""
    if (ranks := trainer.learner.ranks) is not None:
        ranks.check_equal(trainer.learner)
        if ranks.rank:
            return
    tensors, plain = trainer.state()
    plain |= {"run": run, "data": trainer.stream.fingerprint}
    old = folder.checkpoints()
    number = checkpoint_number(old[0]) + 1 if old else 1
    files.write_tensors(folder.path / f"checkpoint-{number:06d}.safetensors", tensors, plain)
    write_metrics(trainer, folder)
    for path in old[1:]:
        path.unlink()
    if saved is not None:
        saved(folder.path)


def restore(trainer: Trainer, folder: RunFolder, run: str) -> bool:
    """Load the newest valid checkpoint; return False if there is none.

    A damaged checkpoint is renamed to `.damaged` with a warning, and the previous one is tried. A checkpoint of
    another run is refused and left untouched."""
    for path in folder.checkpoints():
        try:
            tensors, plain = files.read_tensors(path)
        except NewerFile:
            raise
        except BadFile as error:
            warnings.warn(f"{error} Resuming from the previous checkpoint, or from the start.", stacklevel=2)
            path.rename(path.with_suffix(".damaged"))
            continue
        if (owner := plain.get("run")) != run:
            raise BadFile(f"{path} belongs to the run {owner!r}, not to {run}: move it back, or use --fresh.")
        check_same(path, plain.get("data"), lambda: trainer.stream.fingerprint)
        try:
            trainer.load(tensors, plain)
        except UNFIT as error:
            raise BadFile(
                f"{path} does not fit this run, though it is not damaged ({type(error).__name__}: {str(error)[:200]}). "
                f"Was it written by another version of holdfast? Resume with that version, or start anew with --fresh."
            ) from error
        return True
    return False


def summarise(
    config: Config, stream: Stream, trainer: Trainer, environments: list[dict[str, Any]]
) -> Result:
    """Return the run's result, computed from the trainer's final position."""
    at, matrix = trainer.at, trainer.at.accuracies
    slots = [task.slots for task in trainer.tasks]
    features, directions = torch.stack(at.features), torch.stack(at.directions)
    epochs = [record for record in at.records if "epoch" in record]
    drift = metrics.drift(features, slots)
    return Result({
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
        "compatibility": compatibility.summary(at.galleries.single, at.galleries.means),
        "labels": list(stream.labels),
        "parameters": sum(p.numel() for p in trainer.learner.parameters()),
        "memory_bytes": trainer.method.memory.bytes if trainer.method.memory is not None else 0,
        "kept_bytes": trainer.method.kept_bytes(),
        "steps": sum(record["steps"] for record in epochs),
        **({"data": stream.fingerprint} if stream.fingerprint else {}),
        "seconds": round(sum(record["seconds"] for record in epochs), 3),
        "environment": environments[-1] if environments else {},
        **({"environments": environments} if len(environments) > 1 else {}),
    })


def _mean_of_old(drift: list[list[float | None]], slots: list[tuple[int, ...]]) -> float | None:
    """Return the final mean over the classes learned before the last task."""
    old = [drift[-1][slot] for task in slots[:-1] for slot in task]
    values = [value for value in old if value is not None and not math.isnan(value)]
    return sum(values) / len(values) if values else None
