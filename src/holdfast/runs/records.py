"""Read result.json files from a folder as records, and validate each before it is used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import files
from ..errors import BadConfig, BadFile, HoldfastError
from . import results
from .config import Config

LARGEST = 16_000_000  # bytes; a normal record has a few thousand


@dataclass(frozen=True)
class Record:
    """One finished run that passed every check."""

    name: str  # its file, or its run folder
    config: Config  # resolved
    result: dict[str, Any]

    @property
    def quick(self) -> bool:
        """Return True for a scaled-down run; these are never mixed with full runs."""
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
        """Return how many degrees the head's directions of old classes turned; 0 for a fixed head."""
        value = self.result.get("mean_head_drift")
        return None if value is None else float(value)

    @property
    def relative_drift(self) -> float | None:
        """Return the drift in percent of the mean angle between classes at the end, comparable between spaces."""
        apart = (self.result.get("separation") or [None])[-1]
        return None if self.drift is None or not apart else 100 * self.drift / float(apart)

    @property
    def lost_in_galleries(self) -> float | None:
        """Return BC: what the last model loses in old galleries, in points; None if it was not measured."""
        measured = self.result.get("compatibility")
        return None if not measured else float(measured["bc"])

    @property
    def seconds(self) -> float:
        return float(self.result["seconds"])

    @property
    def hash(self) -> str:
        return str(self.result["hash"])

    def made_with(self) -> str:
        """Return the versions and the device behind the numbers, in one line."""
        seen = self.result["environment"]
        words = [f"holdfast {seen['holdfast']}"]
        words += [f"code {seen['code']}"] if seen.get("code") else []
        words += [f"{name} {seen[name]}" for name in ("torch", "python") if seen.get(name)]
        words += [str(seen[name]) for name in ("device", "machine") if seen.get(name)]
        return ", ".join(words)


@dataclass(frozen=True)
class LeftOut:
    """A file that was not used, and the reason, for the report page."""

    name: str
    reason: str


@dataclass(frozen=True)
class Records:
    """All records of a folder."""

    runs: tuple[Record, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    features: tuple[dict[str, Any], ...] = ()  # the records of 2-D feature figures


def read(folder: Path) -> Records:
    """Read every record of a folder: `NAME.json` files, and `result.json` in run folders.

    Broken, duplicate or incompatible files are listed in `left_out` with the reason."""
    if not folder.is_dir():
        raise BadConfig(f"There is no folder {folder}; name one with records or run folders in it.")
    runs: dict[Config, Record] = {}
    left_out: list[LeftOut] = []
    features: list[dict[str, Any]] = []
    for name, path in _candidates(folder):
        try:
            content = _content(path)
            if content.get("kind") == "features":
                drawn = results.features(content)
                twin = next((each for each in features if _figure(each) == _figure(drawn)), None)
                if twin is None:
                    features.append(drawn)
                else:
                    left_out.append(LeftOut(name, "A second record of one feature figure; drawn once."))
                continue
            record = checked(name, content)
        except HoldfastError as error:
            left_out.append(LeftOut(name, _plain(str(error), path)))
            continue
        first = runs.setdefault(protocol(record.config), record)
        if first is not record:
            same = record.result["accuracy_matrix"] == first.result["accuracy_matrix"]
            reason = "with the same accuracies" if same else "with different accuracies: decide which one to keep"
            left_out.append(LeftOut(name, f"A second record of the run in {first.name}, {reason}; counted once."))
    return Records(tuple(runs.values()), tuple(left_out), tuple(features))


def _figure(record: dict[str, Any]) -> list[Any]:
    """Return the fields that identify a feature figure."""
    return [record.get(key) for key in ("dataset", "start", "add", "seed", "epochs", "memory", "quick")]


def _plain(reason: str, path: Path) -> str:
    """Return the reason without the local path; the file is named elsewhere."""
    reason = reason.replace(f"{path} ", "")
    return reason[:1].upper() + reason[1:]


def _candidates(folder: Path) -> list[tuple[str, Path]]:
    """Return the files that may be records, as (display name, path), sorted by name."""
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
    """Return the record if it is complete and consistent; otherwise raise BadFile or BadConfig."""
    for key in ("config", "hash"):
        if key not in result:
            raise BadFile(f"Not a whole record: no {key}.")
    try:
        config = Config.from_json(result["config"]).resolved()
    except (TypeError, ValueError) as error:
        raise BadFile(f"Its config cannot be read: {error}") from error
    if config.hash != result["hash"]:
        raise BadFile(f"Its hash is {result['hash']!r}, but its config has {config.hash}: one of them was altered.")
    if result.get("quick", False) is not config.quick:
        raise BadFile(f"quick is {result.get('quick')!r}, but its config says {config.quick}: one of them was altered.")
    if config.validation:
        raise BadFile("Scored on validation samples (a search); only test accuracies can be compared.")
    results.check(config, result)
    return Record(name, config, result)


def protocol(config: Config) -> Config:
    """Return equivalent runs in one form: a trainable head is `expanding` if its softmax runs over the seen classes,
    and `preallocated` if it runs over all."""
    full = config.resolved()
    if full.head not in ("expanding", "preallocated"):
        return full
    return replace(full, head="expanding" if full.get("softmax_over") == "seen" else "preallocated")
