"""Validate a run's result. Called where a result is read, in a run folder or among records."""

from __future__ import annotations

import math
from typing import Any

from .. import __version__
from ..errors import BadFile
from ..learning import compatibility, metrics
from ..methods import METHODS
from .config import Config

KNOWN = "0.1"  # versions whose results are comparable: same protocol, same meaning of each field
NEAR = 1e-6  # tolerance between a number and the value recomputed from the accuracy matrix


WANTED = ("config", "hash", "accuracy_matrix", "final_average_accuracy", "average_accuracy", "seconds", "environment")


def check(config: Config, result: dict[str, Any]) -> None:
    """Raise BadFile if this is not a complete, consistent result of this config."""
    if missing := [key for key in WANTED if key not in result]:
        raise BadFile(f"Not a whole record: no {', '.join(missing)}.")
    version(result)
    numbers(config, result)


def version(result: dict[str, Any]) -> None:
    """Raise BadFile for a result of an incompatible version, whose fields may mean something else."""
    made_by = result["environment"].get("holdfast") if isinstance(result["environment"], dict) else None
    if not isinstance(made_by, str):
        raise BadFile("It does not say which holdfast made it.")
    if made_by != KNOWN and not made_by.startswith(KNOWN + "."):
        raise BadFile(f"Made by holdfast {made_by}; this is {__version__}, which compares runs of {KNOWN} only.")
    if result.get("format", 1) != 1:
        raise BadFile(f"Its format is {result['format']!r}; this holdfast reads format 1: upgrade to read it.")


def numbers(config: Config, result: dict[str, Any]) -> None:
    """Raise BadFile if a number is out of range or does not follow from the accuracy matrix."""
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
    apart = result.get("separation") or []
    if not isinstance(apart, list):
        raise BadFile(f"separation is {apart!r}; it is a list with one angle per task.")
    for name, angle in [("mean_drift", result.get("mean_drift")), ("mean_head_drift", result.get("mean_head_drift")),
                        *(("separation", each) for each in apart)]:
        if angle is not None and not _number(angle, 0, 180):
            raise BadFile(f"{name} is {angle!r}; it is an angle of 0 to 180 degrees.")
    _check_compatibility(result.get("compatibility"), len(matrix))


def _check_compatibility(found: Any, tasks: int) -> None:
    """Raise BadFile unless this is None or two triangular matrices of percentages and their measures."""
    if found is None:
        return
    try:
        sound = all(
            [len(row) for row in found[name]] == list(range(1, tasks + 1))
            and all(_number(value, 0, 100) for row in found[name] for value in row)
            for name in ("matrix", "means")
        )
        wanted = compatibility.summary(found["matrix"], found["means"]) if sound else None
        sound = wanted is not None and all(_near(found[name], wanted[name]) for name in ("ac", "am", "bc", "fc"))
    except (KeyError, TypeError) as error:
        raise BadFile(f"compatibility is not whole: {error!r}.") from error
    if not sound:
        raise BadFile("compatibility does not follow from its matrix, which has one entry of 0 to 100 per pair.")


def _check_matrix(config: Config, matrix: Any) -> None:
    """Raise BadFile unless row i has one accuracy per task seen: i + 1, or all tasks for joint training."""
    phases, joint = config.phases(), METHODS[config.method].joint
    if not isinstance(matrix, list) or len(matrix) != phases:
        raise BadFile(f"The accuracy matrix must have {phases} rows, one after each task.")
    for index, row in enumerate(matrix):
        if not isinstance(row, list) or not row or (not joint and len(row) != index + 1):
            raise BadFile(f"Row {index + 1} of the accuracy matrix must have {index + 1} accuracies.")
        if bad := [value for value in row if not _number(value, 0, 100)]:
            raise BadFile(f"The accuracy matrix has {bad[0]!r}; an accuracy is a number of 0 to 100 percent.")


def _number(value: Any, low: float, high: float) -> bool:
    """Return True for a finite number in [low, high]; no float conversion, since JSON integers may be huge."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf and (
        low <= value <= high
    )


def _near(value: Any, wanted: float) -> bool:
    return _number(value, wanted - 1, wanted + 1) and abs(value - wanted) <= NEAR


def features(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a feature figure if it can be drawn; otherwise raise BadFile."""
    try:
        version(record)
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
    """Return True if a frame can be drawn: one cloud per class seen, points of two finite numbers."""
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
