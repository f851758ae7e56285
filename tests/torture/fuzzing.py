"""Feeds the loaders garbage that is nearly right: `python fuzzing.py '{"configs": 1000, ...}' SEED` prints what came.

Each target is a loader and a file that it likes. Inputs are that file with bytes flipped, cut, repeated, spliced or
with numbers made enormous; for files with a digest also with a right digest over wrong content, because a digest
keeps out accidents, not attackers. Only a SteadfastError may come out, soon, and within a limit of memory.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import random
import resource
import signal
import struct
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import safetensors.torch
import torch
from PIL import Image

from conftest import make_tiny_trainer
from records_factory import make_record
from steadfast import experiment, files, folders, inputs, own_data, streams
from steadfast.config import Config
from steadfast.data import Dataset, catalog, parse
from steadfast.data.catalog import Packed, Part
from steadfast.errors import SteadfastError
from steadfast.report import records
from steadfast.training import Stopped, Watcher

LIMIT = 1 << 30  # bytes that loading may add to what the process has
PATIENCE = 20  # seconds for one input, on a machine that is busy with other things

NUMBERS = (0, 1, -1, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**18, 10**400, -(10**400), 0.5, -0.0,
           1e308)
VALUES: tuple[Any, ...] = (*NUMBERS, None, True, False, "", "x", "ä" * 50, "../../etc/passwd", [], {}, [[]], [None],
                           {"": 0}, "timm:resnet18", "os.system", [1, 2, 3], "9" * 400)


# ------------------------------------------------------------ how inputs are made


def scrambled(content: bytes, chance: random.Random) -> bytes:
    """A few mutations of bytes."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        if not data:
            break
        place = chance.randrange(min(len(data), chance.choice((16, 200, len(data)))))
        kind = chance.randrange(7)
        if kind == 0:
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[place] = chance.choice((0, 1, 127, 128, 255, 34, 91, 123, 125))
        elif kind == 2:
            del data[place:]
        elif kind == 3:
            del data[place : place + chance.randrange(1, 64)]
        elif kind == 4:
            data[place:place] = data[place : place + chance.randrange(1, 64)]
        elif kind == 5:
            size = chance.choice((0, 1, 2**31, 2**40, 2**63, 2**64 - 1, len(data)))
            data[place : place + 8] = struct.pack("<Q", size)
        else:
            data[place:place] = chance.randbytes(chance.randrange(1, 32))
    return bytes(data)


def twisted(value: Any, chance: random.Random) -> Any:
    """JSON with one place changed: a value of another kind, a number that is enormous, a field gone or doubled."""
    if isinstance(value, (dict, list)) and value and chance.random() < 0.85:
        if isinstance(value, dict):
            name = chance.choice(sorted(value))
            changed = dict(value)
            kind = chance.randrange(12)
            if kind == 0:
                del changed[name]
            elif kind == 1:
                changed[name + "x"] = changed[name]
            else:
                changed[name] = twisted(value[name], chance)
            return changed
        copy = list(value)
        place = chance.randrange(len(copy))
        kind = chance.randrange(8)
        if kind == 0:
            del copy[place]
        elif kind == 1:
            copy = copy * 2
        else:
            copy[place] = twisted(copy[place], chance)
        return copy
    if isinstance(value, (int, float)) and not isinstance(value, bool) and chance.random() < 0.6:
        return chance.choice(NUMBERS)
    return chance.choice(VALUES)


def sealed(tensors: dict[str, torch.Tensor], state: Any) -> bytes:
    """A tensor file whose digest is right, whatever is in it."""
    text = json.dumps(state)
    packed = {name: t.detach().contiguous().clone() for name, t in tensors.items()}
    metadata = {"format": str(files.FORMAT), "state": text, "digest": files._digest(packed, text)}
    return safetensors.torch.save(packed, metadata=metadata)


def retyped(tensors: dict[str, torch.Tensor], chance: random.Random) -> dict[str, torch.Tensor]:
    """One tensor gone, renamed, or of another shape, type or value."""
    changed = dict(tensors)
    name = chance.choice(sorted(changed))
    value = changed.pop(name)
    kind = chance.randrange(6)
    if kind == 1:
        changed[name + "x"] = value
    elif kind == 2:
        changed[name] = value.reshape(-1)[: chance.randrange(1 + min(8, value.numel()))]
    elif kind == 3:
        changed[name] = value.to(chance.choice((torch.float16, torch.float64, torch.int8, torch.bool, torch.int64)))
    elif kind == 4:
        more = (-1, 10**9) if value.dtype == torch.long else ()
        changed[name] = torch.full_like(value, chance.choice((0, 1, 127, *more)))
    elif kind == 5:
        changed[name] = value.unsqueeze(0)
    return changed


# ------------------------------------------------------------ what they are fed to


RUNS: list[dict[str, Any]] = [
    {}, {"distill": "logits", "insert": "during", "policy": "reservoir", "head": "expanding"}, {"distill": "features"},
    {"method": "gem"}, {"method": "agem", "memory": 12}, {"method": "si", "strength": 1.0},
    {"method": "ewc", "strength": 1.0},
]


def stopped_in_the_middle(**changes: Any) -> tuple[Any, dict[str, torch.Tensor], Any]:
    """A trainer some steps into its second task, and its state."""
    trainer = make_tiny_trainer(**{"backbone": "mlp", "epochs": 2, **changes})
    go_on(trainer, 5)
    tensors, plain = trainer.state()
    assert plain["task"] == 1 and plain["begun"] and plain["step"]
    return trainer, {name: tensor.clone() for name, tensor in tensors.items()}, json.loads(json.dumps(plain))


def go_on(trainer: Any, steps: int) -> None:
    left = iter(range(steps))
    trainer.watcher = Watcher(stop=lambda: next(left, None) is None)
    with contextlib.suppress(Stopped):
        trainer.run()


class Targets:
    """Each method is a target: makes the next input and loads it."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.file = folder / "input"
        self.tensors = {"w": torch.randn(3, 4), "b": torch.arange(5), "e": torch.empty(0, 2)}
        self.good_tensors = sealed(self.tensors, {"step": 3, "records": [{"loss": 0.5}]})
        self.config = Config("split-digits", memory=50, lr=0.002, seed=3).resolved()
        self.record = make_record(self.config)
        (folder / "records").mkdir()
        self.idx = struct.pack(">4I", 0x0803, 3, 28, 28) + bytes(3 * 28 * 28)
        self.labels = struct.pack(">2I", 0x0801, 3) + bytes([1, 2, 3])
        self.cifar = {name: bytes(3073 * 2) for name in ("a.bin", "b.bin")}
        self.entry = catalog.entry("cifar10")
        self.arrays: dict[str, np.ndarray] = {}
        self.pictures: dict[bool, list[bytes]] = {True: [], False: []}  # of a format that is read, or not
        self.trainers: list[Any] = []
        self.model: Any = None

    def write(self, content: bytes) -> Path:
        self.file.write_bytes(content)
        return self.file

    def tensor_files(self) -> None:
        kind = self.chance.randrange(4)
        if kind == 0:
            content = self.chance.randbytes(self.chance.randrange(200))
        elif kind == 1:
            content = self.lying_header()
        else:
            content = scrambled(self.good_tensors, self.chance)
        files.read_tensors(self.write(content))

    def lying_header(self) -> bytes:
        length = int.from_bytes(self.good_tensors[:8], "little")
        header = twisted(json.loads(self.good_tensors[8 : 8 + length]), self.chance)
        text = json.dumps(header).encode()
        size = self.chance.choice((len(text), len(text), len(text), 2**33, 2**63, 0))
        return struct.pack("<Q", size) + text + self.good_tensors[8 + length :]

    def configs(self) -> None:
        if self.chance.randrange(3) == 0:
            content = scrambled(json.dumps(self.config.to_json()).encode(), self.chance)
        else:
            full = {f: getattr(self.config, f) for f in self.config.__dataclass_fields__}
            content = json.dumps(twisted(self.chance.choice((self.config.to_json(), full)), self.chance)).encode()
        value = files.read_record(self.write(content))
        config = Config.from_json(value).resolved()
        assert config.name and config.command() and config.phases()

    def record_files(self) -> None:
        if self.chance.randrange(3) == 0:
            content = scrambled(json.dumps(self.record).encode(), self.chance)
        else:
            content = json.dumps(twisted(self.record, self.chance)).encode()
        (self.folder / "records" / "one.json").write_bytes(content)
        found = records.read(self.folder / "records")
        assert len(found.runs) + len(found.left_out) + len(found.features) == 1
        for run in found.runs:
            assert run.made_with() and run.seconds >= 0 and run.averages and run.drift != ""
        if found.left_out:
            raise SteadfastError

    def idx_files(self) -> None:
        entry = catalog.entry("mnist")
        parts = {"i": scrambled(self.idx, self.chance), "l": self.labels}
        if self.chance.randrange(2):
            parts = {"i": self.idx, "l": scrambled(self.labels, self.chance)}
        parse.split(entry, parts, ("i", "l"))

    def cifar_archives(self) -> None:
        parts = {name: scrambled(content, self.chance) if self.chance.randrange(3) == 0 else content
                 for name, content in self.cifar.items()}
        buffer = io.BytesIO()
        form = self.chance.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
        with tarfile.open(fileobj=buffer, mode="w", format=form) as a:
            for name, content in parts.items():
                member = tarfile.TarInfo(self.chance.choice(("c/", "c/", "c/", "../", "/c/", "c/../c/")) + name)
                member.size = len(content)
                odd = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)
                member.type = self.chance.choice((tarfile.REGTYPE,) * 6 + odd)
                member.linkname = "/etc/passwd"
                a.addfile(member, io.BytesIO(content))
        inner = buffer.getvalue()
        if self.chance.randrange(2):
            inner = scrambled(inner, self.chance)
        outer = gzip.compress(inner, 1)
        if self.chance.randrange(3) == 0:
            outer = scrambled(outer, self.chance)
        wanted = tuple(Part(name, 6146, hashlib.sha256(b"").hexdigest()) for name in self.cifar)
        found = parse.untar(outer, Packed("x.tar.gz", 0, "", wanted), "c")
        parse.split(self.entry, found, tuple(found))

    def gzips(self) -> None:
        content = gzip.compress(self.labels)
        parse.gunzip(scrambled(content, self.chance), Part("x", len(self.labels), ""))

    def own_arrays(self) -> None:
        """A folder of arrays: bytes scrambled, a header that lies, a label that is none, names that are not as many."""
        if not self.arrays:
            images = np.random.default_rng(0).integers(0, 256, (12, 1, 4, 4), dtype=np.uint8)
            self.arrays = {f"{part}_images.npy": images for part in ("train", "test")}
            self.arrays |= {f"{part}_labels.npy": np.arange(12) % 3 for part in ("train", "test")}
            for name, array in self.arrays.items():
                np.save(self.folder / name, array)
        name = self.chance.choice(sorted(self.arrays))
        path, array = self.folder / name, self.arrays[name]
        before = path.read_bytes()
        kind = self.chance.randrange(4)
        if kind == 0:
            path.write_bytes(scrambled(before, self.chance))
        elif kind == 1:
            path.write_bytes(self.lying_array(array))
        elif kind == 2 and array.ndim == 1:
            wrong = self.chance.choice([n for n in NUMBERS if isinstance(n, int) and -(2**63) <= n < 2**64])
            np.save(path, np.append(array[1:], np.array([wrong], dtype=np.uint64 if wrong >= 2**63 else np.int64)))
        else:
            (self.folder / "classes.txt").write_bytes(scrambled(b"cat\ndog\nowl\n", self.chance))
        try:
            self.look_at(own_data.open_arrays(self.folder))
        finally:
            path.write_bytes(before)
            (self.folder / "classes.txt").unlink(missing_ok=True)

    def lying_array(self, array: np.ndarray) -> bytes:
        header = {"descr": array.dtype.str, "fortran_order": False, "shape": list(array.shape)}
        header = twisted(header, self.chance)
        if isinstance(header, dict) and isinstance(header.get("shape"), list):
            header["shape"] = tuple(header["shape"])
        text = repr(header).encode()
        text = scrambled(text, self.chance) if self.chance.randrange(4) == 0 else text
        version = self.chance.choice((1, 1, 1, 2, 3, 4))
        length = self.chance.choice((len(text), len(text), len(text), 2**16 - 1, 2**32 - 1))
        size = struct.pack("<H", min(length, 2**16 - 1)) if version == 1 else struct.pack("<I", length)
        return b"\x93NUMPY" + bytes([version, 0]) + size + text + array.tobytes()

    def own_pictures(self) -> None:
        """A folder of pictures, of all formats that PIL writes, under any name: for `run` and for `learn`."""
        if not self.pictures[True]:
            colour = Image.fromarray(np.random.default_rng(0).integers(0, 256, (10, 12, 3), dtype=np.uint8))
            Image.init()
            for name in sorted({*Image.SAVE} - {"PDF"}):
                for picture in (colour, colour.convert("L"), colour.convert("P")):
                    buffer = io.BytesIO()
                    with contextlib.suppress(OSError, ValueError, KeyError):  # not every format takes every mode
                        picture.save(buffer, name)
                        self.pictures[name in inputs.formats()].append(buffer.getvalue())
            for part in ("train", "test"):
                (self.folder / part / "cat").mkdir(parents=True)
                colour.save(self.folder / part / "cat" / "0.png")
        content = self.chance.choice(self.pictures[self.chance.randrange(5) > 0])
        if self.chance.randrange(8):
            content = scrambled(content, self.chance)
        path = self.folder / self.chance.choice(("train", "test")) / "cat" / f"1{self.chance.choice(own_data.SUFFIXES)}"
        path.write_bytes(content)
        try:
            listed = folders.read(folders.classes([self.folder / "train"])["cat"], None)
            self.look_at(own_data.open_pictures(self.folder, size=8, workers=0))
            assert not listed.bad, "what `run` reads, `learn` reads"
        finally:
            path.unlink()

    def look_at(self, found: Dataset) -> None:
        for images in (found.train_images, found.test_images):
            assert images[torch.arange(len(images))].shape == images.shape
        assert len(streams.split(found, 1, generator=torch.Generator()).tasks) == len(found.classes)

    def checkpoints(self) -> None:
        """Of a run in the middle of its second task: with a right digest over wrong content; then a step is taken."""
        if not self.trainers:
            self.trainers = [stopped_in_the_middle(**changes) for changes in RUNS]
        trainer, tensors, plain = self.chance.choice(self.trainers)
        if self.chance.randrange(2):
            tensors = retyped(tensors, self.chance)
        else:
            plain = twisted(plain, self.chance)
        run = self.folder / "run"
        run.mkdir(exist_ok=True)
        for old in run.iterdir():
            old.unlink()
        (run / "checkpoint-000001.safetensors").write_bytes(sealed(tensors, plain))
        if experiment.restore(trainer, experiment.RunFolder(run)):
            go_on(trainer, 2)
            experiment.write_metrics(trainer, experiment.RunFolder(run))

    def models(self) -> None:
        """Of an IncrementalClassifier: with a right digest over wrong content, or just scrambled."""
        from steadfast.estimator import IncrementalClassifier

        if self.model is None:
            x, y = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32), np.arange(40) % 3
            made = IncrementalClassifier(epochs=1, slots=20, memory=20, backbone="mlp").fit(x, y)
            made.save(self.folder / "model")
            self.model = files.read_tensors(self.folder / "model" / "model.safetensors")
            self.model_bytes = (self.folder / "model" / "model.safetensors").read_bytes()
        tensors, state = self.model
        kind = self.chance.randrange(5)
        if kind == 0:
            content = scrambled(self.model_bytes, self.chance)
        elif kind == 1:
            content = sealed(retyped(tensors, self.chance), state)
        else:
            content = sealed(tensors, twisted(state, self.chance))
        IncrementalClassifier.load(self.write(content), device="cpu")


def fuzz(wanted: dict[str, int], seed: int, folder: Path) -> dict[str, Any]:
    """As many inputs to each target as wanted; what escaped is told with the seed that makes it again."""
    told: dict[str, Any] = {"inputs": 0, "refused": 0, "accepted": 0, "escaped": [], "slowest": 0.0, "by_target": {}}
    for name, count in wanted.items():
        (here := folder / name).mkdir()
        chance = random.Random(f"{seed}/{name}")
        target: Callable[[], None] = getattr(Targets(here, chance), name)
        for number in range(count):
            began = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
            try:
                target()
                told["accepted"] += 1
            except SteadfastError:
                told["refused"] += 1
            except BaseException as error:
                if len(told["escaped"]) < 20:
                    told["escaped"].append(f"{name} {seed} input {number}: {type(error).__name__}: {str(error)[:300]}")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if number:  # the first one builds what the target needs
                told["slowest"] = max(told["slowest"], time.perf_counter() - began)
        told["inputs"] += count
        told["by_target"][name] = count
    return told


class Hangs(BaseException):
    pass


def _hangs(*_: Any) -> None:
    raise Hangs


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _hangs)
    import steadfast.estimator.model_files  # noqa: F401  before the limit: what is imported is not the loaders' doing

    have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + LIMIT, have + LIMIT))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        told = fuzz(json.loads(sys.argv[1]), int(sys.argv[2]), Path(folder))
    told["growth"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    told["limit"] = LIMIT >> 20
    print(json.dumps(told))


if __name__ == "__main__":
    main()
