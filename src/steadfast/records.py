"""Results as records: a run's result.json, dropped into a folder, read and checked before it counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import __version__, files, metrics
from .config import Config
from .errors import BadConfig, BadFile, SteadfastError
from .methods import METHODS

KNOWN = "0.1"  # the versions whose numbers can stand side by side: same protocol, same meaning of each field
LARGEST = 16_000_000  # bytes; a record has a few thousand
NEAR = 1e-6  # how well numbers derived from one another must agree


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
                features.append(checked_features(content))
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
    _check_version(result)
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
    _check_numbers(config, result)
    return Record(name, config, result)


def _check_version(result: dict[str, Any]) -> None:
    version = result["environment"].get("steadfast") if isinstance(result["environment"], dict) else None
    if not isinstance(version, str):
        raise BadFile("It does not say which steadfast made it.")
    if version != KNOWN and not version.startswith(KNOWN + "."):
        raise BadFile(f"Made by steadfast {version}; this is {__version__}, which compares runs of {KNOWN} only.")
    if result.get("format", 1) != 1:
        raise BadFile(f"Its format is {result['format']!r}; this steadfast reads format 1: upgrade to read it.")


def _check_numbers(config: Config, result: dict[str, Any]) -> None:
    matrix = result["accuracy_matrix"]
    _check_matrix(config, matrix)
    averages = metrics.average_accuracy(matrix)
    given = result["average_accuracy"]
    if not isinstance(given, list) or len(given) != len(averages) or not all(map(_near, given, averages)):
        raise BadFile("average_accuracy does not follow from the accuracy matrix.")
    if not _near(result["final_average_accuracy"], averages[-1]):
        raise BadFile(
            f"final_average_accuracy is {result['final_average_accuracy']!r}, "
            f"but the accuracy matrix gives {averages[-1]:.4f}."
        )
    if "forgetting" in result and not _near(result["forgetting"], metrics.forgetting(matrix)):
        raise BadFile("forgetting does not follow from the accuracy matrix.")
    if not _number(result["seconds"], 0, 1e12):
        raise BadFile(f"seconds is {result['seconds']!r}; it is a finite number, 0 or more.")
    if result.get("mean_drift") is not None and not _number(result["mean_drift"], 0, 180):
        raise BadFile(f"mean_drift is {result['mean_drift']!r}; it is an angle of 0 to 180 degrees.")


def _check_matrix(config: Config, matrix: Any) -> None:
    """Row i has an accuracy for each task seen: i + 1 of them, or all at once if learned jointly."""
    phases, joint = config.phases(), METHODS[config.method].joint
    if not isinstance(matrix, list) or len(matrix) != phases:
        raise BadFile(f"The accuracy matrix must have {phases} rows, one after each task.")
    for index, row in enumerate(matrix):
        if not isinstance(row, list) or not row or (not joint and len(row) != index + 1):
            raise BadFile(f"Row {index + 1} of the accuracy matrix must have {index + 1} accuracies.")
        if bad := [value for value in row if not _number(value, 0, 100)]:
            raise BadFile(f"The accuracy matrix has {bad[0]!r}; an accuracy is a number of 0 to 100 percent.")


def _number(value: Any, low: float, high: float) -> bool:
    """A finite number from low to high; compared, not converted: JSON may hold integers of a thousand digits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf and (
        low <= value <= high
    )


def _near(value: Any, wanted: float) -> bool:
    return _number(value, wanted - 1, wanted + 1) and abs(value - wanted) <= NEAR


def checked_features(record: dict[str, Any]) -> dict[str, Any]:
    """The record of a feature figure, if it can be drawn: two heads, each with frames of finite numbers."""
    try:
        if record["format"] != 1:
            raise BadFile(f"Its format is {record['format']!r}; this steadfast reads format 1: upgrade to read it.")
        labels, words = record["labels"], (record["dataset"], record["start"], record["add"])
        sound = bool(labels) and bool(record["heads"]) and None not in words and all(
            isinstance(head["title"], str) and bool(head["frames"]) and all(
                len(head[turned]) == len(labels) and _finite(_known(head[turned]))
                for turned in ("features_turned", "weights_turned")
            ) and all(_sound_frame(frame, len(labels)) for frame in head["frames"])
            for head in record["heads"]
        )
    except (KeyError, TypeError) as error:
        raise BadFile(f"Not a whole record of a feature figure: {error!r}.") from error
    if not sound:
        raise BadFile("Not a whole record of a feature figure: points are missing or not finite.")
    return record


def _sound_frame(frame: dict[str, Any], labels: int) -> bool:
    """A frame that can be drawn: a cloud a class seen, points of two finite numbers."""
    points = [point for cloud in frame["clouds"] for point in cloud] + frame["weights"]
    return (
        _number(frame["accuracy"], 0, 100)
        and len(frame["clouds"]) == len(frame["seen"]) > 0
        and all(frame["clouds"])
        and all(isinstance(slot, int) and 0 <= slot < labels for slot in frame["seen"])
        and all(isinstance(point, list) and len(point) == 2 and _finite(point) for point in points)
        and all(_finite(_known(frame[moved])) for moved in ("features_moved", "weights_moved"))
    )


def _known(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _finite(values: Any) -> bool:
    if isinstance(values, list):
        return all(_finite(value) for value in values)
    return _number(values, -math.inf, math.inf)


def protocol(config: Config) -> Config:
    """Spellings of one run made equal: what `over` defaults to is filled in, and a trainable head is
    `expanding` if its softmax runs over the seen classes and `preallocated` if over all."""
    full = config.resolved()
    over = full.over or ("seen" if full.head == "expanding" else "all")
    head = full.head
    if head in ("expanding", "preallocated"):
        head = "expanding" if over == "seen" else "preallocated"
    return replace(full, head=head, over=over)
