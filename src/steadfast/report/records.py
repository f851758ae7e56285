"""Results as records: a run's result.json, dropped into a folder, read and checked before it counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import files
from ..config import Config
from ..errors import BadConfig, BadFile, SteadfastError
from . import checks

LARGEST = 16_000_000  # bytes; a record has a few thousand


@dataclass(frozen=True)
class Record:
    """One finished run that has passed every check."""

    name: str  # its file, or its run folder
    config: Config  # resolved
    result: dict[str, Any]

    @property
    def quick(self) -> bool:
        """Made by a scaled-down sweep; never mixed with full ones."""
        return self.config.quick

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def accuracy(self) -> float:
        return float(self.result["final_average_accuracy"])

    @property
    def averages(self) -> list[float]:
        return [float(value) for value in self.result["average_accuracy"]]

    @property
    def drift(self) -> float | None:
        value = self.result.get("mean_drift")
        return None if value is None else float(value)

    @property
    def head_drift(self) -> float | None:
        """How many degrees the head's directions of old classes turned; 0 if they are fixed."""
        value = self.result.get("mean_head_drift")
        return None if value is None else float(value)

    @property
    def relative_drift(self) -> float | None:
        """The drift in percent of the mean angle between classes at the end: degrees of two spaces made alike."""
        apart = (self.result.get("separation") or [None])[-1]
        return None if self.drift is None or not apart else 100 * self.drift / float(apart)

    @property
    def seconds(self) -> float:
        return float(self.result["seconds"])

    @property
    def hash(self) -> str:
        return str(self.result["hash"])

    def made_with(self) -> str:
        """The versions behind the numbers, in a line."""
        seen = self.result["environment"]
        words = [f"steadfast {seen['steadfast']}"]
        words += [f"code {seen['code']}"] if seen.get("code") else []
        words += [f"{name} {seen[name]}" for name in ("torch", "python") if seen.get(name)]
        words += [str(seen[name]) for name in ("device", "machine") if seen.get(name)]
        return ", ".join(words)


@dataclass(frozen=True)
class LeftOut:
    """A file that did not count, and why; the page says so."""

    name: str
    reason: str


@dataclass(frozen=True)
class Records:
    """Everything a folder holds."""

    runs: tuple[Record, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    features: tuple[dict[str, Any], ...] = ()  # the records of 2-D feature figures


def read(folder: Path) -> Records:
    """Every record of a folder: `NAME.json` in it, or `result.json` in the run folders in it.

    What is broken, of another version or there twice is left out by name, with the reason."""
    if not folder.is_dir():
        raise BadConfig(f"There is no folder {folder}; name one with records or run folders in it.")
    runs: dict[Config, Record] = {}
    left_out: list[LeftOut] = []
    features: list[dict[str, Any]] = []
    for name, path in _candidates(folder):
        try:
            content = _content(path)
            if content.get("kind") == "features":
                drawn = checks.features(content)
                twin = next((each for each in features if _figure(each) == _figure(drawn)), None)
                if twin is None:
                    features.append(drawn)
                else:
                    left_out.append(LeftOut(name, "A second record of one feature figure; drawn once."))
                continue
            record = checked(name, content)
        except SteadfastError as error:
            left_out.append(LeftOut(name, _plain(str(error), path)))
            continue
        first = runs.setdefault(protocol(record.config), record)
        if first is not record:
            same = record.result["accuracy_matrix"] == first.result["accuracy_matrix"]
            reason = "with the same accuracies" if same else "with other accuracies: see which one to trust"
            left_out.append(LeftOut(name, f"A second record of the run in {first.name}, {reason}; counted once."))
    return Records(tuple(runs.values()), tuple(left_out), tuple(features))


def _figure(record: dict[str, Any]) -> list[Any]:
    """What tells two feature figures apart."""
    return [record.get(key) for key in ("dataset", "start", "add", "seed", "epochs", "memory", "quick")]


def _plain(reason: str, path: Path) -> str:
    """Without the place on this machine: the name says which file it is."""
    reason = reason.replace(f"{path} ", "")
    return reason[:1].upper() + reason[1:]


def _candidates(folder: Path) -> list[tuple[str, Path]]:
    """What may be a record, with the name to call it by, in the order of the names."""
    if (folder / "result.json").is_file():
        return [(folder.resolve().name, folder / "result.json")]
    loose = [(path.name, path) for path in folder.glob("*.json") if not path.name.startswith(".")]
    inside = [(path.parent.name, path) for path in folder.glob("*/result.json")]
    return sorted(loose + inside + [(f"{p.parent.name}/{p.name}", p) for p in folder.glob("*/features.json")])


def _content(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BadFile(f"Cannot be read: {error.strerror}.") from error
    if size > LARGEST:
        raise BadFile(f"It has {size:,} bytes; no record has more than {LARGEST:,}.")
    content = files.read_record(path)
    if not isinstance(content, dict):
        raise BadFile("Not a record: its JSON is not an object.")
    return content


def checked(name: str, result: dict[str, Any]) -> Record:
    """The record, if it is whole and agrees with itself; BadFile or BadConfig say what is wrong."""
    wanted = ("config", "hash", "accuracy_matrix", "final_average_accuracy", "average_accuracy", "seconds",
              "environment")
    if missing := [key for key in wanted if key not in result]:
        raise BadFile(f"Not a whole record: no {', '.join(missing)}.")
    checks.version(result)
    try:
        config = Config.from_json(result["config"]).resolved()
    except (TypeError, ValueError) as error:
        raise BadFile(f"Its config cannot be read: {error}") from error
    if config.hash != result["hash"]:
        raise BadFile(f"Its hash is {result['hash']!r}, but its config has {config.hash}: one of them was altered.")
    if result.get("quick", False) is not config.quick:
        raise BadFile(f"quick is {result.get('quick')!r}, but its config says {config.quick}: one of them was altered.")
    if config.validation:
        raise BadFile("Scored on validation samples, as a search does; only test accuracies can be compared.")
    checks.numbers(config, result)
    return Record(name, config, result)


def protocol(config: Config) -> Config:
    """Spellings of one run made equal: what `over` defaults to is filled in, and a trainable head is
    `expanding` if its softmax runs over the seen classes and `preallocated` if over all."""
    full = config.resolved()
    over = full.over or ("seen" if full.head == "expanding" else "all")
    head = full.head
    if head in ("expanding", "preallocated"):
        head = "expanding" if over == "seen" else "preallocated"
    return replace(full, head=head, over=over)
