"""Feed the loaders inputs that are nearly right: `python fuzzing.py '{"configs": 1000, ...}' SEED` prints the outcome.

Each target is a loader and a file that it accepts. An input is that file with bytes flipped, cut, repeated or spliced,
or with enormous numbers. The loader may raise only a HoldfastError, soon, and within a limit of memory.
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
import torch
from PIL import Image

from holdfast import files, pictures
from holdfast.data import DATASETS, Dataset, folders, own, parse
from holdfast.data.published import Packed, Part
from holdfast.errors import HoldfastError
from holdfast.learning import streams
from holdfast.runs import records
from holdfast.runs.config import PROTOCOL, Config
from records_factory import make_record

LIMIT = 1 << 30  # bytes that loading may add to what the process has
PATIENCE = 20  # seconds for one input, on a machine that is busy with other things

NUMBERS = (0, 1, -1, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**18, 10**400, -(10**400), 0.5, -0.0,
           1e308)
VALUES: tuple[Any, ...] = (*NUMBERS, None, True, False, "", "x", "ä" * 50, "../../etc/passwd", [], {}, [[]], [None],
                           {"": 0}, "timm:resnet18", "os.system", [1, 2, 3], "9" * 400)


def scrambled(content: bytes, chance: random.Random) -> bytes:
    """Mutate a few bytes."""
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
    """Change one place in JSON: another type, an enormous number, a field deleted or doubled."""
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


class Targets:
    """Each method is a target: it makes the next input and loads it."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.file = folder / "input"
        tensors = {"w": torch.randn(3, 4), "b": torch.arange(5), "e": torch.empty(0, 2)}
        files.write_tensors(self.file, tensors, {"step": 3, "records": [{"loss": 0.5}]})
        self.good_tensors = self.file.read_bytes()
        self.config = Config("split-digits", memory=50, lr=0.002, seed=3).resolved()
        self.record = make_record(self.config)
        (folder / "records").mkdir()
        self.idx = struct.pack(">4I", 0x0803, 3, 28, 28) + bytes(3 * 28 * 28)
        self.labels = struct.pack(">2I", 0x0801, 3) + bytes([1, 2, 3])
        self.cifar = {name: bytes(3073 * 2) for name in ("a.bin", "b.bin")}
        self.arrays: dict[str, np.ndarray] = {}
        self.pictures: dict[bool, list[bytes]] = {True: [], False: []}  # of the formats that are read, and of others

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
            full = {each.name: getattr(self.config, each.name) for each in PROTOCOL} | self.config.options
            full["benchmark"] = self.config.benchmark
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
            raise HoldfastError

    def idx_files(self) -> None:
        entry = DATASETS["mnist"]
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
        parse.split(DATASETS["cifar10"], found, tuple(found))

    def gzips(self) -> None:
        content = gzip.compress(self.labels)
        parse.gunzip(scrambled(content, self.chance), Part("x", len(self.labels), ""))

    def own_arrays(self) -> None:
        """Folders of arrays: scrambled bytes, false headers, labels out of range, a wrong number of class names."""
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
            self.look_at(own.open_arrays(self.folder))
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
        """Folders of pictures, in every format that PIL writes, under any name: for `run` and for `learn`."""
        if not self.pictures[True]:
            colour = Image.fromarray(np.random.default_rng(0).integers(0, 256, (10, 12, 3), dtype=np.uint8))
            Image.init()
            for name in sorted({*Image.SAVE} - {"PDF"}):
                for picture in (colour, colour.convert("L"), colour.convert("P")):
                    buffer = io.BytesIO()
                    with contextlib.suppress(OSError, ValueError, KeyError):  # not every format takes every mode
                        picture.save(buffer, name)
                        self.pictures[name in pictures.formats()].append(buffer.getvalue())
            for part in ("train", "test"):
                (self.folder / part / "cat").mkdir(parents=True)
                colour.save(self.folder / part / "cat" / "0.png")
        content = self.chance.choice(self.pictures[self.chance.randrange(5) > 0])
        if self.chance.randrange(8):
            content = scrambled(content, self.chance)
        path = self.folder / self.chance.choice(("train", "test")) / "cat" / f"1{self.chance.choice(own.SUFFIXES)}"
        path.write_bytes(content)
        try:
            listed = folders.read(folders.classes([self.folder / "train"])["cat"], None)
            self.look_at(own.open_pictures(self.folder, size=8, workers=0))
            assert not listed.bad, "what `run` reads, `learn` reads"
        finally:
            path.unlink()

    def look_at(self, found: Dataset) -> None:
        for images in (found.train_images, found.test_images):
            assert images[torch.arange(len(images))].shape == images.shape
        assert len(streams.split(found, 1, generator=torch.Generator()).tasks) == len(found.classes)


def fuzz(wanted: dict[str, int], seed: int, folder: Path) -> dict[str, Any]:
    """Feed each target as many inputs as wanted; return what escaped, with the seed that repeats it."""
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
            except HoldfastError:
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
